"""Promises about what a block reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ..family import FusedStream, Missing
from ..places import module_at
from ..protocol import INTERIOR, VALUES
from .case import Case, Subject
from .compare import FLOAT32, Finding, compared, differences, gap, report
from .record import record

_EPS = torch.finfo(torch.float32).eps


class ValuePromises:
    """Names, sizes, what is served, and that it equals what transformers computes."""

    # --- our transformers engine, against plain hooks -----------------------------------------------------------------

    def test_transformers_engine_serves_what_transformers_records(self, checkpoint_under_test: Case) -> None:
        """Every value of `StandardizedTransformer` equals the oracle's."""
        case = checkpoint_under_test
        for ids in case.prompts:
            case.ahead("parity", ids, not case.suite.no_identity)
        findings = []
        for ids in case.prompts:
            for one in case.ask("parity", ids, not case.suite.no_identity):
                findings.append(replace(one, key=f"{one.key} of {len(ids)} tokens"))
        assert not findings, report(f"{case.who} on transformers", "values equal what transformers records", findings)

    def test_transformers_engine_projects_and_steers(self, checkpoint_under_test: Case) -> None:
        """``project_on_vocab``, ``next_token_probs`` and ``steer`` of `StandardizedTransformer`."""
        case = checkpoint_under_test
        findings = case.ask("methods", case.prompts[0], 1, case.vector)
        assert not findings, report(f"{case.who} on transformers", "methods do what plain hooks do", findings)

    # --- the vLLM engine ----------------------------------------------------------------------------------------------

    @pytest.mark.variants
    def test_sizes_are_those_of_the_modules(self, engine_under_test: Subject) -> None:
        """The sizes that a model reports are the shapes that transformers shows."""
        subject = engine_under_test
        model, case = subject.model, subject.case
        reference = case.values(case.prompts[0])
        expected = {name: case.opened[name] for name in ("num_layers", "vocab_size")}
        expected["hidden_size"] = reference["layers.0.layer_input"].shape[-1]
        served = subject.read()
        for size, key, axis in (
            ("num_heads", "attention_queries", 1),
            ("num_kv_heads", "attention_keys", 1),
            ("head_dim", "attention_queries", 3),
        ):
            found = {value.shape[axis] for name, value in served.items() if name.endswith(f".{key}")}
            if found:
                expected[size] = max(found)
        observed = {name: getattr(model, name) for name in expected}
        assert observed == expected, f"{subject.who}: sizes: {observed}; expected: {expected}"
        assert len(model.layers) == model.num_layers, f"{subject.who}: {len(model.layers)} layers"
        assert model.intermediate_size > 0, f"{subject.who}: intermediate_size is {model.intermediate_size}"

    @pytest.mark.variants
    def test_names_lead_to_modules(self, engine_under_test: Subject) -> None:
        """Every standard name that is declared is there, and is the module at its native path."""
        subject = engine_under_test
        model, names = subject.model, subject.implementation.names
        for standard, native in names.items():
            if standard in ("layers", "embed_tokens") or module_at(model._module, native) is not None:
                found, expected = getattr(model, standard), model.get(native)
                assert found is expected, f"{subject.who}: {standard} is not {native}"
        for index, block in enumerate(model.layers):
            for standard, native in subject.implementation.block_names.items():
                if native in block._child_map:
                    found = getattr(block, standard)
                    assert found is block._child_map[native], f"{subject.who}: layers.{index}.{standard} is not {native}"

    @pytest.mark.variants
    def test_support_says_what_the_family_declares(self, engine_under_test: Subject) -> None:
        """What is declared missing is unavailable with its reason, and everything else is served."""
        subject = engine_under_test
        declared = subject.implementation.values
        missing = {name: place.reason for name, place in declared.items() if isinstance(place, Missing)}
        findings = []
        for path, status in subject.model.support().items():
            name = path.rpartition(".")[2]
            if name not in VALUES or name == "attention_mask":
                continue  # an extra value of a plugin, and the one that no request has
            expected = f"unavailable: {missing[name]}" if name in missing else "served"
            if not status.startswith(expected):
                findings.append(Finding(key=path, observed=status, allowed=expected))
        assert not findings, report(subject.who, "support() agrees with the declaration", findings)

    @pytest.mark.variants
    def test_every_value_equals_transformers(self, engine_under_test: Subject) -> None:
        """Every served value of every block, for prompts of one token, of a few, and longer than any window."""
        subject = engine_under_test
        allowed, findings = {name: subject.allowed(name) for name in VALUES}, []
        for number, ids in enumerate(subject.case.prompts):
            ours, reference = subject.read(number), subject.case.values(ids)
            if number == len(subject.case.prompts) - 1:
                record(subject, ours, reference)
            for one in differences(ours, reference, allowed):
                findings.append(replace(one, key=f"{one.key} of {len(ids)} tokens"))
            for key in ours.keys() - reference.keys():
                # Interior values that transformers computes out of reach are checked against one another, below.
                if key.rpartition(".")[2] not in INTERIOR:
                    findings.append(Finding(key=key, observed="no reference", allowed="a value of transformers"))
        assert not findings, report(subject.who, "values equal transformers'", findings)

    @pytest.mark.variants
    def test_scores_give_the_pattern_and_the_pattern_gives_the_head_outputs(self, engine_under_test: Subject) -> None:
        """The interior is consistent: softmax of scores, pattern times values."""
        subject = engine_under_test
        found, findings = subject.read(3), []
        for index in range(len(subject.model.layers)):
            here = f"layers.{index}.self_attn"
            if any(f"{here}.{name}" not in found for name in INTERIOR):
                continue
            _, _, values, scores, pattern, heads = (found[f"{here}.{name}"] for name in INTERIOR)
            share = pattern.sum(-1, keepdim=True)  # less than one where a sink takes its own
            values = values.repeat_interleave(pattern.shape[1] // values.shape[1], dim=1)
            pairs = (
                ("attention_scores", scores.softmax(-1) * share, pattern),
                ("attention_probabilities", (pattern @ values).transpose(1, 2), heads),
            )
            for name, ours, expected in pairs:
                # The kernel sums a row in blocks; the recomputed pattern is summed at once.
                findings.append(compared(f"{here}.{name}", ours, expected, max(FLOAT32, subject.allowed(name))))
        real = [one for one in findings if one is not None]
        assert not real, report(subject.who, "scores, pattern, values and head outputs belong together", real)

    @pytest.mark.variants
    def test_contributions_add_up_to_the_stream(self, engine_under_test: Subject) -> None:
        """``layer_input + attention_output + mlp_output == layer_output`` on every block, and the stream flows on."""
        subject = engine_under_test
        fused = isinstance(subject.implementation.stream, FusedStream)
        findings = []
        for number in (0, 3):
            found = subject.read(number)
            for index in range(len(subject.model.layers)):
                here = f"layers.{index}"
                out, entering = found[f"{here}.layer_output"], found[f"{here}.layer_input"]
                if index and not torch.equal(entering, found[f"layers.{index - 1}.layer_output"]):
                    observed = f"{gap(entering, found[f'layers.{index - 1}.layer_output']):.1e}"
                    findings.append(Finding(key=f"{here}.layer_input", observed=observed, allowed="the stream, to the bit"))
                names = (f"{here}.self_attn.attention_output", f"{here}.mlp.mlp_output")
                if subject.suite.no_identity or any(name not in found for name in names):
                    continue
                parts = [found[name] for name in names]
                difference = (entering + parts[0] + parts[1] - out).abs().max().item()
                # A fused block adds in this very order. Others add the same three in another one: a few units in the
                # last place of the largest number that takes part.
                scale = max(part.abs().max().item() for part in (entering, *parts, out))
                allowed = 0.0 if fused else 8 * _EPS * scale
                if difference > allowed:
                    findings.append(
                        Finding(key=f"{here}: input + contributions", observed=f"{difference:.1e}", allowed=f"{allowed:.1e}")
                    )
        assert not findings, report(subject.who, "contributions add up to the stream", findings)

    @pytest.mark.variants
    def test_the_last_stream_projects_to_the_logits(self, engine_under_test: Subject) -> None:
        """``project_on_vocab`` of the last block's stream is ``logits``, and ``next_token_probs`` their softmax."""
        subject = engine_under_test
        for ids in subject.case.prompts[:2]:
            found = subject.runner.projected(ids)
            expected = {"projected": found["logits"], "probabilities": found["logits"][:, -1].softmax(-1)}
            findings = differences({key: found[key] for key in expected}, expected, {})
            assert not findings, report(subject.who, "the last stream projects to the logits", findings)

    def test_values_saved_together_are_those_saved_alone(self, engine_under_test: Subject) -> None:
        """What one trace saves of every value survives the whole forward: no kernel overwrites it later."""
        subject = engine_under_test
        together, findings = subject.read(), []
        for key, value in together.items():
            alone: Any = subject.runner.alone(subject.case.prompts[0], key)
            if not torch.equal(value, alone):
                findings.append(Finding(key=key, observed=f"{gap(value, alone):.1e} apart", allowed="the same bits"))
        assert not findings, report(subject.who, "saved values survive the forward", findings)
