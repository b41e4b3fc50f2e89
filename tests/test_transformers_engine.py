"""What `StandardizedTransformer` has that a vLLM engine has not: gradients, batches, every value writable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FAMILIES, PROMPT
from support.blocks import FLOAT32, at
from support.oracle import gap

from nnterp_vllm_core import StandardizedTransformer, UnsupportedEngine
from nnterp_vllm_core.transformers_model import _VLLM_ONLY

#: Of the derivative, for a central difference whose step is a hundredth of the value's size, in float32: its own error (the
#: step's square, and rounding over the step) was measured at up to 1.6e-4.
DIFFERENCE = 3e-4
#: Where gradients are checked: a stream at either end, a contribution, and every kind of value inside attention.
DIFFERENTIABLE = (
    "token_embeddings",
    "layers.1.layer_input",
    "layers.1.self_attn.attention_queries",
    "layers.1.self_attn.attention_keys",
    "layers.1.self_attn.attention_values",
    "layers.1.self_attn.attention_scores",
    "layers.1.self_attn.attention_probabilities",
    "layers.1.self_attn.attention_head_outputs",
    "layers.1.self_attn.attention_output",
    "layers.1.mlp.mlp_output",
    "layers.1.layer_output",
)


@pytest.fixture(scope="module")
def load(checkpoints: dict[str, Path]) -> Callable[[str], Any]:
    """A checkpoint on transformers, loaded once."""
    loaded: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in loaded:
            loaded[name] = StandardizedTransformer(str(checkpoints[name]), dispatch=True, dtype=torch.float32)
        return loaded[name]

    return get


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, load: Callable[[str], Any]) -> Any:
    return load(request.param)


@pytest.fixture
def qwen2(load: Callable[[str], Any]) -> Any:
    return load("qwen2")


def loss_of(model: Any, key: str, added: torch.Tensor | None = None) -> torch.Tensor:
    """The loss of a run in which ``added`` is added to one value."""
    host, name = at(model, key)
    with torch.no_grad():
        with model.trace(PROMPT):
            if added is not None:
                setattr(host, name, getattr(host, name) + added)
            loss = model.logits[0, -1, 7].save()
    return loss


def gradient_of(model: Any, key: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A value and the loss's gradient with respect to it."""
    host, name = at(model, key)
    with model.trace(PROMPT):
        value = getattr(host, name)
        loss = model.logits[0, -1, 7]
        with loss.backward():
            gradient = value.grad.save()
        value = value.detach().save()
    return value, gradient


@pytest.mark.parametrize("key", DIFFERENTIABLE)
def test_a_gradient_is_what_a_small_change_does(model: Any, key: str) -> None:
    value, gradient = gradient_of(model, key)
    assert gradient.shape == value.shape
    # Masked scores hold the lowest finite number, on which nothing depends.
    way = torch.where(value > -1e30, gradient / gradient.norm(), torch.zeros(()))
    step = 0.01 * min(1.0, value[value > -1e30].square().mean().sqrt().item())
    change = (loss_of(model, key, step * way) - loss_of(model, key, -step * way)) / (2 * step)
    expected = (gradient * way).sum()
    assert abs(change - expected) <= DIFFERENCE * abs(expected)


def test_a_gradient_of_the_stream_is_autograds_own(model: Any) -> None:
    _, ours = gradient_of(model, "layers.2.layer_output")
    seen: list[torch.Tensor] = []

    def hook(_: Any, __: Any, output: Any) -> None:
        stream = output[0] if isinstance(output, tuple) else output
        stream.retain_grad()
        seen.append(stream)

    handle = model.layers[2]._module.register_forward_hook(hook)
    try:
        ids = torch.tensor([model.tokenizer(PROMPT)["input_ids"]], device=ours.device)
        model._module(ids).logits[0, -1, 7].backward()
    finally:
        handle.remove()
    assert gap(ours, seen[0].grad) <= FLOAT32


def test_gradients_take_an_edit_into_account(qwen2: Any) -> None:
    block = qwen2.layers[1]
    with qwen2.trace(PROMPT):
        entering = block.layer_input
        block.layer_output[:, :-1] = 0
        loss = qwen2.logits[0, -1, 7]
        with loss.backward():
            gradient = entering.grad.save()
    assert gradient[:, -1].abs().max() > 0
    with qwen2.trace(PROMPT):
        entering = block.layer_input
        block.layer_output[:] = 0
        loss = qwen2.logits[0, -1, 7]
        with loss.backward():
            cut = entering.grad.save()
    assert cut.abs().max() == 0


def test_attribution_patching_estimates_activation_patching(qwen2: Any) -> None:
    key = "layers.1.layer_output"
    value, gradient = gradient_of(qwen2, key)
    small = 1e-2 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0)).to(value.device)
    estimate = (gradient * small).sum()
    measured = loss_of(qwen2, key, small) - loss_of(qwen2, key)
    # First order: what is left is of the change's square, measured at 1% of the estimate.
    assert abs(measured - estimate) <= 0.05 * abs(estimate)


def test_the_pattern_can_be_replaced_and_the_heads_follow(model: Any) -> None:
    attention = model.layers[1].self_attn
    groups = model.num_heads // model.num_kv_heads
    with torch.no_grad():
        with model.trace(PROMPT):
            values = attention.attention_values.save()
            pattern = attention.attention_probabilities
            pattern[:, 0] = 0
            pattern[:, 0, :, 0] = 1
            heads = attention.attention_head_outputs.save()
    first = values.repeat_interleave(groups, dim=1)[:, 0, :1]
    assert gap(heads[:, :, 0], first.expand_as(heads[:, :, 0])) <= FLOAT32


def test_a_batch_is_padded_on_the_left_and_each_row_is_as_alone(model: Any) -> None:
    texts = ["hello", PROMPT]
    with torch.no_grad():
        with model.trace(texts):
            mask = model.attention_mask.save()
            together = model.layers[2].layer_output[:, -1].save()
            logits = model.logits[:, -1].save()
        assert mask[0, 0] == 0
        assert mask[0, -1] == mask[1].min() == 1
        for row, text in enumerate(texts):
            with model.trace(text):
                alone = model.layers[2].layer_output[:, -1].save()
                own = model.logits[:, -1].save()
            assert gap(together[row : row + 1], alone) <= FLOAT32
            assert gap(logits[row : row + 1], own) <= FLOAT32


def test_a_plain_trace_has_every_positions_logits(model: Any) -> None:
    with torch.no_grad():
        with model.trace(PROMPT):
            stream = model.layers[-1].layer_output.save()
            logits = model.logits.save()
        with model.trace("hello"):
            projected = model.project_on_vocab(stream).save()
    assert logits.shape == (1, len(model.tokenizer(PROMPT)["input_ids"]), model.vocab_size)
    assert gap(projected, logits) <= FLOAT32


def test_keys_of_a_decode_step_are_the_whole_caches(qwen2: Any) -> None:
    attention = qwen2.layers[1].self_attn
    with qwen2.trace(PROMPT, temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
        shapes = []
        for _ in tracer.iter[:3]:
            shapes.append((tuple(attention.attention_keys.shape), tuple(attention.attention_probabilities.shape)))
        shapes = tuple(shapes).save()
    length = len(qwen2.tokenizer(PROMPT)["input_ids"])
    assert shapes == (
        ((1, 2, length, 32), (1, 4, length, length)),
        ((1, 2, length + 1, 32), (1, 4, 1, length + 1)),
        ((1, 2, length + 2, 32), (1, 4, 1, length + 2)),
    )


def test_a_loaded_module_is_taken_as_it_is(checkpoints: dict[str, Path], qwen2: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    module = AutoModelForCausalLM.from_pretrained(checkpoints["qwen2"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(checkpoints["qwen2"])
    model = StandardizedTransformer(module, tokenizer=tokenizer)
    found = []
    for one in (model, qwen2):
        with torch.no_grad():
            with one.trace(PROMPT):
                pattern = one.layers[2].self_attn.attention_probabilities.save()
        found.append(pattern)
    assert model._module is module
    assert torch.equal(*found)


def test_another_attention_kernel_serves_all_but_the_interior(checkpoints: dict[str, Path], qwen2: Any) -> None:
    model = StandardizedTransformer(
        str(checkpoints["qwen2"]), dispatch=True, dtype=torch.float32, attn_implementation="sdpa"
    )
    found = []
    for one in (model, qwen2):
        with torch.no_grad():
            with one.trace(PROMPT):
                stream = one.layers[-1].layer_output.save()
        found.append(stream)
    assert gap(*found) <= FLOAT32
    assert "attn_implementation='sdpa'" in model.support()["layers.*.self_attn.attention_probabilities"]


@pytest.mark.parametrize("name", sorted(_VLLM_ONLY))
def test_an_argument_of_the_vllm_engine_is_refused_with_the_way_out(name: str, checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedEngine, match=rf"^{name}= is the vLLM engine's .*: .+\. StandardizedVLLM takes it\.$"):
        StandardizedTransformer(str(checkpoints["qwen2"]), **{name: 1})


def test_two_names_of_the_length_are_refused(qwen2: Any) -> None:
    with pytest.raises(UnsupportedEngine, match="two names of one setting"):
        with qwen2.trace(PROMPT, max_tokens=1, max_new_tokens=1):
            qwen2.logits.save()


def test_settings_of_invokes_generate_when_they_are_the_same(qwen2: Any) -> None:
    with qwen2.trace(temperature=0.0) as tracer:
        with tracer.invoke(PROMPT, max_tokens=3, ignore_eos=True):
            steps = []
            for _ in tracer.iter[:3]:
                steps.append(tuple(qwen2.logits.shape))
            steps = tuple(steps).save()
        with tracer.invoke("hello", max_tokens=3, ignore_eos=True):
            last = qwen2.layers[1].layer_output[:, -1].save()
    assert steps == ((1, 1, 512),) * 3
    assert last.shape == (1, 128)


def test_settings_of_invokes_that_differ_are_refused_with_the_way_out(qwen2: Any) -> None:
    with pytest.raises(UnsupportedEngine, match=r"different sampling settings .*traces of their own"):
        with qwen2.trace() as tracer:
            with tracer.invoke(PROMPT, max_tokens=3):
                qwen2.logits.save()
            with tracer.invoke("hello", max_tokens=2):
                qwen2.logits.save()
