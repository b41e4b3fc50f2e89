"""Engine options under which a prompt may come in parts: whole values or an error, never short rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.blocks import FLOAT32, GREEDY, logits_of
from support.engines import OPTIONS, Engines, start, stop
from support.oracle import Oracle, gap

pytestmark = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")
LONG = "The Eiffel Tower is in the city of Paris and the capital of Japan is Tokyo, hello world. " * 2


def test_an_engine_starts_with_the_first_trace_and_takes_blocks_bound_before(
    name: str, engines: Engines, oracle: Oracle, prompt: str
) -> None:
    from nnterp_vllm_core import StandardizedVLLM

    engines.close()
    model = StandardizedVLLM(str(engines.checkpoints[name]), **{**OPTIONS, "dispatch": False})
    block = model.layers[1]
    attention = block.self_attn
    assert model.vllm_entrypoint is None
    try:
        with model.trace(prompt, **GREEDY):
            pattern = attention.attention_probabilities.save()
            stream = block.layer_output.save()
    finally:
        stop(model)
    reference = oracle(prompt)
    assert gap(pattern, reference["layers.1.self_attn.attention_probabilities"]) <= FLOAT32
    assert gap(stream, reference["layers.1.layer_output"]) <= FLOAT32


@pytest.fixture
def cached(name: str, engines: Engines) -> Any:
    engines.close()
    model = start(engines.checkpoints[name], enable_prefix_caching=True, block_size=32)
    yield model
    stop(model)


def test_a_block_reads_every_row_whatever_the_prefix_cache_holds(cached: Any, oracle: Oracle) -> None:
    from vllm import SamplingParams

    block = cached.layers[1]
    reference = oracle(LONG)["layers.1.layer_output"]
    cached.vllm_entrypoint.generate([LONG], SamplingParams(**GREEDY))
    for prompt in (LONG, cached.tokenizer(LONG)["input_ids"], LONG):
        with cached.trace(prompt, **GREEDY):
            stream = block.layer_output.save()
        assert gap(stream, reference) <= FLOAT32


def test_a_steered_prompt_does_not_poison_a_later_request(cached: Any, oracle: Oracle) -> None:
    from vllm import SamplingParams

    settings = SamplingParams(temperature=0.0, max_tokens=1, logprobs=1)
    before = cached.vllm_entrypoint.generate(["hello " + LONG], settings)[0].outputs[0]
    with cached.trace(LONG, **GREEDY):
        cached.steer(0, torch.ones(128), factor=5.0)
        steered = cached.logits.save()
    clean = oracle(LONG)["logits"]
    assert gap(steered, clean) > 100 * FLOAT32
    assert gap(logits_of(cached, LONG), clean) <= FLOAT32
    plain = cached.vllm_entrypoint.generate([LONG], settings)[0].outputs[0]
    assert plain.token_ids == [clean.argmax().item()]
    assert before.token_ids == cached.vllm_entrypoint.generate(["hello " + LONG], settings)[0].outputs[0].token_ids


def test_a_prompt_that_would_be_split_is_refused_and_short_ones_go_on(name: str, engines: Engines, oracle: Oracle) -> None:
    engines.close()
    model = start(engines.checkpoints[name], enable_chunked_prefill=True, max_num_batched_tokens=32)
    try:
        assert len(model.tokenizer(LONG)["input_ids"]) > 32
        with pytest.raises(RuntimeError, match="chunk"):
            logits_of(model, LONG)
        assert gap(logits_of(model, "hello world"), oracle("hello world")["logits"]) <= FLOAT32
    finally:
        stop(model)
