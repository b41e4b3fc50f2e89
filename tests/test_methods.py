"""Steering, skipping and reading the vocabulary mean what they mean in nnterp, on every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.blocks import FLOAT32, GREEDY, logits_of
from support.oracle import Oracle, gap

on_qwen2 = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")
VECTOR = torch.linspace(-1, 1, 128)


@pytest.mark.parametrize(
    ("layers", "steered"),
    [(1, [1]), (-1, [3]), ([2, 0], [0, 2]), (range(4), [0, 1, 2, 3])],
    ids=["one", "from the end", "several in any order", "all"],
)
def test_steer_adds_the_scaled_vector_to_the_streams_that_leave(
    model: Any, oracle: Oracle, prompt: str, layers: Any, steered: list[int]
) -> None:
    with model.trace(prompt, **GREEDY):
        model.steer(layers, VECTOR, factor=1.5)
        logits = model.logits.save()
    edits = {f"layers.{layer}.layer_output": lambda t: t + 1.5 * VECTOR for layer in steered}
    assert gap(logits, oracle(prompt, edits)["logits"]) <= FLOAT32


@pytest.mark.parametrize(
    "positions", [-1, slice(2, 5), [0, -2], torch.tensor([1, 3])], ids=["one", "slice", "list", "tensor"]
)
def test_steer_keeps_to_its_positions(model: Any, oracle: Oracle, prompt: str, positions: Any) -> None:
    with model.trace(prompt, **GREEDY):
        model.steer(1, VECTOR, positions=positions)
        stream = model.layers[-1].layer_output.save()

    def expected(t: torch.Tensor) -> torch.Tensor:
        t[:, positions] += VECTOR
        return t

    assert gap(stream, oracle(prompt, {"layers.1.layer_output": expected})["layers.3.layer_output"]) <= FLOAT32


@on_qwen2
def test_steering_by_the_norm_of_the_whole_stream_uses_both_halves(model: Any, oracle: Oracle, prompt: str) -> None:
    with model.trace(prompt, **GREEDY):
        norm = model.layers[2].layer_output.norm(dim=-1).save()
    assert gap(norm, oracle(prompt)["layers.2.layer_output"].norm(dim=-1)) <= FLOAT32


@pytest.mark.parametrize(("start", "end"), [(1, 1), (1, 2), (0, 0), (2, -1), (-2, -1)])
def test_skipped_layers_pass_the_stream_on(model: Any, oracle: Oracle, prompt: str, start: int, end: int) -> None:
    with model.trace(prompt, **GREEDY):
        model.skip_layers(start, end)
        logits = model.logits.save()
    entering = oracle(prompt)[f"layers.{start % 4}.layer_input"]
    assert gap(logits, oracle(prompt, {f"layers.{end % 4}.layer_output": lambda _: entering})["logits"]) <= FLOAT32


def test_a_skipped_layer_can_be_replaced(model: Any, oracle: Oracle, prompt: str) -> None:
    new = oracle(prompt)["layers.1.layer_input"] * 0.5
    with model.trace(prompt, **GREEDY):
        model.skip_layer(2, skip_with=new)
        logits = model.logits.save()
    assert gap(logits, oracle(prompt, {"layers.2.layer_output": lambda _: new})["logits"]) <= FLOAT32


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_any_stream_can_be_read_off_in_the_vocabulary(model: Any, oracle: Oracle, prompt: str, layer: int) -> None:
    block = model.layers[layer]
    with model.trace(prompt, **GREEDY):
        projected = model.project_on_vocab(block.layer_output).save()
        vector = model.project_on_vocab(block.layer_output[0, -1]).save()
    inner = oracle.model.transformer if oracle.gpt2 else oracle.model.model
    norm = inner.ln_f if oracle.gpt2 else inner.norm
    with torch.no_grad():
        expected = oracle.model.lm_head(norm(oracle(prompt)[f"layers.{layer}.layer_output"]))
    assert gap(projected, expected) <= FLOAT32
    assert vector.shape == (model.vocab_size,)
    assert gap(vector, expected[0, -1]) <= FLOAT32


def test_the_last_stream_projects_to_the_logits(model: Any, prompt: str) -> None:
    with model.trace(prompt, **GREEDY):
        projected = model.project_on_vocab(model.layers[-1].layer_output[:, -1:]).save()
        logits = model.logits.save()
    assert torch.equal(projected, logits)


def test_projecting_leaves_the_forward_as_it_was(model: Any, prompt: str) -> None:
    clean = logits_of(model, prompt)
    with model.trace(prompt, **GREEDY):
        model.project_on_vocab(model.layers[0].layer_output)
        logits = model.logits.save()
    assert torch.equal(logits, clean)


def test_the_closest_tokens_are_strings_best_first_and_nest_like_the_stream(model: Any, prompt: str) -> None:
    import nnsight

    block = model.layers[-1]
    with model.trace(prompt, **GREEDY):
        one = nnsight.save(model.get_topk_closest_tokens(block.layer_output[0, -1], k=3))
        many = nnsight.save(model.get_topk_closest_tokens(block.layer_output, k=3))
        logits = model.logits.save()
    assert one == [model.tokenizer.decode([index]) for index in logits[0, -1].topk(3).indices.tolist()]
    assert many[0][-1] == one
    assert len(many) == 1
    assert len(many[0]) == len(model.tokenizer(prompt)["input_ids"])


@on_qwen2
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("steer(4, VECTOR)", "IndexError: Layer 4 does not exist; this model has 4"),
        ("steer(-5, VECTOR)", "IndexError: Layer -5 does not exist; this model has 4"),
        ("steer(True, VECTOR)", "TypeError: A layer is named by an integer, not by True"),
        ("steer([0, 1.0], VECTOR)", "TypeError: A layer is named by an integer, not by 1.0"),
        ("steer(0, VECTOR, positions=99)", "IndexError: index 99 is out of bounds"),
        ("skip_layers(2, 1)", "ValueError: skip_layers(2, 1): the first layer to skip is after the last"),
        ("skip_layer(False)", "TypeError: A layer is named by an integer, not by False"),
        ("skip_layer(1, skip_with=VECTOR)", "ValueError: model.model.layers.1.layer_output is (1, "),
        (
            "project_on_vocab(VECTOR[:5])",
            "ValueError: project_on_vocab takes [..., hidden] with hidden=128, not",
        ),
        (
            "get_topk_closest_tokens(VECTOR, k=0)",
            "ValueError: get_topk_closest_tokens: k=0 is not between 1 and",
        ),
    ],
)
def test_a_wrong_argument_is_named_and_the_engine_lives(model: Any, prompt: str, call: str, error: str) -> None:
    clean = logits_of(model, prompt)
    with pytest.raises(RuntimeError) as caught:
        with model.trace(prompt, **GREEDY):
            eval("model." + call, {"model": model, "VECTOR": VECTOR})
    assert str(caught.value).startswith(error)
    assert torch.equal(logits_of(model, prompt), clean)
