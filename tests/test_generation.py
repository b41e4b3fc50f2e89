"""A trace is a generation request: its settings, its steps and what it returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import nnsight
import pytest
import torch
from support.blocks import FLOAT32, GREEDY, at
from support.oracle import Oracle, gap

from nnterp_vllm_core.worker.requests import ended

on_qwen2 = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")
THREE: dict[str, Any] = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True}


def test_without_settings_a_trace_is_sixteen_tokens(model: Any, prompt: str) -> None:
    with model.trace(prompt, ignore_eos=True) as tracer:
        result = tracer.result.save()
    assert len(result.outputs[0].token_ids) == 16


@on_qwen2
def test_without_settings_the_temperature_is_one(model: Any, prompt: str) -> None:
    """Two seeds of a nearly uniform distribution over 512 tokens draw different texts unless sampling is greedy."""
    with model.trace(prompt, seed=1, ignore_eos=True) as tracer:
        first = tracer.result.save()
    with model.trace(prompt, seed=2, ignore_eos=True) as tracer:
        second = tracer.result.save()
    with model.trace(prompt, seed=2, temperature=1.0, ignore_eos=True) as tracer:
        again = tracer.result.save()
    assert first.outputs[0].token_ids != second.outputs[0].token_ids
    assert second.outputs[0].token_ids == again.outputs[0].token_ids


def test_step_zero_is_the_prompt_and_every_later_step_one_token(model: Any, oracle: Oracle, prompt: str) -> None:
    block = model.layers[2]
    with model.trace(prompt, **THREE) as tracer:
        streams, logits, ids, sizes = nnsight.save([]), nnsight.save([]), nnsight.save([]), nnsight.save([])
        for _ in tracer.iter[:3]:
            ids.append(model.input_ids)
            sizes.append(model.input_size)
            streams.append(block.layer_output)
            logits.append(model.logits)
        result = tracer.result.save()
    seq = len(model.tokenizer(prompt)["input_ids"])
    assert [one.shape[1] for one in streams] == [seq, 1, 1]
    assert [tuple(size) for size in sizes] == [(1, seq), (1, 1), (1, 1)]
    tokens = list(result.outputs[0].token_ids)
    assert [one.flatten().tolist() for one in ids[1:]] == [[tokens[0]], [tokens[1]]]
    # Each step's last position is that of transformers on the whole text so far.
    whole = model.tokenizer(prompt)["input_ids"]
    for step in range(3):
        reference = oracle(whole + tokens[:step])
        assert gap(streams[step][:, -1], reference["layers.2.layer_output"][:, -1]) <= FLOAT32
        assert gap(logits[step], reference["logits"]) <= FLOAT32
        assert tokens[step] == reference["logits"].argmax().item()


def test_a_request_has_ended_when_its_last_token_stops_it() -> None:
    """What an engine that schedules ahead knows before a step: the tokens of the one before, still on the device."""

    def state(tokens: int, **settings: Any) -> Any:
        given = {"stop_token_ids": [], "eos_token_id": 2, "min_tokens": 0, **settings}
        return SimpleNamespace(output_token_ids=[-1] * tokens, sampling_params=SimpleNamespace(**given))

    states = {
        "end of text": state(1),
        "another token": state(1),
        "stop token": state(3, stop_token_ids=[7], eos_token_id=None),
        "too short": state(1, min_tokens=2),
        "long enough": state(2, min_tokens=2),
        "end of text ignored": state(1, eos_token_id=None),
        "not watched": state(1),
    }
    drawn = torch.tensor([[2], [5], [7], [2], [2], [2], [2]])
    batch = SimpleNamespace(prev_sampled_token_ids=drawn, prev_req_id_to_index={key: row for row, key in enumerate(states)})
    watched = [*(key for key in states if key != "not watched"), "new in this step"]
    assert ended(batch, states, watched) == {"end of text", "stop token", "long enough"}
    assert ended(SimpleNamespace(prev_sampled_token_ids=None, prev_req_id_to_index=None), states, watched) == set()
    assert ended(SimpleNamespace(), states, watched) == set()


@on_qwen2
def test_a_request_that_stops_early_has_as_many_steps_as_tokens(model: Any, prompt: str) -> None:
    """An engine that schedules ahead computes one step more than it needs, which no block sees."""
    block = model.layers[2]
    generated = []
    for one in (prompt, [5, 6, 7]):
        with model.trace(one, temperature=0.0, max_tokens=8, ignore_eos=True) as tracer:
            whole = tracer.result.save()
        generated.append(list(whole.outputs[0].token_ids))
    tokens, beside = generated
    for stop in dict.fromkeys(tokens[:4]):
        expected = tokens.index(stop) + 1
        with model.trace(temperature=0.0, max_tokens=8, stop_token_ids=[stop], ignore_eos=True) as tracer:
            with tracer.invoke(prompt):
                streams = nnsight.save([])
                for _ in tracer.iter[:]:
                    streams.append(block.layer_output)
            with tracer.invoke([5, 6, 7]):  # goes on beside it
                result = tracer.result.save()
        assert len(streams) == expected
        assert list(result.outputs[0].token_ids) == beside[: [*beside, stop].index(stop) + 1]


DECODED = (
    "token_embeddings",
    "layers.2.layer_input",
    "layers.2.self_attn.attention_queries",
    "layers.2.self_attn.attention_keys",
    "layers.2.self_attn.attention_values",
    "layers.2.self_attn.attention_head_outputs",
    "layers.2.self_attn.attention_output",
    "layers.2.mlp.mlp_output",
    "layers.2.layer_output",
)


@pytest.mark.parametrize("key", DECODED)
def test_a_decode_step_serves_and_takes_every_value_of_its_one_token(
    model: Any, oracle: Oracle, prompt: str, key: str
) -> None:
    host, value = at(model, key)
    axis = 2 if key.rsplit("_", 1)[-1] in ("queries", "keys", "values") else 1
    with model.trace(prompt, **THREE) as tracer:
        seen, logits = nnsight.save([]), nnsight.save([])
        for step in tracer.iter[:2]:
            seen.append(getattr(host, value).clone())
            if step == 1:
                getattr(host, value)[:] *= -0.5
            logits.append(model.logits)
    whole = [*model.tokenizer(prompt)["input_ids"], int(logits[0].argmax())]
    reference = oracle(whole)
    assert seen[1].shape[axis] == 1
    assert gap(seen[1], reference[key].narrow(axis, -1, 1)) <= FLOAT32

    def last_only(full: torch.Tensor) -> torch.Tensor:
        full.narrow(axis, full.shape[axis] - 1, 1).mul_(-0.5)
        return full

    assert gap(logits[1], oracle(whole, {key: last_only})["logits"]) <= FLOAT32


@pytest.mark.filterwarnings("ignore:.*was never reached")  # nnsight says so of every open loop
def test_an_open_loop_runs_until_the_request_ends(model: Any, prompt: str) -> None:
    block = model.layers[1]
    with model.trace(prompt, temperature=0.0, max_tokens=5, ignore_eos=True) as tracer:
        lengths = nnsight.save([])
        for _ in tracer.iter[:]:
            lengths.append(block.layer_output.shape[1])
    assert lengths == [len(model.tokenizer(prompt)["input_ids"]), 1, 1, 1, 1]


def test_a_slice_of_steps_runs_on_those_alone(model: Any, prompt: str) -> None:
    block = model.layers[1]
    with model.trace(prompt, temperature=0.0, max_tokens=5, ignore_eos=True) as tracer:
        steps = nnsight.save([])
        for step in tracer.iter[1:3]:
            steps.append((step, block.layer_output.shape[1]))
    assert steps == [(1, 1), (2, 1)]


def test_a_block_without_iter_runs_on_the_prefill_alone(model: Any, prompt: str) -> None:
    block = model.layers[1]
    with model.trace(prompt, **THREE) as tracer:
        stream = block.layer_output.save()
        result = tracer.result.save()
    assert stream.shape[1] == len(model.tokenizer(prompt)["input_ids"])
    assert len(result.outputs[0].token_ids) == 3


@on_qwen2
def test_a_read_out_of_order_on_a_later_step_is_refused_and_not_served_from_the_next(model: Any, prompt: str) -> None:
    early, late = model.layers[0], model.layers[2]
    with pytest.raises(
        RuntimeError, match=r"^OutOfOrderError: model\.model\.layers\.0\.layer_output was asked for at step 1"
    ):
        with model.trace(prompt, **THREE) as tracer:
            for _ in tracer.iter[1:3]:
                late.layer_output.save()
                early.layer_output.save()
    with model.trace(prompt, **THREE) as tracer:
        steps = nnsight.save([])
        for _ in tracer.iter[1:3]:
            steps.append((early.layer_output, late.layer_output))
    assert len(steps) == 2


def test_the_pattern_of_a_decode_step_is_unavailable_before_anything_is_read(model: Any, prompt: str) -> None:
    attention = model.layers[1].self_attn
    for name in ("attention_probabilities", "attention_scores"):
        with pytest.raises(RuntimeError, match=rf"^Unavailable: .*{name} is there on the prefill only: this is step 1"):
            with model.trace(prompt, **THREE) as tracer:
                for _ in tracer.iter[:3]:
                    getattr(attention, name).save()
    with model.trace(prompt, **THREE) as tracer:
        shapes, caught = nnsight.save([]), nnsight.save([])
        for step in tracer.iter[:3]:
            try:
                shapes.append(tuple(attention.attention_probabilities.shape))
            except Exception as error:  # noqa: BLE001 - the block must go on, whatever the refusal is
                caught.append((step, type(error).__name__))
                shapes.append(tuple(attention.attention_queries.shape))  # the refused read did not move the model on
    seq = len(model.tokenizer(prompt)["input_ids"])
    assert shapes == [(1, 4, seq, seq), (1, 4, 1, 32), (1, 4, 1, 32)]
    assert caught == [(1, "Unavailable"), (2, "Unavailable")]


def test_a_forced_token_is_what_generation_goes_on_from(model: Any, oracle: Oracle, prompt: str) -> None:
    with model.trace(prompt, **THREE) as tracer:
        ids = nnsight.save([])
        for step in tracer.iter[:3]:
            ids.append(model.input_ids)
            if step == 0:
                model.samples = torch.full_like(model.samples, 42)
        result = tracer.result.save()
    assert result.outputs[0].token_ids[0] == 42
    assert ids[1].flatten().tolist() == [42]
    whole = [*model.tokenizer(prompt)["input_ids"], 42]
    assert result.outputs[0].token_ids[1] == oracle(whole)["logits"].argmax().item()


def test_writing_logits_on_every_step_writes_the_text(model: Any, prompt: str) -> None:
    wanted = [11, 22, 33]
    with model.trace(prompt, **THREE) as tracer:
        for step in tracer.iter[:3]:
            model.logits[0, 0, wanted[step]] = 1e4
        result = tracer.result.save()
    assert list(result.outputs[0].token_ids) == wanted


def test_settings_of_an_invoke_are_its_own(model: Any, prompt: str) -> None:
    with model.trace(temperature=0.0, ignore_eos=True) as tracer:
        with tracer.invoke(prompt, max_tokens=2):
            result = tracer.result.save()
        with tracer.invoke(prompt, max_tokens=5):
            result = tracer.result.save()
    assert [len(one.outputs[0].token_ids) for one in result] == [2, 5]


@on_qwen2
def test_the_end_of_text_ends_a_request_unless_it_is_ignored(model: Any, prompt: str) -> None:
    lengths = []
    for ignore in (False, True):
        with model.trace(prompt, temperature=0.0, max_tokens=4, ignore_eos=ignore) as tracer:
            for step in tracer.iter[:1]:
                del step
                model.samples = torch.zeros_like(model.samples)  # token 0 ends the text
            result = tracer.result.save()
        lengths.append(len(result.outputs[0].token_ids))
    assert lengths == [1, 4]


@on_qwen2
def test_an_unknown_setting_is_refused_by_name(model: Any, prompt: str) -> None:
    with pytest.raises(TypeError, match="temprature"):
        with model.trace(prompt, temprature=0.0):
            model.logits.save()


def test_steering_every_step_equals_steering_the_whole_text(model: Any, oracle: Oracle, prompt: str) -> None:
    vector = torch.linspace(-1, 1, 128)
    with model.trace(prompt, **THREE) as tracer:
        logits = nnsight.save([])
        for _ in tracer.iter[:3]:
            model.steer(1, vector, factor=2.0)
            logits.append(model.logits)
        result = tracer.result.save()
    whole = [*model.tokenizer(prompt)["input_ids"], *result.outputs[0].token_ids[:2]]
    reference = oracle(whole, {"layers.1.layer_output": lambda t: t + 2.0 * vector})
    assert gap(logits[2], reference["logits"]) <= FLOAT32


def test_greedy_traces_repeat_to_the_bit(model: Any, prompt: str) -> None:
    runs = []
    for _ in range(2):
        with model.trace(prompt, **GREEDY):
            logits = model.logits.save()
        runs.append(logits)
    assert torch.equal(*runs)


# --- requests that the engine preempts --------------------------------------------------------------------------------

TOKENS = 90
#: Four requests of 8 + 90 tokens need 16 blocks of 32 rows; ten leave some of them without and preempted.
CROWDED: dict[str, Any] = {"num_gpu_blocks_override": 10, "block_size": 32}
LONG: dict[str, Any] = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
MANY = [[5 + row, 6, 7 + row, 8, 9, 10 + row, 11, 12] for row in range(4)]


def preemptions(model: Any) -> int:
    """How often the engine has preempted a request so far."""
    return int(sum(one.value for one in model.vllm_entrypoint.get_metrics() if one.name == "vllm:num_preemptions"))


def test_a_preempted_request_reads_on_where_it_was(engines: Any) -> None:
    model = engines.get("qwen2", **CROWDED, disable_log_stats=False)

    def read(prompts: list[list[int]]) -> Any:
        with model.trace(**LONG) as tracer:
            for ids in prompts:
                with tracer.invoke(ids):
                    states = nnsight.save([])
                    for _ in tracer.iter[:TOKENS]:
                        states.append(model.layers[2].layer_output[:, -1])
        return states

    before = preemptions(model)
    together = read(MANY)
    assert preemptions(model) > before
    for ids, found in zip(MANY, together, strict=True):
        assert gap(torch.cat(found), torch.cat(read([ids]))) <= FLOAT32


@pytest.mark.parametrize("way", ["standard", "native"])
def test_a_preempted_request_whose_block_wrote_something_fails_by_name(engines: Any, way: str) -> None:
    """Its cache is computed again without what was written, so what followed would be another model's."""
    model = engines.get("qwen2", **CROWDED, disable_log_stats=False)

    def edit(prompts: list[list[int]]) -> Any:
        with model.trace(**LONG) as tracer:
            for ids in prompts:
                with tracer.invoke(ids):
                    for _ in tracer.iter[:TOKENS]:
                        if way == "standard":
                            model.layers[1].layer_output[:, -1] *= 0.5
                        else:
                            model.layers[1].output[0][-1] *= 0.5
                    result = tracer.result.save()
        return result

    with pytest.raises(RuntimeError, match=r"^UnsupportedEngine: vLLM's cache was full, so it preempted this request"):
        edit(MANY)
    assert len(edit(MANY[:1]).outputs[0].token_ids) == TOKENS
    assert model.vllm_entrypoint.collective_rpc("nnsight_request_count") == [0]
