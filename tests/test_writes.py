"""An edit in place and an assignment reach the model, and nothing but them does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.blocks import FLOAT32, GREEDY, WRITABLE, at, logits_of
from support.oracle import Oracle, gap, same

READ_ONLY = (
    "input_ids",
    "next_token_probs",
    "layers.1.self_attn.attention_scores",
    "layers.1.self_attn.attention_probabilities",
)
on_qwen2 = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")


def scaled(value: torch.Tensor) -> torch.Tensor:
    """The edit of these tests: the second position or head, whichever the second axis counts, times -0.5."""
    value = value.clone()
    value[:, 1] *= -0.5
    return value


@pytest.mark.parametrize("key", WRITABLE)
def test_an_edit_in_place_does_what_the_same_edit_does_in_transformers(
    model: Any, oracle: Oracle, prompt: str, key: str
) -> None:
    host, value = at(model, key)
    last = model.layers[-1]
    with model.trace(prompt, **GREEDY):
        getattr(host, value)[:, 1] *= -0.5
        stream = last.layer_output.save()
        logits = model.logits.save()
    reference = oracle(prompt, {key: scaled})
    assert gap(stream, reference["layers.3.layer_output"]) <= FLOAT32
    assert gap(logits, reference["logits"]) <= FLOAT32
    # The comparison above says something only if the edit moves the stream; the last position's logits need not move.
    assert gap(stream, oracle(prompt)["layers.3.layer_output"]) > 100 * FLOAT32


@pytest.mark.parametrize("key", WRITABLE)
def test_an_assignment_does_the_same_as_the_edit_in_place(model: Any, prompt: str, key: str) -> None:
    host, value = at(model, key)
    last = model.layers[-1]
    with model.trace(prompt, **GREEDY):
        getattr(host, value)[:, 1] *= -0.5
        by_edit = last.layer_output.save()
    with model.trace(prompt, **GREEDY):
        new = getattr(host, value).clone()
        new[:, 1] *= -0.5
        setattr(host, value, new)
        by_assignment = last.layer_output.save()
    assert torch.equal(by_edit, by_assignment)


@pytest.mark.parametrize("key", WRITABLE)
def test_an_assignment_without_a_read_before_reaches_the_model(model: Any, oracle: Oracle, prompt: str, key: str) -> None:
    host, value = at(model, key)
    last = model.layers[-1]
    reference = oracle(prompt)
    # Whole values of an earlier run, turned by the rotary embedding where the model turns them.
    new = reference[key] * 0.25
    with model.trace(prompt, **GREEDY):
        setattr(host, value, new)
        served = getattr(host, value).save()
        stream = last.layer_output.save()
    assert same(served, new)
    # Scaling whole queries or keys commutes with the rotary embedding, so the same edit can be made before it.
    assert gap(stream, oracle(prompt, {key: lambda t: t * 0.25})["layers.3.layer_output"]) <= FLOAT32


@pytest.mark.parametrize("head", [0, 3, -1])
def test_ablating_a_head_does_what_it_does_in_transformers(model: Any, oracle: Oracle, prompt: str, head: int) -> None:
    attention = model.layers[1].self_attn
    with model.trace(prompt, **GREEDY):
        attention.attention_head_outputs[:, :, head] = 0
        logits = model.logits.save()

    def ablated(heads: torch.Tensor) -> torch.Tensor:
        heads[:, :, head] = 0
        return heads

    assert gap(logits, oracle(prompt, {"layers.1.self_attn.attention_head_outputs": ablated})["logits"]) <= FLOAT32


def test_an_edit_of_queries_shows_in_the_pattern_that_is_recomputed(model: Any, oracle: Oracle, prompt: str) -> None:
    attention = model.layers[1].self_attn
    with model.trace(prompt, **GREEDY):
        before = attention.attention_probabilities.save()
        attention.attention_queries[:, 1] *= 3
        after = attention.attention_probabilities.save()

    def tripled(queries: torch.Tensor) -> torch.Tensor:
        queries[:, 1] *= 3
        return queries

    key = "layers.1.self_attn.attention"
    assert gap(before, oracle(prompt)[f"{key}_probabilities"]) <= FLOAT32
    assert gap(after, oracle(prompt, {f"{key}_queries": tripled})[f"{key}_probabilities"]) <= FLOAT32


def test_writing_logits_changes_what_is_sampled(model: Any, prompt: str) -> None:
    with model.trace(prompt, **GREEDY) as tracer:
        model.logits[:] = 0
        model.logits[0, 0, 37] = 5
        probs = model.next_token_probs.save()
        sampled = model.samples.save()
        result = tracer.result.save()
    assert result.outputs[0].token_ids == [37]
    assert sampled.flatten().tolist() == [37]
    assert probs.argmax().item() == 37  # a value computed from the logits sees the edit


def test_a_written_stream_is_what_the_next_block_takes_to_the_bit(model: Any, prompt: str) -> None:
    block, following = model.layers[1], model.layers[2]
    with model.trace(prompt, **GREEDY):
        clean = following.layer_input.save()
    with model.trace(prompt, **GREEDY):
        out = block.layer_output
        out[:, 3] += 1.0
        written = out.clone().save()
        entering = following.layer_input.save()
    assert torch.equal(entering, written)
    others = [row for row in range(clean.shape[1]) if row != 3]
    assert torch.equal(entering[:, others], clean[:, others])


def test_reading_everything_leaves_the_forward_as_it_was_to_the_bit(model: Any, prompt: str) -> None:
    untouched = model.vllm_entrypoint  # the same engine without a block
    from vllm import SamplingParams

    plain = untouched.generate([prompt], SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=5))[0]
    with model.trace(prompt, temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=5) as tracer:
        for index in range(4):
            block = model.layers[index]
            block.layer_input.save()
            block.self_attn.attention_queries.save()
            block.self_attn.attention_head_outputs.save()
            block.self_attn.attention_output.save()
            block.mlp.mlp_output.save()
            block.layer_output.save()
        result = tracer.result.save()
    assert result.outputs[0].token_ids == plain.outputs[0].token_ids
    assert [{k: v.logprob for k, v in step.items()} for step in result.outputs[0].logprobs] == [
        {k: v.logprob for k, v in step.items()} for step in plain.outputs[0].logprobs
    ]


def test_two_reads_give_the_same_tensor(model: Any, prompt: str) -> None:
    block = model.layers[1]
    with model.trace(prompt, **GREEDY):
        same = torch.tensor(block.layer_output is block.layer_output).save()
        block.layer_output[:, 0] += 1
        block.layer_output[:, 0] += 1
        twice = block.layer_output.save()
    with model.trace(prompt, **GREEDY):
        once = block.layer_output.save()
    assert same
    assert torch.equal(twice[:, 0], once[:, 0] + 1 + 1)


#: Views of a tensor's memory whose edits its counter does not see. numpy has one in the host's memory alone.
UNCOUNTED = ("dlpack", "data") if torch.cuda.is_available() else ("numpy", "dlpack", "data")


@pytest.mark.parametrize("way", UNCOUNTED)
def test_an_edit_that_torch_does_not_count_reaches_the_model_by_assignment(model: Any, prompt: str, way: str) -> None:
    block = model.layers[1]
    with model.trace(prompt, **GREEDY):
        value = block.layer_output
        if way == "numpy":
            value.numpy()[:] *= 0.5
        elif way == "dlpack":
            torch.from_dlpack(value).mul_(0.5)
        else:
            value.data.mul_(0.5)
        block.layer_output = value
        value[:, 0] += 1.0  # it goes on being watched
        logits = model.logits.save()
    with model.trace(prompt, **GREEDY):
        block.layer_output *= 0.5
        block.layer_output[:, 0] += 1.0
        counted = model.logits.save()
    assert torch.equal(logits, counted)
    assert not torch.equal(logits, logits_of(model, prompt))


def test_a_saved_value_keeps_what_was_read(model: Any, prompt: str) -> None:
    """Every value of one trace at once, each against a cloned read of it."""
    keys = [*WRITABLE, *READ_ONLY]
    places = [at(model, key) for key in sorted(keys, key=_order)]
    import nnsight

    with model.trace(prompt, **GREEDY):
        kept, cloned = nnsight.save([]), nnsight.save([])
        for host, value in places:
            kept.append(getattr(host, value))
            cloned.append(getattr(host, value).clone())
    assert len(kept) == len(keys)
    for key, ours, expected in zip(sorted(keys, key=_order), kept, cloned, strict=True):
        assert torch.equal(ours, expected), key


def _order(key: str) -> tuple[int, int]:
    """Where a forward pass reaches a value."""
    names = [
        "input_ids",
        "token_embeddings",
        "layer_input",
        "attention_queries",
        "attention_keys",
        "attention_values",
        "attention_scores",
        "attention_probabilities",
        "attention_head_outputs",
        "attention_output",
        "mlp_output",
        "layer_output",
        "logits",
        "next_token_probs",
    ]
    parts = key.split(".")
    rank = names.index(parts[-1])
    return (int(parts[1]), rank) if parts[0] == "layers" else (-1 if rank < 2 else 99, rank)


def test_editing_a_saved_value_after_the_block_changes_nothing(model: Any, prompt: str) -> None:
    block = model.layers[1]
    with model.trace(prompt, **GREEDY):
        out = block.layer_output.save()
        logits = model.logits.save()
    out *= 0  # the caller's own tensor by now
    assert torch.equal(logits_of(model, prompt), logits)


def test_editing_a_value_after_the_model_moved_on_changes_nothing(model: Any, prompt: str) -> None:
    clean = logits_of(model, prompt)
    block, later = model.layers[1], model.layers[3]
    with model.trace(prompt, **GREEDY):
        out = block.layer_output
        later.layer_output.save()
        out *= 0
        logits = model.logits.save()
    assert torch.equal(logits, clean)


@on_qwen2
@pytest.mark.parametrize("key", READ_ONLY)
def test_a_computed_value_refuses_edits_and_assignments_by_name(model: Any, prompt: str, key: str) -> None:
    host, value = at(model, key)
    clean = logits_of(model, prompt)
    with pytest.raises(RuntimeError, match=rf"^ReadOnlyValue: .*{value}.* cannot be assigned.* can reach the model"):
        with model.trace(prompt, **GREEDY):
            setattr(host, value, 0)
    with pytest.raises(RuntimeError, match=rf"^ReadOnlyValue: .*{value}.* was edited in place.* can reach the model"):
        with model.trace(prompt, **GREEDY):
            getattr(host, value)[:] = 0
            model.logits.save()
    assert torch.equal(logits_of(model, prompt), clean)


@pytest.mark.parametrize("key", [key for key in WRITABLE if key != "layers.0.layer_input"] + ["logits"])
def test_a_wrong_shape_is_refused_in_the_block_and_the_engine_lives(model: Any, prompt: str, key: str) -> None:
    host, value = at(model, key)
    clean = logits_of(model, prompt)
    with pytest.raises(RuntimeError) as caught:
        with model.trace(prompt, **GREEDY):
            setattr(host, value, getattr(host, value)[:, :-1])
    first = str(caught.value).splitlines()[0]
    assert first.startswith("ValueError: model.")
    assert f".{value} is (1, " in first
    assert "on this request and cannot be replaced by a value of shape (1, " in first
    assert first.endswith("write into the rows you mean instead (``value[:, positions] = ...``)")
    assert torch.equal(logits_of(model, prompt), clean)


@on_qwen2
def test_the_refusal_of_a_shape_names_the_place_and_both_shapes(model: Any, prompt: str) -> None:
    seq = len(model.tokenizer(prompt)["input_ids"])
    block = model.layers[2]
    with pytest.raises(RuntimeError) as caught:
        with model.trace(prompt, **GREEDY):
            block.layer_output = block.layer_output[:, :-1]
    assert str(caught.value).splitlines()[0] == (
        f"ValueError: model.model.layers.2.layer_output is (1, {seq}, 128) on this request and cannot be replaced by a "
        f"value of shape (1, {seq - 1}, 128); write into the rows you mean instead (``value[:, positions] = ...``)"
    )


@on_qwen2
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_real_value_of_another_dtype_is_converted(model: Any, prompt: str, dtype: torch.dtype) -> None:
    block, following = model.layers[2], model.layers[3]
    with model.trace(prompt, **GREEDY):
        block.layer_output = block.layer_output.to(dtype)
        entering = following.layer_input.save()
    with model.trace(prompt, **GREEDY):
        clean = block.layer_output.save()
    assert torch.equal(entering, clean.to(dtype).float())


@on_qwen2
@pytest.mark.parametrize(
    "wrong",
    [torch.bool, torch.int64, torch.complex64],
    ids=["bool", "integer", "complex"],
)
def test_a_value_that_holds_no_real_numbers_is_refused(model: Any, prompt: str, wrong: torch.dtype) -> None:
    clean = logits_of(model, prompt)
    block = model.layers[2]
    with pytest.raises(RuntimeError, match=rf"^TypeError: .*layer_output holds real numbers .* {wrong}"):
        with model.trace(prompt, **GREEDY):
            block.layer_output = block.layer_output.to(wrong)
    assert torch.equal(logits_of(model, prompt), clean)


@on_qwen2
@pytest.mark.parametrize("wrong", [0, 1.5, None, [[0.0]], "zero"])
def test_what_is_no_tensor_is_refused(model: Any, prompt: str, wrong: Any) -> None:
    block = model.layers[2]
    with pytest.raises(RuntimeError, match=r"^TypeError: .*layer_output was assigned a .*; assign a tensor"):
        with model.trace(prompt, **GREEDY):
            block.layer_output = wrong


@on_qwen2
def test_a_tensor_without_data_is_refused(model: Any, prompt: str) -> None:
    clean = logits_of(model, prompt)
    block = model.layers[2]
    with pytest.raises(RuntimeError, match="meta"):
        with model.trace(prompt, **GREEDY):
            block.layer_output = block.layer_output.to("meta")
    assert torch.equal(logits_of(model, prompt), clean)


@on_qwen2
def test_indexing_a_value_by_masks_and_from_the_end_is_torchs_own(model: Any, oracle: Oracle, prompt: str) -> None:
    seq = len(model.tokenizer(prompt)["input_ids"])
    mask = torch.zeros(seq, dtype=torch.bool)
    mask[-2:] = True
    block, last = model.layers[1], model.layers[-1]

    def expected(stream: torch.Tensor) -> torch.Tensor:
        stream[:, mask] = 0.25
        stream[:, -3] += 1
        return stream

    with model.trace(prompt, **GREEDY):
        block.layer_output[:, mask] = 0.25
        block.layer_output[:, -3] += 1
        stream = last.layer_output.save()
    assert gap(stream, oracle(prompt, {"layers.1.layer_output": expected})["layers.3.layer_output"]) <= FLOAT32


def test_native_locations_read_and_write_beside_the_standard_values(model: Any, name: str, prompt: str) -> None:
    block = model.layers[1]
    with model.trace(prompt, **GREEDY):
        raw = block.output
        parts = [part.clone() for part in raw] if isinstance(raw, tuple) else [raw.clone()]
        native = sum(parts[1:], parts[0]).save()
        stream = block.layer_output.save()
    assert torch.equal(native.reshape(stream.shape), stream)
    with model.trace(prompt, **GREEDY):
        block.mlp.output[:] = 0
        by_native = model.logits.save()
    with model.trace(prompt, **GREEDY):
        block.mlp.mlp_output[:] = 0
        by_name = model.logits.save()
    assert torch.equal(by_native, by_name)


@on_qwen2
def test_several_edits_of_one_block_land_in_order(model: Any, oracle: Oracle, prompt: str) -> None:
    block, last = model.layers[1], model.layers[-1]
    with model.trace(prompt, **GREEDY):
        block.layer_input[:, 0] += 1
        block.self_attn.attention_output[:, 1] *= 2
        block.mlp.mlp_output = block.mlp.mlp_output * 0.5
        block.layer_output[:, 2] -= 1
        stream = last.layer_output.save()

    def first(t: torch.Tensor) -> torch.Tensor:
        t[:, 0] += 1
        return t

    def second(t: torch.Tensor) -> torch.Tensor:
        t[:, 1] *= 2
        return t

    def fourth(t: torch.Tensor) -> torch.Tensor:
        t[:, 2] -= 1
        return t

    reference = oracle(
        prompt,
        {
            "layers.1.layer_input": first,
            "layers.1.self_attn.attention_output": second,
            "layers.1.mlp.mlp_output": lambda t: t * 0.5,
            "layers.1.layer_output": fourth,
        },
    )
    assert gap(stream, reference["layers.3.layer_output"]) <= FLOAT32
