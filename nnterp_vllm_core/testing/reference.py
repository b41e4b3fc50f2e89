"""transformers in a process of its own, asked from the suite's process.

vLLM's Transformers backend patches transformers' classes in place, so a reference computed beside an engine is none. One
process serves a whole test session: importing transformers takes longer than most families' checks. Requests are sent
ahead and answered in order, so the references are computed while the engine loads.

Run as ``python -m nnterp_vllm_core.testing.reference``, it serves; requests and answers are pickles on its standard input
and output.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO

_HEADER = struct.Struct("<Q")
#: How many requests may wait. Each side writes into a pipe of 64 kB; were both full, neither would read.
_AHEAD = 16


class ReferenceError(RuntimeError):
    """The reference process failed; its own traceback is the message."""


class Pending:
    """An answer that may not have come yet."""

    def __init__(self, owner: Reference, name: str) -> None:
        self._owner = owner
        self._name = name
        self.done = False
        self.answer: Any = None

    def get(self) -> Any:
        """The answer, waited for.

        Raises:
            ReferenceError: The request failed.
        """
        while not self.done:
            self._owner.receive()
        kind, content = self.answer
        if kind == "error":
            raise ReferenceError(f"{self._name}: {content}")
        return _tensors(content)


class Reference:
    """The process and the requests that it has not answered."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1")}
        environment["CUDA_VISIBLE_DEVICES"] = ""  # a card's own arithmetic is what is tested, not the reference's
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._waiting: deque[Pending] = deque()

    def ask(self, name: str, *arguments: Any, **options: Any) -> Pending:
        """Send a request: a method of `bench.Bench` by name, and its arguments."""
        assert self._process.stdin is not None
        while len(self._waiting) >= _AHEAD:
            self.receive()
        _send(self._process.stdin, (name, _arrays(arguments), _arrays(options)))
        pending = Pending(self, name)
        self._waiting.append(pending)
        return pending

    def receive(self) -> None:
        """Take the next answer and give it to the oldest request."""
        assert self._process.stdout is not None
        pending = self._waiting.popleft()
        try:
            pending.answer = _receive(self._process.stdout)
        except EOFError:
            pending.answer = ("error", f"the reference process ended with status {self._process.wait()}")
        pending.done = True

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        while self._waiting:  # it may be writing an answer that nobody wants any more
            self.receive()
        self._process.stdout.close()
        self._process.wait(timeout=60)


def _send(stream: BinaryIO | Any, content: Any) -> None:
    payload = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_HEADER.pack(len(payload)))
    stream.write(payload)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> Any:
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    (length,) = _HEADER.unpack(header)
    return pickle.loads(stream.read(length))


class _Array:
    """A tensor on its way: torch pickles every storage as a file of its own, numpy as plain bytes."""

    def __init__(self, content: Any) -> None:
        self.content = content


def _mapped(content: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(content, dict):
        return {key: _mapped(value, leaf) for key, value in content.items()}
    if type(content) in (list, tuple):
        return type(content)(_mapped(value, leaf) for value in content)
    return leaf(content)


def _arrays(content: Any) -> Any:
    import torch

    return _mapped(content, lambda it: _Array(it.detach().numpy()) if isinstance(it, torch.Tensor) else it)


def _tensors(content: Any) -> Any:
    import torch

    return _mapped(content, lambda it: torch.from_numpy(it.content.copy()) if isinstance(it, _Array) else it)


def serve() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not land among the answers
    requests = sys.stdin.buffer
    # Under its importable name: run as a program, this module is `__main__` and its classes would not unpickle elsewhere.
    from nnterp_vllm_core.testing import reference
    from nnterp_vllm_core.testing.bench import Bench

    bench = Bench()
    while True:
        try:
            name, arguments, options = _receive(requests)
        except EOFError:
            return
        try:
            result = getattr(bench, name)(*reference._tensors(arguments), **reference._tensors(options))
            answer: tuple[str, Any] = ("answer", reference._arrays(result))
        except Exception:  # noqa: BLE001  # whatever went wrong belongs into the answer, and the next request is served
            answer = ("error", traceback.format_exc())
        _send(answers, answer)


if __name__ == "__main__":
    serve()
