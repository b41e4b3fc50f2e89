"""Every standard value equals what transformers computes at the same place."""

from __future__ import annotations

import math
from typing import Any

import nnsight
import pytest
import torch
from support.blocks import FLOAT32, GREEDY
from support.oracle import Oracle, gap, same
from support.survey import read_all

with_smollm2 = pytest.mark.parametrize("name", ["qwen2", "llama", "gpt2", "smollm2"], indirect=True, scope="session")


@with_smollm2
def test_every_value_of_every_layer_equals_transformers(model: Any, oracle: Oracle, prompt: str) -> None:
    ours, reference = read_all(model, prompt), oracle(prompt)
    assert same(ours.pop("input_ids"), reference.pop("input_ids"))
    scores = {key: ours.pop(key) for key in list(ours) if key.endswith("scores")}
    assert ours.keys() == reference.keys()
    gaps = {key: gap(value, reference[key]) for key, value in ours.items()}
    allowed = dict.fromkeys(gaps, FLOAT32)
    if torch.cuda.is_available():
        # Where two sides' logits are up to d apart, a probability of one is up to exp(2d) times the other's. The logits have
        # a bound relative to their size, and a trained model's are large: within it, SmolLM2's probabilities were apart by
        # 1.23e-5 of the largest on an H200.
        apart = (ours["logits"].cpu() - reference["logits"].cpu()).abs().max().item()
        allowed["next_token_probs"] = max(FLOAT32, math.expm1(2 * apart))
    assert {key: found for key, found in gaps.items() if found > allowed[key]} == {}
    for key, found in scores.items():
        pattern = ours[key.replace("scores", "probabilities")]
        assert torch.equal(found.softmax(-1), pattern)


def test_scores_are_scaled_products_under_a_causal_mask(model: Any, oracle: Oracle, prompt: str) -> None:
    reference = oracle(prompt)
    with model.trace(prompt, **GREEDY):
        scores = model.layers[1].self_attn.attention_scores.save()
    queries, keys = (reference[f"layers.1.self_attn.attention_{name}"] for name in ("queries", "keys"))
    keys = keys.repeat_interleave(oracle.heads // oracle.kv_heads, dim=1)
    expected = queries @ keys.transpose(-1, -2) * oracle.head_dim**-0.5
    causal, scores = torch.ones(expected.shape[-2:]).tril().bool(), scores.cpu()
    assert gap(scores[..., causal], expected[..., causal]) <= FLOAT32
    assert (scores[..., ~causal] == torch.finfo(torch.float32).min).all()


@with_smollm2
def test_contributions_add_up_to_the_stream(model: Any, name: str, prompt: str) -> None:
    found = read_all(model, prompt)
    for index in range(model.num_layers):
        here = f"layers.{index}"
        out = found[f"{here}.layer_output"]
        total = found[f"{here}.layer_input"] + found[f"{here}.self_attn.attention_output"] + found[f"{here}.mlp.mlp_output"]
        # vLLM's fused blocks add in this very order. GPT-2's sums the same three in another one: 8 units in the last place.
        allowed = 8 * torch.finfo(torch.float32).eps * out.abs().max() if name == "gpt2" else 0.0
        assert (total - out).abs().max() <= allowed, here


def test_the_stream_flows_from_block_to_block_unchanged(model: Any, prompt: str) -> None:
    found = read_all(model, prompt)
    for index in range(1, model.num_layers):
        assert torch.equal(found[f"layers.{index}.layer_input"], found[f"layers.{index - 1}.layer_output"])


def test_the_first_block_is_entered_by_the_embeddings_as_floats(model: Any, name: str, prompt: str) -> None:
    found = read_all(model, prompt)
    entering = found["layers.0.layer_input"]
    assert entering.is_floating_point()
    assert torch.equal(entering, found["token_embeddings"]) is (name != "gpt2")  # GPT-2 adds its positions first


def test_the_last_stream_is_taken_before_the_final_norm(model: Any, oracle: Oracle, prompt: str) -> None:
    with model.trace(prompt, **GREEDY):
        last = model.layers[-1].layer_output.save()
        logits = model.logits.save()
        projected = model.project_on_vocab(last[:, -1:]).save()
    assert gap(last, oracle(prompt)[f"layers.{model.num_layers - 1}.layer_output"]) <= FLOAT32
    assert torch.equal(projected, logits)


def test_input_size_is_the_shape_of_the_ids(model: Any, prompt: str) -> None:
    with model.trace(prompt, **GREEDY):
        size = nnsight.save(model.input_size)
        ids = model.input_ids.save()
    assert size == ids.shape == (1, len(model.tokenizer(prompt)["input_ids"]))
