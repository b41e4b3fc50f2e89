"""A request is one sequence with its own block: it sees its own rows, fails alone and leaves the engine alive."""

from __future__ import annotations

import random
from typing import Any

import nnsight
import pytest
import torch
from nnsight.intervention.interleaver import OutOfOrderError
from support.blocks import FLOAT32, GREEDY, at, logits_of
from support.oracle import Oracle, gap

from nnterp_vllm_core import UnsupportedEngine

on_qwen2 = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")
PROMPTS = ("The Eiffel Tower", "The capital of Japan is Tokyo and the city of Paris is in", "hello")


@pytest.fixture
def alive(model: Any, prompt: str) -> Any:
    """After the test, a clean trace must give what it gave before, to the bit."""
    before = logits_of(model, prompt)
    yield
    assert torch.equal(logits_of(model, prompt), before)


def test_each_invoke_sees_its_own_prompt_and_saves_come_back_in_order(model: Any, oracle: Oracle) -> None:
    block = model.layers[2]
    with model.trace(**GREEDY) as tracer:
        for one in PROMPTS:
            with tracer.invoke(one):
                pattern = block.self_attn.attention_probabilities.save()
                stream = block.layer_output.save()
                logits = model.logits.save()
    assert len(stream) == len(pattern) == len(logits) == len(PROMPTS)
    for index, one in enumerate(PROMPTS):
        reference = oracle(one)
        assert gap(stream[index], reference["layers.2.layer_output"]) <= FLOAT32
        assert gap(pattern[index], reference["layers.2.self_attn.attention_probabilities"]) <= FLOAT32
        assert gap(logits[index], reference["logits"]) <= FLOAT32


def test_an_edit_of_one_invoke_leaves_the_others_alone_to_the_bit(model: Any) -> None:
    block, last = model.layers[1], model.layers[-1]

    def run(factor: float) -> list[torch.Tensor]:
        with model.trace(**GREEDY) as tracer:
            with tracer.invoke(PROMPTS[0]):
                first = last.layer_output.save()
            with tracer.invoke(PROMPTS[1]):
                block.self_attn.attention_values[:] *= factor
                block.layer_output[:] *= factor
                second = last.layer_output.save()
            with tracer.invoke(PROMPTS[2]):
                third = last.layer_output.save()
        return [first, second, third]

    clean, edited = run(1.0), run(-2.0)
    assert torch.equal(clean[0], edited[0])
    assert not torch.equal(clean[1], edited[1])
    assert torch.equal(clean[2], edited[2])


@pytest.mark.parametrize("how", ["slice", "whole", "view of a view", "assignment"])
def test_edits_of_many_requests_at_one_place_equal_their_solo_runs(model: Any, how: str) -> None:
    """All wait at one visit, so they are served from one copy; each edit has to be seen as its own."""
    prompts = [list(range(5 + row, 9 + row + row % 3)) for row in range(6)]
    factors = [0.25, 0.5, 1.0, 1.5, 2.0, -1.0]
    block = model.layers[1]

    def run(pairs: list[tuple[list[int], float]]) -> Any:
        with model.trace(**GREEDY) as tracer:
            for ids, factor in pairs:
                with tracer.invoke(ids):
                    if how == "slice":
                        block.layer_output[:, -1] *= factor
                    elif how == "whole":
                        block.layer_output.mul_(factor)
                    elif how == "view of a view":
                        block.layer_output[0][1:][:, :64].mul_(factor)
                    else:
                        block.layer_output = block.layer_output * factor
                    logits = model.logits.save()
        return logits

    together = run(list(zip(prompts, factors, strict=True)))
    for ids, factor, found in zip(prompts, factors, together, strict=True):
        clean = run([(ids, 1.0)])
        assert gap(found, run([(ids, factor)])) <= FLOAT32
        assert (gap(found, clean) > 100 * FLOAT32) == (factor != 1.0)


def test_sixteen_mixed_prompts_shuffled_and_repeated_equal_their_solo_runs(model: Any) -> None:
    words = ["The", "Eiffel", "Tower", "is", "in", "the", "city", "of", "Paris", "and", "hello", "world", "of", "Japan"]
    prompts = [" ".join(words[: 1 + index % len(words)]) + f" {index}" for index in range(16)]
    block = model.layers[2]
    solo = {}
    for one in prompts:
        with model.trace(one, **GREEDY):
            stream = block.layer_output.save()
            logits = model.logits.save()
        solo[one] = (stream, logits)
    for seed in range(2):
        shuffled = random.Random(seed).sample(prompts, len(prompts))
        with model.trace(**GREEDY) as tracer:
            for one in shuffled:
                with tracer.invoke(one):
                    streams = block.layer_output.save()
                    answers = model.logits.save()
        for one, stream, logits in zip(shuffled, streams, answers, strict=True):
            # Float32 sums of a matrix product depend on how many rows share it.
            assert gap(stream, solo[one][0]) <= FLOAT32
            assert gap(logits, solo[one][1]) <= FLOAT32


def test_slots_saved_above_the_invokes_are_filled_by_each(model: Any) -> None:
    block = model.layers[0]
    with model.trace(**GREEDY) as tracer:
        lengths = nnsight.save([None] * len(PROMPTS))
        for index, one in enumerate(PROMPTS):
            with tracer.invoke(one):
                lengths[index] = block.layer_output.shape[1]
    assert lengths == [len(model.tokenizer(one)["input_ids"]) for one in PROMPTS]


def test_token_ids_and_tokenizer_output_are_prompts_too(model: Any, prompt: str) -> None:
    ids = model.tokenizer(prompt)["input_ids"]
    expected = logits_of(model, prompt)
    assert torch.equal(logits_of(model, ids), expected)
    assert torch.equal(logits_of(model, model.tokenizer(prompt)), expected)


# --- what ends one request and nothing else ---------------------------------------------------------------------------


@pytest.mark.usefixtures("alive")
def test_an_error_in_a_block_arrives_with_the_users_own_first_line(model: Any, prompt: str) -> None:
    block = model.layers[1]
    with pytest.raises(RuntimeError) as caught:
        with model.trace(prompt, **GREEDY):
            block.layer_output.save()
            raise KeyError("my own mistake")
    assert str(caught.value).splitlines()[0] == "KeyError: 'my own mistake'"


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_one_failing_invoke_does_not_keep_the_others_from_their_step(model: Any) -> None:
    block, last = model.layers[1], model.layers[-1]
    fine = logits_of(model, PROMPTS[0])
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError: float division by zero"):
        with model.trace(**GREEDY) as tracer:
            with tracer.invoke(PROMPTS[0]):
                logits = model.logits.save()
            with tracer.invoke(PROMPTS[1]):
                block.layer_output[:] /= 1.0 / 0
                last.layer_output.save()
    assert gap(logits, fine) <= FLOAT32


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    ("later", "earlier"),
    [
        ("layers.2.layer_output", "layers.1.layer_output"),
        ("layers.1.mlp.mlp_output", "layers.1.self_attn.attention_output"),
        ("layers.1.self_attn.attention_head_outputs", "layers.1.self_attn.attention_queries"),
        ("layers.1.layer_output", "layers.1.layer_input"),
        ("logits", "token_embeddings"),
    ],
)
def test_a_read_out_of_order_is_named_and_ends_the_request(model: Any, prompt: str, later: str, earlier: str) -> None:
    (late, late_name), (early, early_name) = at(model, later), at(model, earlier)
    with pytest.raises(
        RuntimeError, match=rf"^OutOfOrderError: \S+\.{early_name} was asked for at step 0, and the model had"
    ):
        with model.trace(prompt, **GREEDY):
            getattr(late, late_name).save()
            getattr(early, early_name).save()


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_a_block_may_catch_a_read_out_of_order_and_go_on(model: Any, oracle: Oracle, prompt: str) -> None:
    first, last = model.layers[0], model.layers[-1]
    with model.trace(prompt, **GREEDY):
        kept = model.layers[1].layer_output.save()
        try:
            first.layer_output.save()
        except OutOfOrderError as error:
            said = nnsight.save(str(error))
        stream = last.layer_output.save()
    assert said.startswith("model.model.layers.0.layer_output was asked for at step 0")
    assert gap(kept, oracle(prompt)["layers.1.layer_output"]) <= FLOAT32
    assert gap(stream, oracle(prompt)[f"layers.{model.num_layers - 1}.layer_output"]) <= FLOAT32


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_values_of_one_visit_can_be_read_in_any_order(model: Any, prompt: str) -> None:
    attention = model.layers[1].self_attn
    with model.trace(prompt, **GREEDY):
        pattern = attention.attention_probabilities.save()
        values = attention.attention_values.save()
        queries = attention.attention_queries.save()
    assert pattern.shape[1] == queries.shape[1] == 2 * values.shape[1]


@on_qwen2
@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("index", [99, True])
def test_a_layer_that_does_not_exist_is_named(model: Any, prompt: str, index: int) -> None:
    with pytest.raises(RuntimeError, match=rf"Error: .*{index}"):
        with model.trace(prompt, **GREEDY):
            model.layers[index].layer_output.save()


@pytest.mark.usefixtures("alive")
def test_stop_ends_the_request_and_keeps_what_was_saved(model: Any, oracle: Oracle, prompt: str) -> None:
    block, later = model.layers[1], model.layers[2]
    with model.trace(prompt, **GREEDY) as tracer:
        stream = block.layer_output.save()
        tracer.stop()
        never = later.layer_output.save()
    assert gap(stream, oracle(prompt)["layers.1.layer_output"]) <= FLOAT32
    with pytest.raises(NameError):
        _ = never


@on_qwen2
@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("empty", ["", []], ids=["text", "ids"])
def test_an_empty_prompt_is_refused(model: Any, empty: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises((ValueError, VLLMValidationError), match=r"cannot be empty|Empty prompt"):
        logits_of(model, empty)


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_a_prompt_longer_than_the_engine_takes_is_refused(model: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match=r"maximum context length is 128 tokens.* 200 input tokens"):
        logits_of(model, [5] * 200)


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_a_list_of_prompts_in_one_invoke_is_refused_with_the_way_out(model: Any) -> None:
    with pytest.raises(ValueError, match=r"Multiple prompts per invoke are not supported.*tracer\.invoke"):
        logits_of(model, list(PROMPTS))


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_scan_is_refused_with_its_reason(model: Any, prompt: str) -> None:
    with pytest.raises(NotImplementedError, match="scan is unavailable on vLLM"):
        with model.scan(prompt):
            model.layers[0].layer_output.save()


@on_qwen2
@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("option", ["scan", "validate"])
def test_a_trace_that_asks_for_a_scan_is_refused_by_name(model: Any, prompt: str, option: str) -> None:
    with pytest.raises(UnsupportedEngine, match=rf"^{option}=True runs the block on fake tensors"):
        with model.trace(prompt, **GREEDY, **{option: True}):
            model.layers[0].layer_output.save()


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_gradients_are_an_error_of_the_one_request(model: Any, prompt: str) -> None:
    block = model.layers[1]
    with pytest.raises(RuntimeError, match="grad"):
        with model.trace(prompt, **GREEDY):
            out = block.layer_output
            loss = model.logits.sum()
            with loss.backward():
                out.grad.save()


@on_qwen2
def test_a_value_outside_a_block_says_where_it_can_be_read(model: Any) -> None:
    with pytest.raises(ValueError, match=r"layers\.0\.layer_output can be read and written only inside .*model\.trace"):
        _ = model.layers[0].layer_output
    with pytest.raises(ValueError, match="only inside"):
        model.layers[0].layer_output = torch.zeros(1)


@on_qwen2
def test_a_misspelled_value_is_an_attribute_error(model: Any, prompt: str) -> None:
    block = model.layers[0]
    with pytest.raises((AttributeError, RuntimeError), match="layer_ouput"):
        with model.trace(prompt, **GREEDY):
            block.layer_ouput.save()


# --- skipping, with others in the same step ---------------------------------------------------------------------------


@pytest.mark.usefixtures("alive")
def test_skip_layers_is_safe_with_other_requests_in_flight(model: Any, oracle: Oracle) -> None:
    last = model.layers[-1]
    with model.trace(**GREEDY) as tracer:
        with tracer.invoke(PROMPTS[0]):
            model.skip_layers(1, 2)
            skipped = last.layer_input.save()
        with tracer.invoke(PROMPTS[1]):
            other = last.layer_output.save()
    with model.trace(PROMPTS[0], **GREEDY):
        entering = model.layers[1].layer_input.save()
    assert gap(skipped, entering) <= FLOAT32
    assert gap(other, oracle(PROMPTS[1])["layers.3.layer_output"]) <= FLOAT32


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_a_native_skip_with_other_rows_in_flight_is_refused_and_the_engine_lives(model: Any) -> None:
    block, last = model.layers[1], model.layers[-1]
    with pytest.raises(RuntimeError, match=r"^UnsupportedEngine: `\.skip\(\)` .*skip_layers"):
        with model.trace(**GREEDY) as tracer:
            with tracer.invoke(PROMPTS[0]):
                block.mlp.skip(torch.zeros(1, 128))
            with tracer.invoke(PROMPTS[1]):
                last.layer_output.save()


@on_qwen2
@pytest.mark.usefixtures("alive")
def test_a_native_skip_alone_in_the_step_works(model: Any, oracle: Oracle, prompt: str) -> None:
    block, last = model.layers[1], model.layers[-1]
    with model.trace(prompt, **GREEDY):
        entering = block.mlp.input
        block.mlp.skip(entering * 0)
        stream = last.layer_output.save()
    reference = oracle(prompt, {"layers.1.mlp.mlp_output": lambda t: t * 0})
    assert gap(stream, reference["layers.3.layer_output"]) <= FLOAT32


# --- blocks for every request -----------------------------------------------------------------------------------------


@on_qwen2
def test_an_installed_edit_serves_standard_values_on_plain_requests(model: Any, prompt: str) -> None:
    from vllm import SamplingParams

    clean = logits_of(model, prompt)
    block = model.layers[1]
    with model.edit():
        block.layer_output[:, -1] *= 0.5
        seen = block.layer_output.save()  # noqa: F841 - it comes home on each request's output, under this name
    try:
        plain = model.vllm_entrypoint.generate([prompt], SamplingParams(**GREEDY))[0]
        assert plain.saves["seen"].shape == (1, len(model.tokenizer(prompt)["input_ids"]), 128)
        edited = logits_of(model, prompt)
    finally:
        model.clear_edits()
    with model.trace(prompt, **GREEDY):
        block.layer_output[:, -1] *= 0.5
        by_trace = model.logits.save()
    assert torch.equal(edited, by_trace)
    assert torch.equal(logits_of(model, prompt), clean)


@on_qwen2
@pytest.mark.parametrize("how", ["assignment", "native assignment", "native edit in place"])
def test_what_an_installed_block_writes_is_what_every_requests_trace_reads(model: Any, how: str) -> None:
    """The traces are served from one copy of the step, which holds some requests' rows from before their own write."""
    block, length = model.layers[1], 5
    with model.edit():
        if how == "assignment":
            block.layer_output = torch.full((1, length, 128), 2.0)
        elif how == "native assignment":
            live = block.output[0]  # what replaces it has to be on its device
            block.output = (torch.full_like(live, 2.0), torch.zeros_like(live))
        else:
            block.output[0][:] = 2.0
            block.output[1][:] = 0.0
    try:
        with model.trace(**GREEDY) as tracer:
            for row in range(3):
                with tracer.invoke(list(range(7 + row, 7 + row + length))):
                    seen = block.layer_output.save()
    finally:
        model.clear_edits()
    assert [one.unique().tolist() for one in seen] == [[2.0]] * 3


@on_qwen2
def test_an_installed_block_keeps_what_it_read_when_the_trace_edits_the_same_value(model: Any, prompt: str) -> None:
    """Two blocks of one request have the same rows, and each its own copy of them."""
    block = model.layers[1]
    with model.edit():
        seen = block.layer_output.save()  # noqa: F841 - it comes home on the request's output
    try:
        with model.trace(prompt, **GREEDY) as tracer:
            block.layer_output[:] = 0.0
            zeroed = block.layer_output.save()
            result = tracer.result.save()
    finally:
        model.clear_edits()
    with model.trace(prompt, **GREEDY):
        clean = block.layer_output.save()
    assert torch.equal(result.saves["seen"], clean)
    assert not zeroed.any()


def _handoffs(worker: Any) -> int:
    """How many modules of the worker's model run nnsight's controller in place of their own ``forward``."""
    return sum("forward" in vars(module) for module in worker.model_runner.get_model().modules())


def _closed(worker: Any) -> None:
    """Undo what earlier tests opened with ``.source``, which hands over for good."""
    handoffs = worker.model_runner.nnsight_requests.handoffs
    handoffs._opened.clear()
    handoffs._settle()


@on_qwen2
def test_modules_hand_off_where_somebody_may_wait_and_nowhere_else(model: Any, prompt: str) -> None:
    from vllm import SamplingParams

    engine = model.vllm_entrypoint
    logits_of(model, prompt)
    engine.collective_rpc(_closed)
    logits = logits_of(model, prompt)  # by now the way of the forward is known
    assert 0 < engine.collective_rpc(_handoffs)[0] < 2 * model.num_layers
    (output,) = engine.generate([prompt], SamplingParams(**GREEDY), use_tqdm=False)
    assert engine.collective_rpc(_handoffs) == [0]
    assert output.saves == {}
    assert engine.collective_rpc("nnsight_request_count") == [0]
    assert torch.equal(logits_of(model, prompt), logits)
    assert output.outputs[0].token_ids[0] == int(logits.argmax())


def _idle_step(worker: Any) -> int:
    """A step without a token, as asynchronous scheduling makes them; how many modules hand off after it."""
    worker.model_runner.nnsight_requests.scope(worker.model_runner.nnsight_model, [])
    return _handoffs(worker)


@on_qwen2
def test_a_step_without_a_token_forgets_nothing_that_was_learned(model: Any, prompt: str) -> None:
    engine = model.vllm_entrypoint
    logits = logits_of(model, prompt)
    engine.collective_rpc(_closed)
    logits_of(model, prompt)
    (few,) = engine.collective_rpc(_handoffs)
    assert engine.collective_rpc(_idle_step) == [few]
    assert torch.equal(logits_of(model, prompt), logits)
    assert engine.collective_rpc(_handoffs) == [few]


@on_qwen2
def test_a_request_without_a_block_leaves_later_traces_the_outermost(model: Any, prompt: str) -> None:
    """In an engine of this process the worker's bookkeeping shares the driver's thread."""
    from nnsight.tracing.tracer import _local, _saves
    from vllm import SamplingParams

    model.vllm_entrypoint.generate([prompt], SamplingParams(**GREEDY))
    logits_of(model, prompt)
    assert _local.depth == 0
    assert _saves() == set()
