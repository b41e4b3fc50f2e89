"""The example does what the front page says, on the trained model and on any other checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.scripts import TESTS, run

pytestmark = pytest.mark.alone
QUICKSTART = TESTS.parent / "examples" / "quickstart.py"


@pytest.mark.parametrize(
    ("checkpoint", "family", "token"),
    [("smollm2", "llama", "' Paris'"), ("qwen2", "qwen2", r"'.*'"), ("gpt2", "gpt2", r"'.*'")],
)
def test_the_quick_start_reads_edits_and_prints_a_closed_identity(
    checkpoints: dict[str, Path], checkpoint: str, family: str, token: str
) -> None:
    shown = run(QUICKSTART, checkpoints[checkpoint]).stdout
    assert f"nnterp_vllm_families.{family}\n" in shown
    assert re.search(rf"the next token is {token}\n", shown)
    identity = re.search(r"layer_output\| <= (\S+)\n", shown)
    assert identity is not None
    # GPT-2's block adds the same three in another order, so the last bit may differ; a fused block adds in this one.
    assert float(identity[1]) <= (1e-5 if checkpoint == "gpt2" else 0.0)
    moved = re.search(r"logits move by up to (\d+\.\d+)", shown)
    assert moved is not None
    assert float(moved[1]) > 0.1
    assert len(shown.splitlines()) < 25  # the engine's own log stays out of sight
