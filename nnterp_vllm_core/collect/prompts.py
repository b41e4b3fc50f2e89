"""Prompts on their way to the engine: read as they come, turned into token ids, counted, hashed."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .selection import EACH, Positions

#: Prompts that are read and tokenized together.
TOGETHER = 64


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, checked.

    Attributes:
        number: Its place among all prompts.
        ids: Its token ids.
        digest: The hash of all prompts up to it, masks included.
        rows: How many rows it gives; 0 for one that is skipped.
        own: Its own positions, where every prompt has its own.
        skipped: Whether it is too long and was asked to be skipped.
    """

    number: int
    ids: list[int]
    digest: str
    rows: int
    own: list[int] | None
    skipped: bool


class Prompts:
    """An iterable of prompts as a stream of checked ones.

    Args:
        given: Strings, or sequences of token ids, or mappings with one of them under ``input_ids`` or ``prompt``.
        tokenizer: Encodes strings, as the engine does.
        positions: What is wanted of each.
        room: Tokens that a prompt may have.
        skip: Whether longer prompts are skipped instead of refused.
    """

    def __init__(self, given: Iterable[Any], tokenizer: Any, positions: Positions, room: int, skip: bool) -> None:
        if isinstance(given, str | bytes | Mapping):
            raise TypeError(f"prompts= is an iterable of prompts, not one {type(given).__name__}; write [prompt].")
        self._given = iter(given)
        self._tokenizer = tokenizer
        self._positions = positions
        self._room = room
        self._skip = skip
        self._hash = hashlib.sha256()
        self._number = 0  # of the next prompt to hand out
        self._read = 0  # prompts that were read and hashed

    def pass_over(self, count: int) -> Iterator[tuple[int, str]]:
        """Hash the next ``count`` prompts without tokenizing them; yields ``(prompts so far, hash)`` after each."""
        for given in islice(self._given, count):
            self._hashed(given)
            self._number = self._read
            yield self._number, self._hash.hexdigest()

    def __iter__(self) -> Iterator[Prompt]:
        while batch := list(islice(self._given, TOGETHER)):
            hashed = [(self._hashed(given), self._hash.hexdigest()) for given in batch]
            encoded = self._encoded([content for (content, _), _ in hashed])
            for ids, ((_, mask), digest) in zip(encoded, hashed, strict=True):
                yield self._checked(ids, mask, digest)
                self._number += 1

    def _hashed(self, given: Any) -> tuple[str | list[int], list[bool] | None]:
        content = plain(given, self._read)
        mask = self._positions.mask(self._read) if self._positions.mode == EACH else None
        kind, raw = (b"t", content.encode()) if isinstance(content, str) else (b"i", array("q", content).tobytes())
        self._hash.update(kind + len(raw).to_bytes(8, "little") + raw)
        if mask is not None:
            self._hash.update(b"m" + len(mask).to_bytes(8, "little") + bytes(mask))
        self._read += 1
        return content, mask

    def _encoded(self, contents: list[str | list[int]]) -> list[list[int]]:
        texts = [content for content in contents if isinstance(content, str)]
        found = iter(self._tokenizer(texts)["input_ids"] if texts else ())
        return [next(found) if isinstance(content, str) else content for content in contents]

    def _checked(self, ids: list[int], mask: list[bool] | None, digest: str) -> Prompt:
        number, tokens = self._number, len(ids)
        if not tokens:
            raise ValueError(f"Prompt {number} has no tokens, so the engine has nothing to compute.")
        if tokens > self._room:
            if self._skip:
                return Prompt(number, ids, digest, 0, None, True)
            raise ValueError(
                f"Prompt {number} has {tokens} tokens and this engine has room for {self._room}. Raise max_model_len, or "
                f"pass too_long='skip' to record it without rows."
            )
        rows, own = self._positions.count(number, tokens, mask)
        return Prompt(number, ids, digest, rows, own, False)


def plain(given: Any, number: int) -> str | list[int]:
    """A prompt as a string or a list of token ids.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(given, Mapping):
        for key in ("input_ids", "prompt_token_ids", "prompt"):
            if key in given:
                return plain(given[key], number)
    if hasattr(given, "tolist"):
        given = given.tolist()
    if isinstance(given, str):
        return given
    if isinstance(given, Sequence) and all(isinstance(one, int) for one in given):
        return list(given)
    raise TypeError(f"Prompt {number} is a {type(given).__name__}; give a string or a flat sequence of token ids.")
