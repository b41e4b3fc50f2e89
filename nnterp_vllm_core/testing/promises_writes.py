"""Promises about what a block writes."""

from __future__ import annotations

import nnsight
import pytest
import torch

from .blocks import GREEDY
from .case import MIDDLE, Subject
from .compare import FLOAT32, Finding, differences, gap, report


class WritePromises:
    """Edits and assignments have one effect, the one they have in transformers, and touch nothing else."""

    def test_steering_has_the_effect_that_it_has_in_transformers(self, engine_under_test: Subject) -> None:
        """``steer`` against a plain hook that adds the same vector to transformers' stream."""
        subject = engine_under_test
        case, ids = subject.case, subject.case.prompts[0]
        layer = min(MIDDLE, len(subject.model.layers) - 1)
        reference = case.ask("steered", ids, layer, case.vector)
        ours = subject.runner.steered(ids, layer, case.vector, 1.0)
        stream = reference[f"layers.{len(subject.model.layers) - 1}.layer_output"]
        findings = differences(
            ours,
            {"stream": stream, "logits": reference["logits"]},
            {"stream": subject.allowed("layer_output"), "logits": subject.allowed("logits")},
        )
        assert not findings, report(subject.who, f"steering layer {layer} does what it does in transformers", findings)
        clean = case.values(ids)["logits"]
        assert gap(ours["logits"], clean) > 100 * FLOAT32, f"{subject.who}: steering layer {layer} changed no logits"

    def test_an_edit_has_the_effect_that_it_has_in_transformers(self, engine_under_test: Subject) -> None:
        """In place, each writable value of a block; an assignment does the same to the bit."""
        subject = engine_under_test
        ids, keys = subject.case.prompts[0], tuple(place.key for place in subject.writable())
        reference = subject.case.ask("edited", ids, keys)
        clean = subject.read()
        last = clean[f"layers.{len(subject.model.layers) - 1}.layer_output"]
        allowed = {"stream": subject.allowed("layer_output"), "logits": subject.allowed("logits")}
        findings: list[Finding] = []
        for key in keys:
            edited = subject.runner.edited(ids, key)
            assigned = subject.runner.edited(ids, key, assign=True)
            for name in edited:
                if not torch.equal(edited[name], assigned[name]):
                    observed = f"{gap(assigned[name], edited[name]):.1e} from the edit in place in the {name}"
                    findings.append(Finding(key=f"{key} assigned", observed=observed, allowed="the same bits"))
            if gap(edited["stream"], last) <= 100 * FLOAT32:
                findings.append(Finding(key=f"{key} edited", observed="no effect", allowed="another last stream"))
            for one in differences(edited, reference.get(key, {}), allowed):
                findings.append(Finding(key=f"{key} edited: {one.key}", observed=one.observed, allowed=one.allowed))
        assert not findings, report(subject.who, "edits do what they do in transformers", findings)

    def test_a_written_stream_enters_the_next_block_to_the_bit(self, engine_under_test: Subject) -> None:
        """And rows that were not written, and other requests, keep their bits."""
        subject = engine_under_test
        model, ids, other = subject.model, list(subject.case.prompts[0]), list(subject.case.prompts[2])
        layer = min(MIDDLE, len(model.layers) - 2)
        block, following, last = model.layers[layer], model.layers[layer + 1], model.layers[-1]
        results = []
        for amount in (0.0, 1.0):
            with model.trace(**GREEDY) as tracer:
                with tracer.invoke(ids):
                    stream = block.layer_output
                    if amount:
                        stream[:, 2] += amount
                    written = stream.clone().save()
                    entering = following.layer_input.save()
                with tracer.invoke(other):
                    untouched = last.layer_output.save()
            results.append((written, entering, untouched))
        (_, clean, alone), (written, entering, beside) = results
        rows = [row for row in range(len(ids)) if row != 2]
        who = f"{subject.who}: layers.{layer}.layer_output"
        assert torch.equal(entering, written), f"{who}: the next block got {gap(entering, written):.1e} off what was written"
        assert torch.equal(entering[:, rows], clean[:, rows]), f"{who}: a write to row 2 changed other rows"
        assert torch.equal(beside, alone), f"{who}: a write changed another request's stream"

    def test_another_height_is_refused_and_the_engine_lives(self, engine_under_test: Subject) -> None:
        """Every writable value refuses a shorter one in the block that writes it; the next trace is as before."""
        subject = engine_under_test
        model, ids = subject.model, list(subject.case.prompts[0])
        for place in subject.writable():
            envoy, name = place.envoy, place.name
            with pytest.raises(RuntimeError) as caught:
                with model.trace(ids, **GREEDY):
                    setattr(envoy, name, getattr(envoy, name)[:, :, :-1])
            first = str(caught.value).splitlines()[0]
            assert first.startswith("ValueError: "), f"{subject.who}: {place.key}: a wrong shape gave {first!r}"
            assert "cannot be replaced by a value of shape" in first, f"{subject.who}: {place.key}: {first!r}"
        assert torch.equal(subject.runner.read(ids, ["logits"])["logits"], subject.read()["logits"]), (
            f"{subject.who}: after refused writes the logits are others"
        )

    def test_read_only_values_refuse_writes(self, engine_under_test: Subject) -> None:
        """Both an assignment and an edit in place."""
        subject = engine_under_test
        model, ids = subject.model, list(subject.case.prompts[0])
        layer = min(MIDDLE, len(model.layers) - 1)
        for place in subject.runner.places():
            if place.writable or (place.key.startswith("layers.") and not place.key.startswith(f"layers.{layer}.")):
                continue
            envoy, name = place.envoy, place.name
            for assign in (True, False):
                with pytest.raises(RuntimeError) as caught:
                    with model.trace(ids, **GREEDY):
                        value = getattr(envoy, name)
                        if assign:
                            setattr(envoy, name, value.clone())
                        else:
                            value[:] = 0
                first = str(caught.value).splitlines()[0]
                assert first.startswith("ReadOnlyValue: "), f"{subject.who}: {place.key}: a write gave {first!r}"

    def test_unavailable_values_say_why(self, engine_under_test: Subject) -> None:
        """Each value that is not served raises `Unavailable` with its declared reason."""
        from .blocks import places

        subject = engine_under_test
        model, ids = subject.model, list(subject.case.prompts[0])
        layer = min(MIDDLE, len(model.layers) - 1)
        for place in places(model):
            if place.missing is None or (place.value.host != "model" and not place.key.startswith(f"layers.{layer}.")):
                continue
            envoy, name = place.envoy, place.name
            with pytest.raises(RuntimeError) as caught:
                with model.trace(ids, **GREEDY):
                    nnsight.save(getattr(envoy, name))
            first = str(caught.value).splitlines()[0]
            assert first.startswith("Unavailable: "), f"{subject.who}: {place.key}: reading it gave {first!r}"
            assert place.missing in str(caught.value), f"{subject.who}: {place.key}: {first!r} lacks {place.missing!r}"
