"""Opening a model: what can be read before an engine runs, what is refused and in which words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.blocks import FLOAT32, GREEDY
from support.engines import Engines
from support.oracle import Oracle, gap

import nnterp_vllm_families.qwen2 as qwen2_plugin
from nnterp_vllm_core import (
    BrokenPlugin,
    CheckpointNotFound,
    MlpEnvoy,
    StandardizedVLLM,
    UnsupportedEngine,
    UnsupportedFamily,
)

on_qwen2 = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")
SIZES = {
    "qwen2": {"num_layers": 4, "hidden_size": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "vocab_size": 512},
    "llama": {"num_layers": 4, "hidden_size": 128, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "vocab_size": 512},
    "gpt2": {"num_layers": 4, "hidden_size": 128, "num_heads": 4, "num_kv_heads": 4, "head_dim": 32, "vocab_size": 512},
    "smollm2": {
        "num_layers": 30,
        "hidden_size": 576,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
    },
}
WIDTHS = {"qwen2": 256, "llama": 256, "gpt2": 512, "smollm2": 1536}


@pytest.mark.parametrize("checkpoint", SIZES)
def test_family_and_sizes_are_there_without_an_engine(engines: Engines, checkpoint: str) -> None:
    engines.close()
    model = StandardizedVLLM(str(engines.checkpoints[checkpoint]), dtype="float32", max_model_len=128)
    assert model.vllm_entrypoint is None
    assert model.family.__name__ == f"nnterp_vllm_families.{'llama' if checkpoint == 'smollm2' else checkpoint}"
    assert {name: getattr(model, name) for name in SIZES[checkpoint]} == SIZES[checkpoint]
    assert model.intermediate_size == WIDTHS[checkpoint]
    assert "layers.*.layer_output" in model.support().served


# --- refused before anything is loaded --------------------------------------------------------------------------------


def folder_with(path: Path, config: dict[str, Any]) -> str:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_an_unknown_model_type_lists_what_is_installed_and_names_the_distribution(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFamily) as caught:
        StandardizedVLLM(folder_with(tmp_path / "new", {"model_type": "brand_new"}))
    message = str(caught.value)
    assert "model_type 'brand_new'" in message
    assert re.search(r"installed: .*gpt2.*llama.*qwen2", message)
    assert "pip install nnterp-vllm-brand-new" in message
    assert "family=" in message


def test_a_config_without_a_model_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFamily, match="transformers cannot read its config"):
        StandardizedVLLM(folder_with(tmp_path / "empty", {"hidden_size": 4}))


@pytest.mark.parametrize("missing", ["./nowhere", "~/nowhere/at/all", "{}/nowhere", "a/b/c"])
def test_a_path_that_does_not_exist_is_called_a_path(tmp_path: Path, missing: str) -> None:
    with pytest.raises(CheckpointNotFound, match=r"No checkpoint folder at .*nowhere|No checkpoint folder at 'a/b/c'"):
        StandardizedVLLM(missing.format(tmp_path))


def test_a_folder_without_a_config_lists_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_text("")
    with pytest.raises(CheckpointNotFound, match=r"holds no config\.json; its files are \['weights\.bin'\]"):
        StandardizedVLLM(str(tmp_path))


def test_a_repo_that_cannot_be_reached_names_the_switch() -> None:
    with pytest.raises(CheckpointNotFound, match=r"'no-such/repo' is no folder here and no repo .*HF_HUB_OFFLINE"):
        StandardizedVLLM("no-such/repo")


def test_attn_implementation_is_transformers_own(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(TypeError, match=r"no attn_implementation=: vLLM's .* kernels are its own.*attention_backend="):
        StandardizedVLLM(str(checkpoints["qwen2"]), attn_implementation="eager")


def test_pipeline_parallelism_is_refused_with_the_other_kind(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedEngine, match=r"pipeline_parallel_size=2: .*tensor_parallel_size"):
        StandardizedVLLM(str(checkpoints["qwen2"]), pipeline_parallel_size=2)


def test_the_second_model_runner_is_refused_by_its_switch(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(UnsupportedEngine, match=r"VLLM_USE_V2_MODEL_RUNNER='1' selects vLLM's V2 model runner.*Unset it"):
        StandardizedVLLM(str(checkpoints["qwen2"]), dispatch=True)


# --- family=, rename=, envoys= ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family",
    [qwen2_plugin, "nnterp_vllm_families.qwen2", qwen2_plugin.nnterp_vllm_families()[0]],
    ids=["module", "dotted name", "Family"],
)
def test_a_family_can_be_given_in_three_forms(engines: Engines, oracles: Any, prompt: str, family: Any) -> None:
    engines.close()
    from support.engines import start, stop

    model = start(engines.checkpoints["qwen2"], family=family)
    try:
        with model.trace(prompt, **GREEDY):
            stream = model.layers[1].layer_output.save()
    finally:
        stop(model)
    assert gap(stream, oracles("qwen2")(prompt)["layers.1.layer_output"]) <= FLOAT32


def test_a_family_module_that_does_not_import_names_its_cause(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(BrokenPlugin, match=r"'no_such_module' cannot be imported: ModuleNotFoundError"):
        StandardizedVLLM(str(checkpoints["qwen2"]), family="no_such_module")


def test_a_family_whose_block_is_not_the_models_says_which_it_found(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedEngine, match=r"Qwen2DecoderLayer.*LlamaDecoderLayer"):
        StandardizedVLLM(str(checkpoints["llama"]), family=qwen2_plugin.nnterp_vllm_families()[0], dtype="float32")


class Doubled(MlpEnvoy):
    """A user's own envoy over a module that the family describes."""

    @property
    def doubled(self) -> torch.Tensor:
        """Twice the contribution."""
        return self.mlp_output * 2


@on_qwen2
def test_the_users_names_and_envoys_stand_beside_the_familys(engines: Engines, oracle: Oracle, prompt: str) -> None:
    engines.close()
    from support.engines import start, stop

    model = start(
        engines.checkpoints["qwen2"],
        rename={"model.norm": "last_norm", "model.layers": "blocks"},
        envoys={"model.model.layers.*.mlp": Doubled},
    )
    try:
        assert model.blocks[1] is model.layers[1]
        with model.trace(prompt, **GREEDY):
            model.steer(0, torch.ones(128))
            steered = model.blocks[0].layer_output.save()
        with model.trace(prompt, **GREEDY):
            stream = model.layers[1].layer_input.save()
            doubled = model.layers[1].mlp.doubled.save()
            entering = model.last_norm.input.save()
    finally:
        stop(model)
    reference = oracle(prompt)
    assert gap(steered, reference["layers.0.layer_output"] + 1) <= FLOAT32
    assert gap(stream, reference["layers.1.layer_input"]) <= FLOAT32
    assert gap(doubled, reference["layers.1.mlp.mlp_output"] * 2) <= FLOAT32
    assert entering.shape[-1] == 128
