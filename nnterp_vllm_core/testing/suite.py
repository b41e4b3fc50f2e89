"""`ConformanceSuite`: subclass it, name a ``model_type`` and a tiny config, and pytest checks the family.

Each test is a promise that the core makes about every family. The class builds a tiny random checkpoint, has transformers
run it in another process, loads it once per engine and checks everything on that one load.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from packaging.specifiers import SpecifierSet

from ..engine import engine_version
from ..family import Family
from .promises_requests import RequestPromises
from .promises_values import ValuePromises
from .promises_writes import WritePromises


class ConformanceSuite(ValuePromises, WritePromises, RequestPromises):
    """The promises of one family, on vLLM's own implementation, on its Transformers backend and on transformers.

    Attributes:
        model_type: As ``config.json`` spells it; the installed family that covers it is tested.
        config: What the tiny checkpoint's config says. Heads have to be 32 wide or more, for vLLM's CPU attention.
        variants: Name to what differs from ``config``; each is a checkpoint of its own and runs the checks of values.
        family: A family's dotted module name or a `Family`, instead of the installed plugin.
        engines: ``"vllm"`` (its own implementation) and ``"backend"`` (its Transformers backend). Left empty, the
            first where the installed vLLM has the declared module, the second where transformers' side is declared.
        needs: Modules that vLLM's implementations import and that an environment may lack; without them only transformers'
            side is checked, and the summary says so.
        no_backend: Why vLLM's Transformers backend cannot run this model; the summary repeats it. Or a mapping from the
            versions of vLLM where it cannot to the reason: ``{"<0.32": "it does not load ..."}``.
        no_vllm: Versions of vLLM whose own implementation cannot run this model, to the reason; the summary repeats it.
            Where there never was one, `engines` says so.
        tolerances: Value name, or ``"*"`` for all, to ``(bound, reason)``, where 1e-5 does not hold on vLLM's own
            implementation; ``"backend:mlp_output"`` and ``"backend:*"`` are for the backend. ``"together:mlp_output"``
            and ``"together:backend:mlp_output"`` are for requests that run together, compared with their solo runs. The
            smallest that holds, measured, with its cause.
        no_identity: Why contributions do not add up to the stream in this architecture.
        checkpoint: More arguments of `checkpoints.tiny`.
        engine_options: More arguments of `StandardizedVLLM`.
        reference_attention: transformers' attention implementation for the reference; anything but ``"eager"`` gives no
            patterns to compare with.
    """

    model_type: ClassVar[str]
    config: ClassVar[Mapping[str, Any]]
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    family: ClassVar[str | Family | None] = None
    engines: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    no_backend: ClassVar[str | Mapping[str, str]] = ""
    no_vllm: ClassVar[Mapping[str, str]] = {}
    tolerances: ClassVar[Mapping[str, tuple[float, str]]] = {}
    no_identity: ClassVar[str] = ""
    checkpoint: ClassVar[Mapping[str, Any]] = {}
    engine_options: ClassVar[Mapping[str, Any]] = {}
    reference_attention: ClassVar[str] = "eager"

    @classmethod
    def runs_on(cls) -> tuple[str, ...]:
        """The engines to test, without importing vLLM."""
        if cls.lacks():
            return ()
        left_out = {"vllm": cls.without_vllm(), "backend": cls.without_backend()}
        if cls.engines:
            return tuple(engine for engine in cls.engines if not left_out[engine])
        from .. import loader

        plugin = loader.find(cls.model_type) if cls.family is None else loader.override(cls.family, cls.model_type)
        native = any(_is_there(one.source) for one in plugin.family.native)
        there = {"vllm": native, "backend": plugin.family.transformers is not None}
        return tuple(engine for engine in there if there[engine] and not left_out[engine])

    @classmethod
    def without_backend(cls) -> str:
        """Why the installed vLLM's Transformers backend is left out; empty where it is not."""
        return cls.no_backend if isinstance(cls.no_backend, str) else _for_installed(cls.no_backend)

    @classmethod
    def without_vllm(cls) -> str:
        """Why the installed vLLM's own implementation is left out; empty where it is not."""
        return _for_installed(cls.no_vllm)

    @classmethod
    def lacks(cls) -> tuple[str, ...]:
        """The needed modules that are not installed."""
        return tuple(name for name in cls.needs if importlib.util.find_spec(name) is None)


def _for_installed(reasons: Mapping[str, str]) -> str:
    """The reasons of those versions that the installed vLLM is among."""
    installed = engine_version()
    return "; ".join(
        reason
        for versions, reason in reasons.items()
        if installed is not None and SpecifierSet(versions).contains(installed, prereleases=True)
    )


def _is_there(module: str) -> bool:
    """Whether a module's file exists, without importing its package."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return False
    return any(Path(folder, *rest).with_suffix(".py").is_file() for folder in spec.submodule_search_locations)
