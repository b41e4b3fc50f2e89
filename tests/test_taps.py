"""Taps in standard names: the locations that they mean, what a tapped engine serves, and what it says about the rest.

On CUDA these engines replay recorded graphs. vLLM's CPU engine records none, and there the same taps bound what is served.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nnsight
import pytest
import torch
from support.blocks import FLOAT32, GREEDY, at
from support.engines import OPTIONS, Engines, start, stop
from support.oracle import Oracle, gap

from nnterp_vllm_core import StandardizedVLLM, Unavailable, UnsupportedEngine
from nnterp_vllm_core.taps import GROUPS, resolve
from nnterp_vllm_core.testing import GPT2_SIZES, SIZES, ConformanceSuite

ON_CUDA = torch.cuda.is_available()
on_qwen2 = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")
STEPS = 6
PROMPTS = ("The Eiffel Tower is in the city of", "hello", "The capital of Japan is Tokyo and that of France")


@pytest.fixture(scope="module")
def weightless(engines: Engines) -> dict[str, Any]:
    """Models without an engine, whose trees taps resolve against."""
    return {
        name: StandardizedVLLM(str(engines.checkpoints[name]), dtype="float32", max_model_len=128)
        for name in ("qwen2", "llama", "gpt2")
    }


def resolved(model: Any, *taps: str) -> list[str]:
    locations, native = resolve(taps, model._module, model.plan)
    assert native == []
    return locations


def test_a_pattern_means_the_locations_of_its_value(weightless: dict[str, Any]) -> None:
    qwen2, gpt2 = weightless["qwen2"], weightless["gpt2"]
    assert resolved(qwen2, "layers.*.layer_output") == [f"model.model.layers.{index}.output" for index in range(4)]
    assert resolved(qwen2, "layers.3.self_attn.attention_head_outputs") == ["model.model.layers.3.self_attn.attn.output"]
    assert resolved(gpt2, "layers.1.mlp.mlp_output", "token_embeddings") == [
        "model.transformer.h.1.mlp.output",
        "model.transformer.wte.output",
    ]


def test_groups_are_parts_of_the_whole(weightless: dict[str, Any]) -> None:
    for model in weightless.values():
        whole = resolved(model, "standard")
        parts = {group: set(resolved(model, group)) for group in GROUPS if group != "standard"}
        assert set().union(*parts.values()) == set(whole)
        assert len(whole) == len(set(whole))
        assert all(part and part < set(whole) for part in parts.values())


def test_a_location_of_nnsights_passes_and_a_wrong_name_is_named(weightless: dict[str, Any]) -> None:
    model = weightless["llama"]
    assert resolve(["model.layers.*.mlp.output"], model._module, model.plan) == ([], ["model.layers.*.mlp.output"])
    for tap, near in {"boundry": "'boundary'", "layers.*.layer_outputs": r"'layers\.\*\.layer_output'"}.items():
        with pytest.raises(UnsupportedEngine, match=f"{tap.replace('*', '.')}.*Did you mean {near}"):
            resolve([tap], model._module, model.plan)
    with pytest.raises(UnsupportedEngine, match="names no value that can be tapped on this model"):
        resolve(["layers.4.layer_output"], model._module, model.plan)


@contextmanager
def tapped(engines: Engines, name: str, taps: Any = "standard") -> Iterator[Any]:
    """An engine with taps in this process, the only one while it runs."""
    engines.close()
    model = start(engines.checkpoints[name], taps=taps)
    try:
        yield model
    finally:
        stop(model)


def run(model: Any, *, edits: bool = True) -> list[list[dict[str, torch.Tensor]]]:
    """Of three requests, values of a block and of its neighbours on every step; the second request edits on every step."""
    before = ["token_embeddings", "layers.0.layer_output", "layers.1.layer_input"]
    before += [f"layers.1.self_attn.attention_{name}" for name in ("queries", "keys", "values", "head_outputs", "output")]
    before += ["layers.1.mlp.mlp_output", "layers.1.layer_output"]
    reads = [[(place, *at(model, place)) for place in places] for places in (before, ["layers.3.layer_output", "logits"])]
    first, attention = model.layers[0], model.layers[2].self_attn
    with model.trace(temperature=0.0, max_tokens=STEPS, ignore_eos=True) as tracer:
        for number, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                steps = nnsight.save([])
                for _ in tracer.iter[:STEPS]:
                    values = {}
                    for place, envoy, name in reads[0]:
                        if edits and number == 1 and place == "layers.1.layer_input":
                            first.layer_output[:, -1] *= -0.5
                        values[place] = getattr(envoy, name)
                    if edits and number == 1:
                        attention.attention_head_outputs[:, :, 1] = 0
                    for place, envoy, name in reads[1]:
                        values[place] = getattr(envoy, name)
                    steps.append(values)
    answers: Any = steps
    return [[{key: value.cpu() for key, value in step.items()} for step in request] for request in answers]


@pytest.mark.parametrize("name", ["qwen2", "gpt2"], indirect=True, scope="session")
def test_a_tapped_engine_serves_and_takes_what_an_eager_one_does(name: str, engines: Engines) -> None:
    with tapped(engines, name) as model:
        ours, unedited = run(model), run(model, edits=False)
    eager = run(engines.get(name))
    assert [len(request) for request in ours] == [STEPS] * len(PROMPTS)
    for request, (one, other) in enumerate(zip(ours, eager, strict=True)):
        for step, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            # A graph is recorded for more rows than a step has, and a matrix product's sums depend on how many there are.
            gaps = {key: gap(value, theirs[key]) for key, value in mine.items()}
            assert {key: found for key, found in gaps.items() if found > FLOAT32} == {}, (request, step)
    assert gap(ours[1][0]["layers.3.layer_output"], unedited[1][0]["layers.3.layer_output"]) > 100 * FLOAT32
    for request in (0, 2):
        for mine, theirs in zip(ours[request], unedited[request], strict=True):
            assert all(torch.equal(value, theirs[key]) for key, value in mine.items()), "an edit reached another request"


@on_qwen2
def test_a_step_replays_a_graph_where_there_are_graphs(name: str, engines: Engines) -> None:
    with tapped(engines, name) as model:
        worker = model.vllm_entrypoint.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        ran: list[int] = []
        worker.model_runner.model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: ran.append(1))
        run(model)
    assert len(ran) == (0 if ON_CUDA else STEPS)


@on_qwen2
def test_what_is_not_tapped_names_the_tap_to_add_and_the_engine_lives(name: str, engines: Engines, oracle: Oracle) -> None:
    reference = oracle(PROMPTS[0])
    with tapped(engines, name, ["layers.*.layer_output", "layers.2.self_attn.attention_queries"]) as model:
        for place, tap in {
            "token_embeddings": "token_embeddings",
            "layers.1.mlp.mlp_output": "layers.*.mlp.mlp_output",
            "layers.1.self_attn.attention_values": "layers.*.self_attn.attention_values",
        }.items():
            host, value = at(model, place)
            for write in (False, True):
                with pytest.raises(RuntimeError) as caught:
                    with model.trace(PROMPTS[0], **GREEDY):
                        if write:
                            setattr(host, value, torch.zeros(1))
                        else:
                            getattr(host, value).save()
                first = str(caught.value).splitlines()[0]
                assert first.startswith("Unavailable: "), (place, write)
                assert f"{value} is not tapped on this engine" in first
                assert f"Add {tap!r} (or 'standard') to taps=[...]" in first
        with pytest.raises(Unavailable, match="token_embeddings is not tapped"):
            model.collect([PROMPTS[0]], "token_embeddings", quiet=True)
        with model.trace(PROMPTS[0], **GREEDY):
            # Queries, keys and values are served at one place, so a tap on one brings the others and the pattern.
            pattern = model.layers[2].self_attn.attention_probabilities.save()
            stream = model.layers[3].layer_output.save()
            logits = model.logits.save()
    assert gap(pattern, reference["layers.2.self_attn.attention_probabilities"]) <= FLOAT32
    assert gap(stream, reference["layers.3.layer_output"]) <= FLOAT32
    assert gap(logits, reference["logits"]) <= FLOAT32


@on_qwen2
def test_bulk_collection_takes_tapped_values(name: str, engines: Engines, oracle: Oracle) -> None:
    with tapped(engines, name) as model:
        found = model.collect(list(PROMPTS), "layers.*.layer_output", positions="all", quiet=True)
    for number, prompt in enumerate(PROMPTS):
        reference = oracle(prompt)
        for index in range(4):
            key = f"layers.{index}.layer_output"
            assert gap(found.prompt(number)[key], reference[key][0]) <= FLOAT32, (number, index)


@on_qwen2
def test_an_engine_in_this_process_is_refused_where_its_graphs_could_not_stop(
    name: str, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.close()
    monkeypatch.delenv("VLLM_USE_BREAKABLE_CUDAGRAPH")
    before = dict(os.environ)
    with pytest.raises(UnsupportedEngine, match="VLLM_USE_BREAKABLE_CUDAGRAPH=1 in the environment before Python starts"):
        start(engines.checkpoints[name], taps="standard")
    stop(StandardizedVLLM(str(engines.checkpoints[name]), **OPTIONS))
    changed = {key for key in before.keys() | os.environ.keys() if before.get(key) != os.environ.get(key)}
    assert not {key for key in changed if key.startswith(("VLLM_USE_", "VLLM_WORKER_", "TRITON_"))}


class TestTappedQwen2(ConformanceSuite):
    """A fused stream."""

    model_type = "qwen2"
    config = {**SIZES}
    engines = ("vllm",)
    engine_options = {"taps": "standard"}


@pytest.mark.skipif(not ON_CUDA, reason="without graphs a tapped engine differs from an eager one by its refusals alone")
class TestTappedGPT2(ConformanceSuite):
    """A stream that a block returns whole."""

    model_type = "gpt2"
    config = GPT2_SIZES
    engines = ("vllm",)
    engine_options = {"taps": "standard"}
