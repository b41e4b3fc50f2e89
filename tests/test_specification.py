"""The specification page runs as it is written, on a trained checkpoint and on a tiny one of another family."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import Engines, stop
from support.page import blocks
from support.scripts import run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "specification.md"
REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
ENGINE = 'dispatch=True, max_model_len=128, distributed_executor_backend="uni"'


@pytest.mark.parametrize("name", ["smollm2", "qwen2"], indirect=True, scope="session")
def test_every_block_of_the_page_runs_and_prints_what_it_shows(name: str, engines: Engines) -> None:
    engines.close()
    namespace: dict[str, Any] = {"__name__": "specification"}
    printed = []
    try:
        for block in blocks(PAGE):
            # transformers has no engine to set up.
            own = {REPO: str(engines.checkpoints[name])}
            if "StandardizedVLLM(" in block.source:
                own["dispatch=True"] = ENGINE
            lines = block.run(namespace, own)
            printed.append(lines)
            assert block.shown, f"{block.name} shows nothing"
            if name == "smollm2":
                assert lines == block.shown, block.name
            else:
                # Another model's numbers and shapes, but as many lines and the same statements.
                assert len(lines) == len(block.shown)
                claims = [word for line in block.shown for word in line.split() if word in ("True", "False", "Unavailable")]
                assert [
                    word for line in lines for word in line.split() if word in ("True", "False", "Unavailable")
                ] == claims
    finally:
        if "model" in namespace:
            stop(namespace["model"])
    _shapes(namespace)


def _claims(lines: list[str]) -> list[str]:
    """What printed lines state whatever the checkpoint."""
    return [word for line in lines for word in line.split() if word in ("True", "False", "Unavailable")]


def _shapes(page: dict[str, Any]) -> None:
    """The axes that the page states, for any checkpoint."""
    model = page["model"]
    seq = len(model.tokenizer(page["prompt"])["input_ids"])
    hidden, heads, kv_heads, width = model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim
    for value in ("x", "attn", "mlp", "out", "stream"):
        assert page[value].shape == (1, seq, hidden), value
    assert page["logits"].shape == page["edited"].shape == (1, 1, model.vocab_size)
    assert (page["x"] + page["attn"] + page["mlp"] - page["out"]).abs().max().item() == 0.0
    assert page["q"].shape == (1, heads, seq, width)
    assert page["k"].shape == page["v"].shape == (1, kv_heads, seq, width)
    assert page["scores"].shape == page["pattern"].shape == (1, heads, seq, seq)
    assert page["heads"].shape == (1, seq, heads, width)
    assert (
        page["shapes"] == [((1, seq, hidden), (1, 1, model.vocab_size))] + [((1, 1, hidden), (1, 1, model.vocab_size))] * 2
    )
    assert not torch.equal(page["edited"], page["clean"])


@pytest.mark.parametrize("name", ["smollm2"], indirect=True, scope="session")
def test_the_front_pages_example_runs(name: str, engines: Engines) -> None:
    engines.close()
    example, generation = blocks(ROOT / "README.md")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        own = {"Qwen/Qwen2.5-0.5B": str(engines.checkpoints[name]), "dispatch=True": ENGINE}
        (line,) = example.run(namespace, own)
        assert generation.run(namespace, own) == []
    finally:
        if "model" in namespace:
            stop(namespace["model"])
    assert line.startswith(" Paris tensor(")
    assert [tuple(stream.shape) for stream in namespace["streams"]] == [(1, 576)] * 10


def test_the_agreement_command_prints_a_table_within_float32(checkpoints: dict[str, Path]) -> None:
    done = run("-m", "nnterp_vllm_core", "agreement", checkpoints["smollm2"], "--layer", "12")
    rows = [line.split() for line in done.stdout.splitlines()]
    values = ["layer_output", "attention_probabilities", "attention_head_outputs", "logits"]
    table = {row[0]: float(row[-1]) for row in rows if row and row[0] in values}
    assert list(table) == values
    assert max(table.values()) <= 1e-5


def test_the_agreement_command_names_a_checkpoint_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nnterp_vllm_core", "agreement", "./nowhere"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("CheckpointNotFound: No checkpoint folder at './nowhere'")
