"""Two ranks serve whole values and take whole writes: both equal the single rank's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.blocks import FLOAT32
from support.engines import Engines, on_two_ranks
from support.oracle import gap
from support.scripts import TESTS, run
from support.survey import survey

from nnterp_vllm_core.testing.checkpoints import SIZES, tiny

#: ``one_kv`` has fewer key/value heads than ranks: each rank then holds a copy of the one.
CHECKPOINTS = ("qwen2", "gpt2", "one_kv")


@pytest.fixture(scope="session")
def sharded(
    checkpoints: dict[str, Path], engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, torch.Tensor]]:
    """The survey of each checkpoint on two ranks, each with one core."""
    out = tmp_path_factory.mktemp("two-ranks")
    checkpoints["one_kv"] = tiny("llama", out / "one_kv", **{**SIZES, "num_key_value_heads": 1, "head_dim": 32})
    script = TESTS / "scripts" / "two_ranks.py"
    run(script, out, *(checkpoints[name] for name in CHECKPOINTS), VLLM_CPU_OMP_THREADS_BIND="0|1")
    return {name: torch.load(out / f"{name}.pt") for name in CHECKPOINTS}


@on_two_ranks
@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True, scope="session")
def test_every_value_and_every_write_equals_the_single_ranks(
    name: str, sharded: dict[str, dict[str, torch.Tensor]], engines: Engines, prompt: str
) -> None:
    single = survey(engines.get(name), prompt)
    assert sharded[name].keys() == single.keys()
    # Two ranks sum the halves of a matrix product apart, so the order of float32 sums differs.
    gaps = {key: gap(value, single[key]) for key, value in sharded[name].items()}
    assert {key: found for key, found in gaps.items() if found > FLOAT32} == {}
