"""Engines in this process, one at a time: four seconds a model instead of twenty for a spawned worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nnterp_vllm_core.testing.engines import share_of_a_card, stop

#: What every engine of the suite is built with. Short sequences keep the cache of a tiny model small.
OPTIONS: dict[str, Any] = {
    "dispatch": True,
    "dtype": "float32",
    "max_model_len": 128,
    "distributed_executor_backend": "uni",
    **share_of_a_card(),
}

__all__ = ["OPTIONS", "Engines", "on_two_ranks", "start", "stop"]

#: Two ranks are two processes on a CPU, and two devices on CUDA.
on_two_ranks = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="this host has one CUDA device, two ranks need two")


def start(checkpoint: Path, **options: Any) -> Any:
    """A dispatched model whose engine runs in this process."""
    from nnterp_vllm_core import StandardizedVLLM

    return StandardizedVLLM(str(checkpoint), **{**OPTIONS, **options})


class Engines:
    """The one engine that is open. Asking for another model ends it first.

    vLLM keeps the process group and much else in globals, so two engines in one process would share them.
    """

    def __init__(self, checkpoints: dict[str, Path]) -> None:
        self.checkpoints = checkpoints
        self._key: Any = None
        self._model: Any = None

    def get(self, name: str, **options: Any) -> Any:
        """The engine of a checkpoint under these options, kept while the same is asked for again."""
        key = (name, tuple(sorted(options.items())))
        if key != self._key:
            self.close()
            self._model = start(self.checkpoints[name], **options)
            self._key = key
        return self._model

    def close(self) -> None:
        """End the open engine, if any."""
        if self._model is not None:
            stop(self._model)
        self._key = self._model = None
