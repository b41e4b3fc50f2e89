"""Every error this library raises on purpose, named for the mistake it reports.

Messages follow one pattern: what, what was observed, what was expected or is available, one way out.
"""

from __future__ import annotations


class NnterpVLLMError(Exception):
    """The base of the errors below, so that one ``except`` catches them all."""


class DeclarationError(NnterpVLLMError, ValueError):
    """A family's declaration contradicts itself; raised where it is written."""


class UnsupportedFamily(NnterpVLLMError, LookupError):
    """No installed plugin covers the checkpoint's ``model_type``."""


class DuplicateFamily(NnterpVLLMError, LookupError):
    """Two installed distributions claim one ``model_type``."""


class BrokenPlugin(NnterpVLLMError, ImportError):
    """The plugin that a model needs cannot be imported or breaks the hook contract."""


class PluginMismatch(NnterpVLLMError, RuntimeError):
    """The driver and the engine's worker do not hold the same plugin or core."""


class LoadVetoed(NnterpVLLMError, RuntimeError):
    """An installed plugin refuses to let this model be loaded; its reason is attached."""


class UnvalidatedEngine(UserWarning):
    """The installed vLLM is outside the range that the family was tested with."""


class CheckpointNotFound(NnterpVLLMError, FileNotFoundError):
    """The repo id or path names no checkpoint that can be read here."""


class EngineNotInstalled(NnterpVLLMError, ImportError):
    """vLLM is an extra of this distribution and none is installed."""


class UnsupportedEngine(NnterpVLLMError, NotImplementedError):
    """An engine option, runner or platform that standard values cannot be served on."""


class MainGuardError(NnterpVLLMError, RuntimeError):
    """A script builds the engine at import time, so vLLM's spawned worker would build it again."""


class Unavailable(NnterpVLLMError, RuntimeError):
    """A standard value that this model, engine or step cannot serve; the message says why.

    Not an `AttributeError`: an envoy would swallow that and blame the attribute's spelling.
    """


class ReadOnlyValue(NnterpVLLMError, TypeError):
    """An edit of a value that is computed beside the model, so the edit could reach nothing."""


class OutputFolderError(NnterpVLLMError, OSError):
    """A folder that a collection cannot write to, or that holds another run."""


class CollectionError(NnterpVLLMError, RuntimeError):
    """A collection that failed in the engine's worker; the message has the worker's own words."""
