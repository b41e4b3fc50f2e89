"""vLLM's Transformers backend where it is not transformers: what it leaves out is named, and the rest is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.blocks import FLOAT32, GREEDY
from support.oracle import gap

from nnterp_vllm_core import StandardizedTransformer, Unavailable
from nnterp_vllm_core.testing import SIZES
from nnterp_vllm_core.testing.checkpoints import tiny
from nnterp_vllm_core.testing.engines import start, stop

GRANITE = {**SIZES, "embedding_multiplier": 6.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("granite", tmp_path_factory.mktemp("granite"), **GRANITE, logits_scaling=2.0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Iterator[Any]:
    with pytest.warns(UserWarning, match="leaves out logits_scaling of this model's config, so its logits, and the tokens"):
        model = start(checkpoint, model_impl="transformers")
    try:
        yield model
    finally:
        stop(model)


def test_logits_that_the_backend_does_not_scale_are_unavailable_by_name(model: Any, prompt: str) -> None:
    reason = r"leaves out logits_scaling of this model's config"
    assert "logits_scaling" in model.support()["logits"]
    assert "logits_scaling" in model.support()["next_token_probs"]
    with pytest.raises(RuntimeError, match=rf"model\.logits is unavailable: vLLM's Transformers backend {reason}"):
        with model.trace(prompt, **GREEDY):
            model.logits.save()
    with model.trace(prompt, **GREEDY):
        stream = model.layers[-1].layer_output.save()
    with pytest.raises(Unavailable, match=reason):
        model.project_on_vocab(stream)


def test_the_other_values_are_served(model: Any, checkpoint: Path, prompt: str) -> None:
    beside = StandardizedTransformer(str(checkpoint), dtype="float32")
    with model.trace(prompt, **GREEDY):
        ours = model.layers[-1].layer_output.save()
    with beside.trace(prompt):
        reference = beside.layers[-1].layer_output.save()
    assert gap(ours.cpu(), reference.cpu()) <= FLOAT32
