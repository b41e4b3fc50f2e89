"""Which places of the model a block has passed is known without counting, and what is not known is not guessed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import nnsight
import pytest
import torch
from support.blocks import GREEDY, logits_of

from nnterp_vllm_core import UnsupportedEngine
from nnterp_vllm_core.worker.itinerary import Itinerary, Visits

on_qwen2 = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")


def called(path: str, *inside: list[str]) -> list[str]:
    """The places that a call of a module comes by."""
    return [f"{path}.input", f"{path}.skip", *(place for call in inside for place in call), f"{path}.output"]


SHARED = called("model.rope")
FORWARD = called("model", called("model.0", SHARED, called("model.0.mlp")), called("model.1", SHARED, called("model.1.mlp")))


def learned(later: list[str] | None = None) -> Itinerary:
    way = Itinerary.of(FORWARD, later or [])
    assert way is not None
    return way


def test_a_forward_is_read_as_calls_inside_calls() -> None:
    way = learned()
    assert way.around["model.1.mlp"] == {"model", "model.1"}
    assert way.around["model.rope"] == {"model", "model.0", "model.1"}
    assert way.once["model.0.input"] < way.once["model.0.mlp.output"] < way.once["model.0.output"]
    assert "model.rope.output" not in way.once  # it runs twice, so its visits are counted


def test_a_module_that_runs_outside_the_forward_as_well_is_counted() -> None:
    assert "model.1.mlp.output" not in learned(called("model.1.mlp")).once


@pytest.mark.parametrize("places", [[], FORWARD[:-1], FORWARD[1:], [*FORWARD[:2], *FORWARD[3:]]])
def test_what_is_no_forward_is_not_learned(places: list[str]) -> None:
    assert Itinerary.of(places, []) is None


def go(visits: Visits, places: list[str]) -> None:
    """The forward comes by these places and serves whoever waits."""
    for place in places:
        visits.arrive(place)
        visits.leave(place)
        if place == "model.output":
            visits.end()


def test_what_is_known_is_what_would_be_counted() -> None:
    way, visits = learned(), Visits()
    visits.learn(way)
    block = SimpleNamespace(began=0, counts_at_start={})
    for step in range(3):
        for at, place in enumerate(FORWARD):
            visits.arrive(place)
            for other, number in way.once.items():
                assert visits.seen_by(block, other) == step + (number < at), (step, place, other)
            visits.leave(place)
        visits.end()
        assert {visits.seen_by(block, other) for other in way.once} == {step + 1}


def test_places_where_nobody_waits_need_not_be_seen() -> None:
    visits = Visits()
    visits.learn(learned())
    go(visits, ["model.input", "model.1.input"])
    block = SimpleNamespace(began=0, counts_at_start={})
    assert [visits.seen_by(block, f"model.{layer}.mlp.output") for layer in (0, 1)] == [1, 0]


def test_a_block_counts_from_where_it_began() -> None:
    visits = Visits()
    visits.learn(learned())
    go(visits, FORWARD * 2)
    block = SimpleNamespace(began=visits.forwards, counts_at_start={})
    assert visits.seen_by(block, "model.0.output") == 0
    go(visits, FORWARD)
    assert visits.seen_by(block, "model.0.output") == 1


def test_counting_goes_on_where_knowing_ends() -> None:
    visits = Visits()
    visits.learn(learned())
    go(visits, FORWARD)
    block = SimpleNamespace(began=1, counts_at_start={})
    go(visits, FORWARD)
    visits.forget([block])
    assert visits.seen_by(block, "model.1.output") == 1
    visits["model.1.output"] += 1
    assert visits.seen_by(block, "model.1.output") == 2


@pytest.mark.parametrize(
    "surprise",
    [
        ["model.1.input", "model.0.input"],
        ["model.stranger.input"],
        ["model.0.input", "model.0.mlp.input", "model.0.input"],
        [*SHARED, *SHARED, *SHARED],
    ],
)
def test_a_forward_off_its_way_is_refused_and_not_guessed(surprise: list[str]) -> None:
    visits = Visits()
    visits.learn(learned())
    go(visits, ["model.input", *surprise])
    with pytest.raises(UnsupportedEngine, match=r"in another order .* model\.1\.output is not known\. Run the block again"):
        visits.seen_by(SimpleNamespace(began=0, counts_at_start={}), "model.1.output")


def test_visits_of_a_module_that_runs_twice_are_told_apart_by_where_they_stand() -> None:
    visits = Visits()
    visits.learn(learned())
    # The first layer is left out, and with it the first of the two.
    go(visits, ["model.input", "model.0.input", "model.0.skip", "model.0.output", *SHARED])
    block = SimpleNamespace(began=0, counts_at_start={})
    assert visits.seen_by(block, "model.1.skip") == 1
    assert visits.seen_by(block, "model.1.mlp.input") == 0
    assert visits.lost is None


# --- on the engine ----------------------------------------------------------------------------------------------------


def _unlearned(worker: Any) -> None:
    """Forget the way, as on an engine that has just been loaded."""
    handoffs = worker.model_runner.nnsight_requests.handoffs
    handoffs._learn()
    handoffs._way = None
    handoffs._known.clear()
    handoffs._visits.way = None


def _known(worker: Any) -> tuple[set[bool], bool]:
    handoffs = worker.model_runner.nnsight_requests.handoffs
    handoffs._learn()
    return handoffs._known, handoffs._irregular


@on_qwen2
def test_a_step_that_leaves_modules_out_teaches_nothing(model: Any, prompt: str) -> None:
    engine = model.vllm_entrypoint
    clean = logits_of(model, prompt)

    def without_mlp() -> torch.Tensor:
        mlp = model.model.layers[1].mlp
        with model.trace(prompt, **GREEDY):
            mlp.skip(torch.zeros_like(mlp.input))
            logits = model.logits.save()
        return logits

    engine.collective_rpc(_unlearned)
    skipped = without_mlp()
    assert engine.collective_rpc(_known) == [(set(), False)]
    assert not torch.equal(skipped, clean)
    assert torch.equal(logits_of(model, prompt), clean)
    assert engine.collective_rpc(_known) == [({False}, False)]
    assert torch.equal(without_mlp(), skipped)
    assert torch.equal(logits_of(model, prompt), clean)


@on_qwen2
def test_generation_is_the_same_while_the_way_is_learned_and_after(model: Any, prompt: str) -> None:
    engine = model.vllm_entrypoint

    def streams() -> torch.Tensor:
        with model.trace(prompt, temperature=0.0, max_tokens=4, ignore_eos=True) as tracer:
            rows = [].save()
            for _ in tracer.iter[:4]:
                rows.append(model.layers[0].mlp.mlp_output[:, -1])
                rows.append(model.layers[2].layer_output[:, -1])
                rows.append(model.model.layers[3].mlp.down_proj.output[0][-1:])
        return torch.cat(rows)

    engine.collective_rpc(_unlearned)
    counted = streams()
    assert engine.collective_rpc(_known) == [({False, True}, False)]
    known = streams()
    assert torch.equal(known, counted)
    assert len(known) == 12


@on_qwen2
def test_a_block_that_ends_with_the_prefill_teaches_nothing_wrong(model: Any, prompt: str) -> None:
    engine = model.vllm_entrypoint
    engine.collective_rpc(_unlearned)
    with model.trace(prompt, temperature=0.0, max_tokens=4, ignore_eos=True):
        model.layers[1].layer_output.save()
    assert engine.collective_rpc(_known) == [({False}, False)]


@on_qwen2
def test_a_point_inside_a_module_is_counted_from_where_the_block_opened_it(model: Any, prompt: str) -> None:
    settings = {"temperature": 0.0, "max_tokens": 5, "ignore_eos": True}
    block = model.model.layers[3].mlp
    for _ in range(2):  # both kinds of step are known
        with model.trace(prompt, **settings) as tracer:
            for _ in tracer.iter[:5]:
                model.layers[0].layer_output  # noqa: B018
    assert model.vllm_entrypoint.collective_rpc(_known) == [({False, True}, False)]
    with warnings.catch_warnings(), model.trace(prompt, **settings) as tracer:
        warnings.simplefilter("error")
        point = block.source.self_down_proj_0
        for step in tracer.iter[:3]:
            if step == 2:
                inside = point.output[0].clone().save()
            else:
                model.layers[0].layer_output  # noqa: B018
    with model.trace(prompt, **settings) as tracer:
        for step in tracer.iter[:3]:
            if step == 2:
                expected = block.down_proj.output[0].clone().save()
    assert torch.equal(inside, expected)


@on_qwen2
def test_a_point_that_is_left_out_teaches_nothing(model: Any, prompt: str) -> None:
    engine = model.vllm_entrypoint
    clean = logits_of(model, prompt)
    layer = model.model.layers[1]
    engine.collective_rpc(_unlearned)
    with model.trace(prompt, **GREEDY):
        layer.source.self_mlp_0.skip(torch.zeros_like(layer.post_attention_layernorm.output[0]))
        skipped = model.logits.save()
    assert not torch.equal(skipped, clean)
    assert engine.collective_rpc(_known) == [(set(), False)]
    assert torch.equal(logits_of(model, prompt), clean)
    assert engine.collective_rpc(_known) == [({False}, False)]


@on_qwen2
def test_a_layer_that_is_left_out_leaves_the_way_known(model: Any, prompt: str) -> None:
    logits_of(model, prompt)
    layer = model.model.layers[1]
    with model.trace(prompt, **GREEDY):
        before = model.layers[0].layer_output.save()
        arguments, _ = layer.inputs
        layer.skip(arguments[1:])
        after = model.layers[2].layer_input.save()
    assert torch.equal(before, after)
    assert model.vllm_entrypoint.collective_rpc(_known)[0][1] is False


@on_qwen2
def test_an_engine_that_is_run_inside_another_block_knows_its_way(model: Any, prompt: str) -> None:
    other = nnsight.NNsight(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
    for _ in range(2):  # both kinds of step are known
        with model.trace(prompt, temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
            for _ in tracer.iter[:3]:
                model.layers[0].layer_output  # noqa: B018
    assert model.vllm_entrypoint.collective_rpc(_known) == [({False, True}, False)]

    def backwards() -> None:
        with model.trace(prompt, temperature=0.0, max_tokens=3, ignore_eos=True):
            model.layers[2].layer_output  # noqa: B018
            model.layers[1].layer_output  # noqa: B018

    said = []
    with other.trace(torch.ones(1, 4)):
        other[0].output  # noqa: B018
        try:
            backwards()
        except RuntimeError as error:
            said.append(str(error))
    assert len(said) == 1
    assert "the model had already passed it" in said[0]


def _another_way(worker: Any) -> None:
    """As if the prefill had run one module elsewhere."""
    handoffs = worker.model_runner.nnsight_requests.handoffs
    handoffs._way.places = [*handoffs._way.places, "model.elsewhere"]


@on_qwen2
def test_a_decode_step_that_goes_another_way_than_the_prefill_is_counted_for_good(model: Any, prompt: str) -> None:
    engine = model.vllm_entrypoint

    def streams() -> torch.Tensor:
        with model.trace(prompt, temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
            rows = [].save()
            for _ in tracer.iter[:3]:
                rows.append(model.layers[1].layer_output[:, -1])
        return torch.cat(rows)

    expected = streams()
    engine.collective_rpc(_unlearned)
    logits_of(model, prompt)
    assert engine.collective_rpc(_known) == [({False}, False)]
    engine.collective_rpc(_another_way)
    assert torch.equal(streams(), expected)
    assert engine.collective_rpc(_known) == [({False}, True)]
    assert torch.equal(streams(), expected)
    engine.collective_rpc(_regular)
    engine.collective_rpc(_unlearned)


@on_qwen2
def test_on_an_engine_off_its_way_one_block_fails_by_name_and_the_next_is_counted(model: Any, prompt: str) -> None:
    engine = model.vllm_entrypoint
    clean = logits_of(model, prompt)
    with pytest.raises(Exception, match="in another order than on the steps before"), model.trace(prompt, **GREEDY):
        model.layers[0].layer_output  # noqa: B018
        model.interleaver.counts.lost = "model.model.layers.0.output"
        late = model.layers[2].layer_output.save()  # noqa: F841
    assert torch.equal(logits_of(model, prompt), clean)
    assert engine.collective_rpc(_known)[0][1] is True
    engine.collective_rpc(_regular)


def _regular(worker: Any) -> None:
    worker.model_runner.nnsight_requests.handoffs._irregular = False
