"""The specification page runs as it is written, on a trained checkpoint and on a tiny one of another family."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import OPTIONS, Engines, stop
from support.page import blocks
from support.scripts import run

from nnterp_vllm_core.protocol import VALUES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "specification.md"
REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
#: What the command compares: a block's values, less the scores, and the logits.
COMPARED = [name for name, value in VALUES.items() if value.host != "model" and name != "attention_scores"] + ["logits"]
#: What the page leaves to the user: a small engine in this process.
ENGINE = ", ".join(f"{name}={value!r}" for name, value in OPTIONS.items() if name != "dtype")


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
                assert [_anywhere(line) for line in lines] == block.shown, block.name
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


def _anywhere(line: str) -> str:
    """A printed line without the device of a tensor, which torch names where it is not the CPU."""
    return re.sub(r", device='cuda:\d+'", "", line)


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


@pytest.mark.alone
def test_the_agreement_command_prints_a_table_within_float32(checkpoints: dict[str, Path]) -> None:
    done = run("-m", "nnterp_vllm_core", "agreement", checkpoints["smollm2"], "--layer", "12")
    table = {row[0]: float(row[-1]) for row in map(str.split, done.stdout.splitlines()) if row and row[0] in COMPARED}
    assert list(table) == COMPARED
    assert max(table.values()) <= 1e-5


@pytest.mark.alone
def test_in_bfloat16_the_command_shows_what_transformers_itself_loses(checkpoints: dict[str, Path]) -> None:
    done = run("-m", "nnterp_vllm_core", "agreement", checkpoints["qwen2"], "--dtype", "bfloat16")
    rows = [row for row in map(str.split, done.stdout.splitlines()) if row and row[0] in COMPARED]
    assert [row[0] for row in rows] == COMPARED
    for name, *_, ours, own in rows:
        # One rounding to bfloat16 is off by 2^-9 of a number; neither side may be exact nor lose the first digits.
        assert 1e-4 < float(ours) < 0.1, name
        assert 1e-4 < float(own) < 0.1, name


def test_the_agreement_command_refuses_a_precision_that_it_does_not_know(checkpoints: dict[str, Path]) -> None:
    for options in (
        ("--dtype", "int8"),
        ("--dtype", "bfloat16", "--engine", "transformers"),
        ("--float32-products", "fp8"),
    ):
        done = run("-m", "nnterp_vllm_core", "agreement", checkpoints["qwen2"], *options, check=False)
        assert done.returncode == 2
        assert options[0] in done.stderr


def test_the_agreement_command_names_a_checkpoint_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nnterp_vllm_core", "agreement", "./nowhere"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("CheckpointNotFound: No checkpoint folder at './nowhere'")
