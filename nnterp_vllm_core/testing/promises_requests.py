"""Promises about requests: many at once, again, step by step, and what loading leaves alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import nnsight
import pytest
import torch

from ..protocol import VALUES
from .blocks import GREEDY
from .case import MIDDLE, STEPS, Subject
from .compare import Finding, differences, gap, report
from .patches import ours, snapshot


class RequestPromises:
    """A request is one sequence with its own block, whatever else the engine runs."""

    def test_twelve_requests_together_equal_their_solo_runs(self, engine_under_test: Subject) -> None:
        """Twelve prompts of different lengths in one trace, shuffled."""
        subject = engine_under_test
        model, draw = subject.model, random.Random(1)
        longest = subject.case.prompts[3]
        many = [longest[start : start + 1 + 2 * start] for start in range(12)]
        draw.shuffle(many)
        here = f"layers.{min(MIDDLE, len(model.layers) - 1)}."
        wanted = [place for place in subject.runner.places() if place.key == "logits" or place.key.startswith(here)]
        asked = [(place.key, place.envoy, place.name) for place in wanted]
        with model.trace(**GREEDY) as tracer:
            for ids in many:
                with tracer.invoke(ids):
                    found = nnsight.save({})
                    for key, envoy, name in asked:
                        found[key] = getattr(envoy, name)
        findings: list[Finding] = []
        answers: Any = found  # one for each invoke, in their order
        allowed = {name: subject.together(name) for name in VALUES}
        for ids, together in zip(many, answers, strict=True):
            solo = subject.runner.read(ids, [place.key for place in wanted])
            for one in differences(together, solo, allowed):
                findings.append(replace(one, key=f"{one.key} of {len(ids)} tokens"))
        assert not findings, report(subject.who, "requests together equal their solo runs", findings)

    def test_edits_of_requests_together_keep_apart(self, engine_under_test: Subject) -> None:
        """Six requests wait at one place and each steers by its own amount, one of them by nothing."""
        subject = engine_under_test
        model, vector = subject.model, subject.case.vector
        layer, longest = min(MIDDLE, len(model.layers) - 2), subject.case.prompts[3]
        wanted = [(longest[start : start + 4 + start % 3], 0.5 * (start - 2)) for start in range(6)]

        def run(pairs: list[tuple[list[int], float]]) -> Any:
            with model.trace(**GREEDY) as tracer:
                for ids, amount in pairs:
                    with tracer.invoke(ids):
                        stream = model.layers[layer].layer_output
                        if amount:
                            stream[:, -1] += (amount * vector).to(stream.device)
                        rows = model.layers[-1].layer_output.save()
            return rows

        findings: list[Finding] = []
        allowed = subject.together("layer_output")
        for (ids, amount), together in zip(wanted, run(wanted), strict=True):
            solo, plain = run([(ids, amount)]), run([(ids, 0.0)])
            if (away := gap(together, solo)) > allowed:
                what = f"layer_output of the last block, steered by {amount} at layer {layer}"
                findings.append(Finding(key=what, observed=f"{away:.1e} from the solo run", allowed=f"{allowed:.1e}"))
            assert torch.equal(solo, plain) == (amount == 0.0), f"{subject.who}: steering by {amount} changed nothing"
        assert not findings, report(subject.who, "edits of requests together keep apart", findings)

    def test_a_second_call_equals_the_first(self, engine_under_test: Subject) -> None:
        """To the bit, with other requests in between."""
        subject = engine_under_test
        for number in (0, 3):
            again, findings = subject.runner.read(subject.case.prompts[number]), []
            for key, value in subject.read(number).items():
                if not torch.equal(value, again[key]):
                    findings.append(
                        Finding(key=key, observed=f"{gap(again[key], value):.1e} apart", allowed="the same bits")
                    )
            assert not findings, report(subject.who, "a second call equals the first", findings)

    def test_decode_steps_equal_transformers(self, engine_under_test: Subject) -> None:
        """Greedy tokens, and one row a step that is the row of the whole text's forward under transformers."""
        subject = engine_under_test
        model, ids = subject.model, list(subject.case.prompts[0])
        tokens = subject.case.ask("greedy", tuple(ids), STEPS)
        reference = subject.case.values([*ids, *tokens])
        layers = list(range(len(model.layers)))
        with model.trace(ids, temperature=0.0, max_tokens=STEPS, ignore_eos=True) as tracer:
            steps = nnsight.save([])
            for _ in tracer.iter[:STEPS]:
                values = {}
                for index in layers:
                    block = model.layers[index]
                    values[f"layers.{index}.layer_input"] = block.layer_input
                    values[f"layers.{index}.layer_output"] = block.layer_output
                values["logits"] = model.logits
                steps.append(values)
            result = tracer.result.save()
        drawn = list(result.outputs[0].token_ids)
        assert drawn == tokens, f"{subject.who}: greedy tokens are {drawn}; transformers': {tokens}"
        allowed = {name: subject.allowed(name) for name in ("layer_input", "layer_output", "logits")}
        for number, step in enumerate(steps):
            rows = slice(0, len(ids)) if number == 0 else slice(len(ids) + number - 1, len(ids) + number)
            streams = {key: value for key, value in step.items() if key != "logits"}
            findings = differences(streams, {key: reference[key][:, rows] for key in streams}, allowed)
            assert not findings, report(subject.who, f"step {number} equals transformers'", findings)
        last = {"logits": steps[-1]["logits"]}
        whole = subject.case.values([*ids, *tokens[:-1]])
        findings = differences(last, {"logits": whole["logits"]}, allowed)
        assert not findings, report(subject.who, f"logits of step {STEPS - 1} equal transformers'", findings)

    def test_the_pattern_is_unavailable_on_a_decode_step(self, engine_under_test: Subject) -> None:
        """A decode step holds one token's keys, so it says so instead of serving a wrong pattern."""
        subject = engine_under_test
        model, ids = subject.model, list(subject.case.prompts[0])
        patterns = [place for place in subject.runner.places() if place.name == "attention_probabilities"]
        if not patterns:
            return  # `test_unavailable_values_say_why` asks for it
        attention = patterns[0].envoy
        with pytest.raises(RuntimeError) as caught:
            with model.trace(ids, temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
                for _ in tracer.iter[:2]:
                    attention.attention_probabilities.save()
        first = str(caught.value).splitlines()[0]
        assert first.startswith("Unavailable: "), f"{subject.who}: the pattern of a decode step gave {first!r}"

    def test_loading_patched_nothing(self, engine_under_test: Subject) -> None:
        """No class that other models and engines share holds anything of ours."""
        subject = engine_under_test
        module = subject.model.vllm_entrypoint.llm_engine.engine_core.engine_core.model_executor
        worker = module.driver_worker.worker
        loaded = worker.model_runner.model
        classes = {type(part) for part in loaded.modules() if type(part).__module__.partition(".")[0] != "nnterp_vllm_core"}
        found = ours(subject.before, snapshot(), *classes)
        assert not found, f"{subject.who}: attributes of shared classes are ours: {found}; allowed: none"
