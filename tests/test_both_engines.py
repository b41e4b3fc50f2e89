"""Every experiment of a researcher gives the same numbers on vLLM, on its Transformers backend and on transformers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.blocks import FLOAT32
from support.oracle import gap
from support.researcher_blocks import BLOCKS, PROMPTS

NAMES = ("qwen2", "llama", "gpt2")
#: vLLM's backend runs what transformers can hand its attention over to; GPT-2's attention reads its mask by itself.
BACKEND = ("qwen2", "llama")
TESTS = Path(__file__).resolve().parent

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def elsewhere(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """What the blocks give on an engine that has a process of its own; both start at once and run beside this one."""
    folder = tmp_path_factory.mktemp("blocks")
    started = {
        engine: _start(engine, folder / f"{engine}.pt", {name: checkpoints[name] for name in names})
        for engine, names in (("transformers", NAMES), ("backend", BACKEND))
    }
    found: dict[str, Results] = {}

    def get(engine: str) -> Results:
        if engine not in found:
            output, _ = started[engine].communicate(timeout=300)
            assert started[engine].returncode == 0, output[-6000:]
            found[engine] = torch.load(folder / f"{engine}.pt")
        return found[engine]

    return get


def _start(engine: str, out: Path, named: dict[str, Path]) -> subprocess.Popen[str]:
    arguments = [engine, str(out), *(f"{name}={path}" for name, path in named.items())]
    return subprocess.Popen(
        [sys.executable, "-m", "support.run_blocks", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal keys, shapes and whole numbers, and real numbers within float32's rounding."""
    assert not isinstance(ours, str), ours
    assert not isinstance(theirs, str), theirs
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        if value.is_floating_point():
            assert gap(value, theirs[key]) <= FLOAT32, (key, gap(value, theirs[key]))
        else:
            assert torch.equal(value, theirs[key]), key


@pytest.mark.parametrize("name", NAMES, scope="session")
@pytest.mark.parametrize("block", BLOCKS)
def test_vllm_agrees_with_transformers(name: str, block: str, engines: Any, elsewhere: Callable[[str], Results]) -> None:
    ours = BLOCKS[block](engines.get(name), PROMPTS)
    assert_same(ours, elsewhere("transformers")[name][block])


@pytest.mark.parametrize("name", BACKEND)
@pytest.mark.parametrize("block", BLOCKS)
def test_vllms_transformers_backend_agrees_with_transformers(
    name: str, block: str, elsewhere: Callable[[str], Results]
) -> None:
    assert_same(elsewhere("backend")[name][block], elsewhere("transformers")[name][block])
