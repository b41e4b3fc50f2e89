"""Checkpoints are made once, engines run in this process one at a time, references come from transformers."""

from __future__ import annotations

import os

# vLLM reads these when it is imported or when an engine is built; set from outside, they win.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# Read when vLLM is imported, and needed by an engine with taps in this process; others record no graphs.
os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engines import Engines
from support.oracle import Oracle

from nnterp_vllm_core.testing.checkpoints import GPT2_SIZES, SIZES, tiny

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ("qwen2", "llama", "gpt2")
PROMPT = "The Eiffel Tower is in the city of"


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny random checkpoints by name, and SmolLM2, a trained one."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        "qwen2": tiny("qwen2", folder / "qwen2", **SIZES),
        "llama": tiny("llama", folder / "llama", **SIZES, head_dim=32),
        "gpt2": tiny("gpt2", folder / "gpt2", **GPT2_SIZES),
        "smollm2": smollm2(),
    }


def smollm2() -> Path:
    """SmolLM2-135M in the repository's cache, fetched from the package index on first use."""
    spec = importlib.util.spec_from_file_location("smollm2", ROOT / "scripts" / "smollm2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder: Path = module.ensure()
    return folder


@pytest.fixture(scope="session")
def oracles(checkpoints: dict[str, Path]) -> Callable[[str], Oracle]:
    """A checkpoint under transformers, loaded once."""
    loaded: dict[str, Oracle] = {}

    def get(name: str) -> Oracle:
        if name not in loaded:
            loaded[name] = Oracle(checkpoints[name])
        return loaded[name]

    return get


@pytest.fixture(scope="session")
def engines(checkpoints: dict[str, Path]) -> Iterator[Engines]:
    """The one engine of this process."""
    house = Engines(checkpoints)
    yield house
    house.close()


@pytest.fixture(scope="session", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    """A checkpoint's name. Session-scoped, so that pytest runs all tests of one checkpoint one after another."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def model(name: str, engines: Engines) -> Any:
    """The running engine of the test's checkpoint."""
    return engines.get(name)


@pytest.fixture
def oracle(name: str, oracles: Callable[[str], Oracle]) -> Oracle:
    """transformers on the test's checkpoint."""
    return oracles(name)


@pytest.fixture
def prompt() -> str:
    """The text that most tests run."""
    return PROMPT
