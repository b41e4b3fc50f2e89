"""Shards: consecutive prompts put together, kept in memory or written so that an interruption loses and doubles nothing.

A shard is written under a temporary name and renamed, and only then does the index, rewritten the same way, name it. So
the index is the truth at every instant: what it does not name is left over from an interruption and is written again.
Shards end where their contents say, not where a run happened to stop, so an interrupted run gives the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .._version import __version__
from ..errors import OutputFolderError
from .result import FORMAT, INDEX, OFFSETS, SHAPES, SKIPPED, TOKENS, VERSION, Collected, FileShard, MemoryShard, read_index

_TEMPORARY = ".part"


class Entry:
    """One prompt on its way into a shard.

    Attributes:
        tokens: Its length.
        skipped: Whether it was too long.
        digest: The hash of all prompts up to this one.
        rows: Its rows by path, each ``[positions, ...]``, once they are there.
    """

    __slots__ = ("digest", "rows", "skipped", "tokens")

    def __init__(self, tokens: int, digest: str, skipped: bool = False) -> None:
        self.tokens = tokens
        self.digest = digest
        self.skipped = skipped
        self.rows: dict[str, torch.Tensor] | None = {} if skipped else None


def assemble(entries: Sequence[Entry], paths: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors of a shard."""
    counts = [next(iter(entry.rows.values())).shape[0] if entry.rows else 0 for entry in entries]
    tensors = {
        OFFSETS: torch.tensor([0, *counts]).cumsum(0),
        TOKENS: torch.tensor([entry.tokens for entry in entries]),
        SKIPPED: torch.tensor([entry.skipped for entry in entries], dtype=torch.uint8),
    }
    for path in paths:
        pieces = [entry.rows[path] for entry in entries if entry.rows]
        if not pieces:
            tensors[path] = torch.zeros(0)
        elif len({piece.shape[1:] for piece in pieces}) == 1:
            tensors[path] = torch.cat(pieces)
        else:
            nothing = [0] * pieces[0].ndim
            tensors[path] = torch.cat([piece.reshape(-1) for piece in pieces])
            tensors[path + SHAPES] = torch.tensor(
                [list(entry.rows[path].shape) if entry.rows else nothing for entry in entries]
            )
    return tensors


class Memory:
    """Keeps shards in memory."""

    done = 0
    digests: tuple[tuple[int, str], ...] = ()

    def __init__(self, run: dict[str, Any]) -> None:
        self._run = run
        self._shards: list[MemoryShard] = []

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *raised: Any) -> None:
        """Nothing is held."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Take the next prompts."""
        self._shards.append(MemoryShard(assemble(entries, self._run["values"])))

    def finish(self) -> Collected:
        """The result."""
        return Collected(list(self._shards), tuple(self._run["values"]), {**self._run, "complete": True})


class Folder:
    """Writes shards to a folder.

    Attributes:
        done: How many prompts the folder holds already.
        digests: ``(prompts, hash)`` at the end of each shard that is there.

    Raises:
        OutputFolderError: The folder holds another run, is no folder, or is being written by another process.
    """

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        self._folder = folder
        self._run = run
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputFolderError(f"out={str(folder)!r} cannot be made a folder: {error}.") from error
        self._lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise OutputFolderError(f"Another process is collecting into {str(folder)!r}. Wait for it.") from error
        try:
            self._index = self._resumed()
        except BaseException:
            os.close(self._lock)
            raise

    def _resumed(self) -> dict[str, Any]:
        index = read_index(self._folder)
        if index is None:
            strange = sorted(one.name for one in self._folder.iterdir() if not _ours(one.name))
            if strange:
                raise OutputFolderError(
                    f"out={str(self._folder)!r} holds other files ({strange[0]!r}); give a new or an empty folder."
                )
            index = {
                "format": FORMAT,
                "version": VERSION,
                "core": __version__,
                "run": self._run,
                "prompts": 0,
                "rows": 0,
                "complete": False,
                "shards": [],
            }
        differing = [key for key in self._run if index["run"].get(key) != self._run[key]]
        if differing:
            key = differing[0]
            raise OutputFolderError(
                f"{str(self._folder)!r} holds another run: its {key} is {index['run'].get(key)!r} and this call's is "
                f"{self._run[key]!r}. Give another folder, or the same arguments to go on with that run."
            )
        named = {one["file"] for one in index["shards"]}
        for left in self._folder.iterdir():
            if _ours(left.name) and left.name not in named and left.name != INDEX:
                left.unlink()
        return index

    def __enter__(self) -> Folder:
        if not (self._folder / INDEX).is_file():
            self._write_index(self._index)
        return self

    def __exit__(self, *raised: Any) -> None:
        os.close(self._lock)

    @property
    def done(self) -> int:
        """See the class."""
        return int(self._index["prompts"])

    @property
    def digests(self) -> tuple[tuple[int, str], ...]:
        """See the class."""
        return tuple((one["first"] + one["prompts"], one["prompts_sha256"]) for one in self._index["shards"])

    def add(self, entries: Sequence[Entry]) -> None:
        """Write the next prompts as a shard.

        Raises:
            OutputFolderError: The file system refuses; what was written before stays.
        """
        tensors = assemble(entries, self._run["values"])
        shards = self._index["shards"]
        name = f"shard-{len(shards):05d}.safetensors"
        rows = int(tensors[OFFSETS][-1])
        shard = {
            "file": name,
            "first": self.done,
            "prompts": len(entries),
            "rows": rows,
            "prompts_sha256": entries[-1].digest,
            "dtypes": {path: str(tensors[path].dtype).removeprefix("torch.") for path in self._run["values"]},
            "shapes": {
                path: None if path + SHAPES in tensors else list(tensors[path].shape) for path in self._run["values"]
            },
        }
        changed = {
            **self._index,
            "prompts": self.done + len(entries),
            "rows": self._index["rows"] + rows,
            "complete": False,
            "shards": [*shards, shard],
        }
        with self._written(name) as temporary:
            temporary.touch()
            mode = temporary.stat().st_mode
            save_file(tensors, temporary, metadata={"format": "pt"})
            temporary.chmod(mode)  # safetensors makes files that nobody else may read
        self._write_index(changed)

    def finish(self) -> Collected:
        """Mark the run complete; the result reads the files."""
        if not self._index["complete"]:
            self._write_index({**self._index, "complete": True})
        shards = [FileShard(self._folder / one["file"], one["prompts"], one["rows"]) for one in self._index["shards"]]
        return Collected(list(shards), tuple(self._run["values"]), {**self._run, "complete": True})

    def _write_index(self, index: dict[str, Any]) -> None:
        with self._written(INDEX) as temporary:
            temporary.write_text(json.dumps(index, indent=1) + "\n")
        self._index = index

    @contextlib.contextmanager
    def _written(self, name: str) -> Any:
        temporary = self._folder / (name + _TEMPORARY)
        try:
            yield temporary
            os.replace(temporary, self._folder / name)
        # safetensors reports what the system refuses as an error of its own, which is no OSError.
        except Exception as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise OutputFolderError(
                f"{name} could not be written to {str(self._folder)!r}: {error}. The {self.done} prompts before it are "
                f"safe; call again with the same arguments to go on from there."
            ) from error


def _ours(name: str) -> bool:
    # safetensors, too, writes under a name of its own first.
    return name == INDEX or name.startswith(("shard-", ".tmp")) or name.endswith(_TEMPORARY)
