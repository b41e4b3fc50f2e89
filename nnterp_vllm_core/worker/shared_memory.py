"""Large saves go home through memory that the worker and the driver share, where both run on one host.

vLLM hands what a worker returns from process to process as messages: each hop writes and reads the bytes again, which for
every position of every layer takes longer than the forward that made them. Here the worker writes them once into a file in
memory and sends its name; the driver maps the file, takes it out of the folder and copies the values out. Where the two
see no common memory (another host, another container), where it is nearly full, and for anything small, the bytes travel
in the message as ever.
"""

from __future__ import annotations

import mmap
import os
import pickle
import secrets
import threading
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from ..errors import NnterpVLLMError

FOLDER = Path("/dev/shm")
#: Fewer bytes than this travel in the message.
LEAST = 1 << 16
#: Set to 0 in the driver, everything travels in the message.
VARIABLE = "NNTERP_VLLM_SHARED_MEMORY"
_ALIGNMENT = 64
_local = threading.local()
#: Files of this process that no driver may have taken yet; what is left of them goes when it ends.
_sent: set[Path] = set()
os.register_at_fork(after_in_child=_sent.clear)


def common_memory() -> str | None:
    """What is equal in two processes exactly if they see the same shared memory; ``None`` where there is none to use."""
    if os.environ.get(VARIABLE) == "0":
        return None
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{booted} {os.stat(FOLDER).st_dev}"
    except OSError:
        return None


class Outbox:
    """The worker's side, for the length of one collection.

    Args:
        usable: Whether the driver sees this process's shared memory.
    """

    def __init__(self, usable: bool) -> None:
        self.usable = usable
        self._file: int | None = None
        self._path = FOLDER / f"nnterp-vllm-{secrets.token_hex(12)}"
        self._end = 0

    def __enter__(self) -> Outbox:
        _local.outbox = self
        return self

    def __exit__(self, *_: Any) -> None:
        del _local.outbox
        if self._file is not None:
            os.close(self._file)

    def put(self, raw: memoryview) -> int | None:
        """Write bytes into the shared memory; where they begin there, or ``None`` if they have to travel otherwise."""
        if not self.usable or raw.nbytes < LEAST:
            return None
        try:
            room = os.statvfs(FOLDER)
            if raw.nbytes > room.f_bavail * room.f_frsize // 2:
                return None  # the other half is for everybody else
            if self._file is None:
                self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                _remember(self._path)
            start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
            written = 0
            while written < raw.nbytes:
                written += os.pwrite(self._file, raw[written:], start + written)
        except OSError:
            self.usable = False
            return None
        self._end = start + written
        return start

    def sealed(self, message: bytes) -> bytes:
        """The message as it goes to the driver: as it is, or with the name of what goes beside it."""
        if self._file is None:
            return message
        return pickle.dumps(_Sent(self._path.name, message), pickle.HIGHEST_PROTOCOL)


class _Sent:
    """Pickles as what the driver unpickles: the call that takes the file and reads the message beside it."""

    def __init__(self, name: str, message: bytes) -> None:
        self.name = name
        self.message = message

    def __reduce__(self) -> Any:
        return arrived, (self.name, self.message)


def put(raw: memoryview) -> int | None:
    """`Outbox.put` of the collection that this thread is at; ``None`` where it is at none."""
    outbox: Outbox | None = getattr(_local, "outbox", None)
    return None if outbox is None else outbox.put(raw)


def arrived(name: str, message: bytes) -> Any:
    """The driver's side: unpickle a message with what came beside it.

    The file leaves the folder at once; its memory is free when the last value has been copied out.

    Raises:
        NnterpVLLMError: The file is gone or cannot be read.
    """
    path = FOLDER / name
    try:
        file = path.open("rb")
    except OSError as error:
        raise NnterpVLLMError(
            f"Saved values came in shared memory, and {path} cannot be opened ({error}). If something here tidies {FOLDER} "
            f"up, set {VARIABLE}=0 before the model is built: they travel in the message then."
        ) from error
    with file:
        path.unlink()
        _local.inbox = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        return pickle.loads(message)
    finally:
        del _local.inbox


def inbox() -> mmap.mmap:
    """What came beside the message that is being unpickled."""
    mapped: mmap.mmap = _local.inbox
    return mapped


def _remember(path: Path) -> None:
    if not _sent:
        # Not `atexit`, which a process of multiprocessing, as a worker is, need not run.
        Finalize(None, _tidy, exitpriority=0)
    _sent.difference_update([one for one in _sent if not one.exists()])
    _sent.add(path)


def _tidy() -> None:
    for path in _sent:
        path.unlink(missing_ok=True)
