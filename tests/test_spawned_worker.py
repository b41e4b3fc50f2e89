"""With its worker in another process the engine does what it does in this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.blocks import FLOAT32, as_in_any_batch
from support.oracle import Oracle, gap
from support.scripts import TESTS, run
from support.shared import VARIABLE, own_folder

from nnterp_vllm_core.worker.shared_memory import common_memory

on_qwen2 = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")


def spawned(checkpoint: Path, out: Path, **environment: str) -> dict[str, Any]:
    """What the script of a spawned worker found, its large saves, and what its processes left in the shared memory."""
    with own_folder() as folder:
        run(TESTS / "scripts" / "spawned.py", checkpoint, out, **{VARIABLE: str(folder)}, **environment)
        found: dict[str, Any] = json.loads(out.read_text())
        found["left"] = [path.name for path in folder.iterdir()]
    found["states"] = [tensor for states in torch.load(f"{out}.pt") for tensor in states]
    return found


@pytest.fixture(scope="session")
def answers(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found on this host."""
    return spawned(checkpoints["qwen2"], tmp_path_factory.mktemp("spawned") / "answers.json")


def test_a_tree_that_cannot_be_built_ends_the_start_of_the_engine(answers: dict[str, Any]) -> None:
    assert "declares the vLLM blocks GPT2Block" in answers["refused"]["text"]
    assert answers["refused"]["started"] == 1
    assert answers["refused"]["alive"] == [False]


@on_qwen2
def test_blocks_run_in_the_worker_and_give_transformers_values(answers: dict[str, Any], oracle: Oracle, prompt: str) -> None:
    assert answers["worker"] != answers["driver"]
    assert gap(torch.tensor(answers["logits"]), oracle(prompt)["logits"][0, 0]) <= FLOAT32


def test_the_users_names_and_envoys_reach_the_worker(answers: dict[str, Any]) -> None:
    assert answers["user's envoy"] is True
    assert answers["user's name"][-1] == 128


def test_an_error_and_a_stop_leave_the_engine_alive(answers: dict[str, Any]) -> None:
    assert answers["error"] == "LookupError: the user's own words"
    assert answers["alive"] is True


def test_an_all_layers_loop_ships_the_same_each_time(answers: dict[str, Any]) -> None:
    first, *later = answers["shipped"]
    assert later == [first, first]
    assert first < 1000


def test_a_generation_that_stops_at_a_string_has_the_rows_of_its_tokens(answers: dict[str, Any]) -> None:
    stopped = answers["stopped"]
    assert 1 < stopped["tokens"] < 12
    assert stopped["rows"] == stopped["tokens"] - 1
    assert stopped["same rows"]
    assert stopped["same mean"]
    (told,) = stopped["warnings"]
    assert "a block may see more steps than there are tokens" in told
    assert "stop_token_ids=" in told


@pytest.mark.skipif(common_memory() is None, reason="this host has no /dev/shm")
def test_large_saves_come_through_shared_memory_and_leave_nothing_there(answers: dict[str, Any]) -> None:
    large = answers["large"]
    assert large["beside"]
    assert sum(message for _, message in large["beside"]) < large["bytes"] / 10
    assert large["equal"]
    assert large["own memory"]
    assert large["left"] == []
    assert answers["left"] == []


def test_without_shared_memory_the_same_values_come_in_the_message(
    checkpoints: dict[str, Path], answers: dict[str, Any], tmp_path: Path
) -> None:
    found = spawned(checkpoints["qwen2"], tmp_path / "answers.json", NNTERP_VLLM_SHARED_MEMORY="0")
    assert found["large"]["beside"] == []
    assert len(found["states"]) == 24
    for ours, theirs in zip(found["states"], answers["states"], strict=True):
        assert as_in_any_batch(ours, theirs)


@on_qwen2
def test_a_streaming_engine_delivers_values_on_the_finished_output(
    checkpoints: dict[str, Path], oracle: Oracle, prompt: str, tmp_path: Path
) -> None:
    run(TESTS / "scripts" / "streaming.py", checkpoints["qwen2"], tmp_path / "answers.json")
    found = json.loads((tmp_path / "answers.json").read_text())
    seq = len(oracle.tokenizer(prompt)["input_ids"])
    assert found["tokens"] == 3
    assert found["stream"] == [1, seq, 128]

    def halved(t: torch.Tensor) -> torch.Tensor:
        t[:, -1] *= 0.5
        return t

    reference = oracle(prompt, {"layers.1.layer_output": halved})
    assert gap(torch.tensor(found["logits"]), reference["logits"][0, 0]) <= FLOAT32
