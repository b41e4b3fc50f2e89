"""The worker finds the plugins again by itself; where it finds others, the driver says so and names both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .installs import Site

PROGRAM = Path(__file__).with_name("mismatch_program.py")


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """What the driver raises in each scenario, from the spawned engine."""
    site = Site(tmp_path_factory.mktemp("site"))
    done = site.run(
        str(PROGRAM),
        str(checkpoints["llama"]),
        str(site.folder),
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        NNTERP_VLLM_BLOCK="nnterp-vllm-llama",  # in the worker too, or it would find the real family there
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    return {line["scenario"]: line for line in lines}


def test_every_refusal_is_raised_in_the_driver_from_the_engines_own_error(refusals: dict[str, dict[str, Any]]) -> None:
    assert [line["error"] for line in refusals.values()] == ["PluginMismatch"] * 5
    assert {line["cause"] for line in refusals.values()} == {"RuntimeError"}


def test_a_plugin_that_the_worker_lacks_is_named_with_what_the_driver_has(refusals: dict[str, dict[str, Any]]) -> None:
    assert refusals["missing"]["text"].startswith(
        "The driver serves model_type 'llama' with toy_llama from toy-llama 1.0; this engine worker cannot: No usable "
        "plugin covers model_type 'llama'"
    )


def test_another_version_in_the_worker_is_named_with_the_drivers(refusals: dict[str, dict[str, Any]]) -> None:
    assert refusals["version"]["text"] == (
        "The driver serves model_type 'llama' with toy_llama from toy-llama 1.0 and this engine worker with toy_llama from "
        "toy-llama 2.0. Install the same version in both environments."
    )


def test_another_module_in_the_worker_is_named_with_the_drivers(refusals: dict[str, dict[str, Any]]) -> None:
    assert refusals["module"]["text"] == (
        "The driver serves model_type 'llama' with toy_llama from toy-llama 1.0 and this engine worker with toy_llama_moved "
        "from toy-llama 1.0. Install the same version in both environments."
    )


def test_another_set_of_value_plugins_in_the_worker_is_named_with_the_drivers(refusals: dict[str, dict[str, Any]]) -> None:
    assert refusals["other plugin"]["text"] == (
        "The driver loads the plugins doubling from doubling 1.0 beside the family and this engine worker none. Install the "
        "same ones in both environments."
    )


def test_a_family_that_the_worker_cannot_import_is_named(refusals: dict[str, dict[str, Any]]) -> None:
    assert refusals["family="]["text"] == (
        "The driver serves model_type 'llama' with only_in_the_driver from no distribution; this engine worker cannot: "
        "family=: plugin module 'only_in_the_driver' cannot be imported: ModuleNotFoundError: No module named "
        "'only_in_the_driver'. Reinstall or remove it, or pass family=."
    )
