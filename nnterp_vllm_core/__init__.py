"""Standardized reading and editing of language models' internals at vLLM's speed.

Importing this package loads neither torch, nnsight nor vLLM; the names below load what they need on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .collect.result import Collected
    from .envoys import AttentionEnvoy, BlockEnvoy, MlpEnvoy
    from .errors import (
        BrokenPlugin,
        CheckpointNotFound,
        CollectionError,
        DeclarationError,
        DuplicateFamily,
        EngineNotInstalled,
        LoadVetoed,
        MainGuardError,
        NnterpVLLMError,
        OutputFolderError,
        PluginMismatch,
        ReadOnlyValue,
        Unavailable,
        UnsupportedEngine,
        UnsupportedFamily,
        UnvalidatedEngine,
    )
    from .model import StandardizedVLLM
    from .transformers_model import StandardizedTransformer

_HOMES = {
    "StandardizedVLLM": "model",
    "StandardizedTransformer": "transformers_model",
    "BlockEnvoy": "envoys",
    "Collected": "collect.result",
    "AttentionEnvoy": "envoys",
    "MlpEnvoy": "envoys",
    **dict.fromkeys(
        (
            "BrokenPlugin",
            "CheckpointNotFound",
            "CollectionError",
            "DeclarationError",
            "DuplicateFamily",
            "EngineNotInstalled",
            "LoadVetoed",
            "MainGuardError",
            "NnterpVLLMError",
            "OutputFolderError",
            "PluginMismatch",
            "ReadOnlyValue",
            "Unavailable",
            "UnsupportedEngine",
            "UnsupportedFamily",
            "UnvalidatedEngine",
        ),
        "errors",
    ),
}

__all__ = [
    "AttentionEnvoy",
    "BlockEnvoy",
    "BrokenPlugin",
    "CheckpointNotFound",
    "Collected",
    "CollectionError",
    "DeclarationError",
    "DuplicateFamily",
    "EngineNotInstalled",
    "LoadVetoed",
    "MainGuardError",
    "MlpEnvoy",
    "NnterpVLLMError",
    "OutputFolderError",
    "PluginMismatch",
    "ReadOnlyValue",
    "StandardizedTransformer",
    "StandardizedVLLM",
    "Unavailable",
    "UnsupportedEngine",
    "UnsupportedFamily",
    "UnvalidatedEngine",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{home}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
