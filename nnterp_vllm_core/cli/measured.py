"""The validation record that comes with the library: what the conformance suite measured, where and with which versions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One line of the record.

    Attributes:
        model_type, variant: The tiny checkpoint.
        engine: ``vllm`` or ``backend``, vLLM's Transformers backend.
        vllm, device, dtype, date: Where and when.
        gap: The largest difference from transformers in float32 among all values, relative to the value's largest magnitude.
        note: Options of the engine, or why this checkpoint is held to a wider bound.
    """

    HEADS: ClassVar[tuple[str, ...]] = (
        "model type",
        "variant",
        "engine",
        "vLLM",
        "device",
        "dtype",
        "date",
        "largest gap",
        "note",
    )

    model_type: str
    variant: str
    engine: str
    vllm: str
    device: str
    dtype: str
    date: str
    gap: float
    note: str

    def cells(self) -> tuple[str, ...]:
        """The line under `HEADS`."""
        place = (self.model_type, self.variant or "-", self.engine, self.vllm, self.device, self.dtype, self.date)
        return (*place, f"{self.gap:.0e}", self.note)


@cache
def measured() -> dict[str, tuple[Measured, ...]]:
    """The record's lines by model type."""
    found: dict[str, list[Measured]] = {}
    for line in json.loads(files("nnterp_vllm_core").joinpath("validation.json").read_text(encoding="utf-8")):
        kept = {name: str(line.get(name) or "") for name in ("variant", "engine", "vllm", "device", "dtype", "date", "note")}
        one = Measured(model_type=line["model_type"], gap=max(line["gaps"].values()), **kept)
        found.setdefault(one.model_type, []).append(one)
    return {name: tuple(lines) for name, lines in found.items()}
