"""Installing and using us changes nothing for anybody else's engine in the environment, the process included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .installs import Site

PROGRAM = Path(__file__).with_name("bystander_program.py")


def seen(site: Site, checkpoint: Path, how: str, spawned: str) -> dict[str, Any]:
    """What the program saw."""
    done = site.run(str(PROGRAM), str(checkpoint), how, VLLM_ENABLE_V1_MULTIPROCESSING=spawned, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> dict[str, Any]:
    """A plain engine in a process that never asks for us, although we are installed."""
    return seen(Site(tmp_path_factory.mktemp("site")), checkpoints["llama"], "alone", "0")


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> dict[str, Any]:
    """A plain engine beside a running engine of ours, in one process."""
    return seen(Site(tmp_path_factory.mktemp("site")), checkpoints["llama"], "beside", "1")


def test_a_plain_engine_does_not_import_us(alone: dict[str, Any]) -> None:
    assert alone["ours imported"] == []


def test_a_plain_engine_beside_ours_generates_the_same_bits(alone: dict[str, Any], beside: dict[str, Any]) -> None:
    """Token ids and log probabilities, compared exactly: nothing of the computation may differ."""
    assert beside["generated"] == alone["generated"]
    assert [len(tokens) for tokens, _ in alone["generated"]] == [8, 8, 8]


def test_our_engine_goes_on_beside_a_plain_one(beside: dict[str, Any]) -> None:
    assert beside["ours is alive"]


def test_no_function_or_class_of_theirs_is_replaced_and_none_is_ours(beside: dict[str, Any]) -> None:
    assert beside["looked at"] > 10_000
    assert beside["changed"] == []
    assert beside["planted"] == []
