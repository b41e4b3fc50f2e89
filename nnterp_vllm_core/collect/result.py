"""What a collection gives back: rows of many prompts, in memory or in files that are read when they are asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from ..errors import OutputFolderError

INDEX = "index.json"
FORMAT = "nnterp-vllm collection"
VERSION = 1

#: Tensors of a shard that are no values: where each prompt's rows begin, its length in tokens, whether it was skipped.
OFFSETS, TOKENS, SKIPPED = "prompts.offsets", "prompts.tokens", "prompts.skipped"
#: Beside a value whose rows differ in shape from prompt to prompt: one row of sizes for each prompt.
SHAPES = ".shapes"


class Shard(Protocol):
    """Consecutive prompts."""

    prompts: int
    rows: int

    def tensor(self, name: str) -> torch.Tensor | None:
        """A tensor of the shard, or ``None`` where it has none of that name."""


class MemoryShard:
    """Consecutive prompts in memory."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.prompts = len(tensors[TOKENS])
        self.rows = int(tensors[OFFSETS][-1])

    def tensor(self, name: str) -> torch.Tensor | None:
        """See `Shard`."""
        return self._tensors.get(name)


class FileShard:
    """Consecutive prompts in a safetensors file."""

    def __init__(self, path: Path, prompts: int, rows: int) -> None:
        self._path = path
        self.prompts = prompts
        self.rows = rows

    @cached_property
    def _file(self) -> Any:
        from safetensors import safe_open

        return safe_open(str(self._path), framework="pt")

    def tensor(self, name: str) -> torch.Tensor | None:
        """See `Shard`; only this tensor is read."""
        if name not in self._file.keys():  # noqa: SIM118  # not a mapping
            return None
        found: torch.Tensor = self._file.get_tensor(name)
        return found


class Collected:
    """The rows that a collection took, prompt after prompt in the order in which they were given.

    ``collected["layers.3.layer_output"]`` is ``[rows, hidden]`` over all prompts; prompt ``i`` owns the rows
    ``offsets[i]:offsets[i + 1]``. ``collected.prompt(i)`` is one prompt's rows by value, iterating gives every prompt's.
    A value whose rows differ in shape between prompts (an attention pattern) is read by prompt alone.

    Attributes:
        values: The collected paths.
        info: The run's own description: model, family, positions, reduction, dtype.
    """

    def __init__(self, shards: list[Any], values: tuple[str, ...], info: dict[str, Any]) -> None:
        self._shards: list[Shard] = shards
        self.values = values
        self.info = info

    @classmethod
    def open(cls, folder: str | Path) -> Collected:
        """Open what ``collect(..., out=folder)`` wrote, finished or not; tensors are read when they are asked for.

        Raises:
            OutputFolderError: The folder holds no collection, or one of a newer format.
        """
        index = read_index(Path(folder))
        if index is None:
            raise OutputFolderError(f"{str(folder)!r} holds no collection: it has no {INDEX}.")
        shards = [FileShard(Path(folder) / one["file"], one["prompts"], one["rows"]) for one in index["shards"]]
        return cls(shards, tuple(index["run"]["values"]), {**index["run"], "complete": index["complete"]})

    def __len__(self) -> int:
        """How many prompts there are, skipped ones included."""
        return sum(shard.prompts for shard in self._shards)

    def __getitem__(self, path: str) -> torch.Tensor:
        """All rows of a value, ``[rows, ...]``.

        Raises:
            KeyError: It was not collected.
            ValueError: Its rows differ in shape between prompts.
        """
        self._known(path)
        parts, empty = [], torch.zeros(0)
        for shard in self._shards:
            if shard.tensor(path + SHAPES) is not None:
                raise ValueError(f"The rows of {path} differ in shape between prompts; read them by `.prompt(i)`.")
            part = shard.tensor(path)
            if part is not None and shard.rows:
                parts.append(part)
            elif part is not None:
                empty = part
        if len({part.shape[1:] for part in parts}) > 1:
            raise ValueError(f"The rows of {path} differ in shape between prompts; read them by `.prompt(i)`.")
        if not parts:
            return empty
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def stacked(self, path: str) -> torch.Tensor:
        """All rows of a value, ``[prompts, positions, ...]``.

        Raises:
            ValueError: Prompts have different numbers of rows.
        """
        counts = sorted(set(self.offsets.diff().tolist()))
        if len(counts) > 1:
            raise ValueError(f"Prompts have different numbers of rows, {counts}; use `[{path!r}]` with `.offsets`.")
        rows = self[path]
        return rows.reshape(len(self), -1, *rows.shape[1:])

    @property
    def offsets(self) -> torch.Tensor:
        """``[prompts + 1]``: prompt ``i`` owns the rows ``offsets[i]:offsets[i + 1]``."""
        counts = [torch.zeros(1, dtype=torch.int64), *(self._own(shard, OFFSETS).diff() for shard in self._shards)]
        return torch.cat(counts).cumsum(0)

    @property
    def tokens(self) -> torch.Tensor:
        """``[prompts]``: how many tokens each prompt has."""
        return torch.cat([torch.zeros(0, dtype=torch.int64), *(self._own(shard, TOKENS) for shard in self._shards)])

    @property
    def skipped(self) -> list[int]:
        """Prompts that were too long and gave no rows."""
        flags = [torch.zeros(0, dtype=torch.uint8), *(self._own(shard, SKIPPED) for shard in self._shards)]
        found: list[int] = torch.cat(flags).nonzero().flatten().tolist()
        return found

    def prompt(self, number: int) -> dict[str, torch.Tensor]:
        """One prompt's rows by value, each ``[positions, ...]``."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"Prompt {number} does not exist; there are {len(self)}.")
        number %= len(self)
        for shard in self._shards:
            if number < shard.prompts:
                return {path: self._split(shard, path)[number] for path in self.values}
            number -= shard.prompts
        raise AssertionError("a prompt is in one of the shards")

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for shard in self._shards:
            columns = [self._split(shard, path) for path in self.values]
            for rows in zip(*columns, strict=True):
                yield dict(zip(self.values, rows, strict=True))

    def __repr__(self) -> str:
        return f"Collected({len(self)} prompts, {sum(shard.rows for shard in self._shards)} rows, {list(self.values)})"

    def _known(self, path: str) -> None:
        if path not in self.values:
            raise KeyError(f"{path!r} was not collected; these were: {list(self.values)!r}")

    @staticmethod
    def _own(shard: Shard, name: str) -> torch.Tensor:
        found = shard.tensor(name)
        assert found is not None
        return found

    def _split(self, shard: Shard, path: str) -> tuple[torch.Tensor, ...]:
        counts: list[int] = self._own(shard, OFFSETS).diff().tolist()
        flat = self._own(shard, path)
        shapes = shard.tensor(path + SHAPES)
        if shapes is None:
            return torch.split(flat, counts)
        sizes = shapes.tolist()
        pieces = torch.split(flat, [math.prod(size) for size in sizes])
        return tuple(piece.view(size) for piece, size in zip(pieces, sizes, strict=True))


def read_index(folder: Path) -> dict[str, Any] | None:
    """A folder's index, or ``None`` where it has none.

    Raises:
        OutputFolderError: It is no collection's index, or a newer format's.
    """
    path = folder / INDEX
    if not path.is_file():
        return None
    try:
        index: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise OutputFolderError(f"{str(path)!r} is no JSON ({error}), so it was not written by a collection.") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise OutputFolderError(f"{str(path)!r} was not written by a collection. Choose another folder.")
    if index["version"] > VERSION:
        raise OutputFolderError(
            f"{str(path)!r} has format version {index['version']} and this package reads up to {VERSION}. "
            f"Update nnterp-vllm."
        )
    return index
