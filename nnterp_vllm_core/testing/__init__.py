"""What a family plugin needs to test itself against the engine and against transformers.

A plugin's whole test is one class::

    from nnterp_vllm_core.testing import ConformanceSuite

    class TestToy(ConformanceSuite):
        model_type = "toy"
        config = dict(hidden_size=128, num_hidden_layers=4, ...)

Importing this package loads neither torch, transformers nor vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoints import GPT2_SIZES, SIZES, tiny
    from .suite import ConformanceSuite

__all__ = ["GPT2_SIZES", "SIZES", "ConformanceSuite", "tiny"]

_HOMES = {"ConformanceSuite": "suite", "GPT2_SIZES": "checkpoints", "SIZES": "checkpoints", "tiny": "checkpoints"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{home}", __name__), name)
