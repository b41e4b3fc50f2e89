"""Trace code of nnterp 1.x runs on both engines, with the meanings that it had there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PROMPT
from support.blocks import FLOAT32
from support.engines import OPTIONS, Engines, stop
from support.oracle import gap

from nnterp_vllm_core import UnsupportedEngine
from nnterp_vllm_core.nnterp_dialect import NnterpTransformer, NnterpVLLM
from nnterp_vllm_core.testing.checkpoints import SIZES, tiny

#: Gemma 2 has a norm behind each part and caps its logits: what a module returns is not what is added to the stream.
GEMMA2 = {
    **SIZES,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 3.0,
    "attn_logit_softcapping": 5.0,
}
NAMES = ("llama", "gpt2", "gemma2")


@pytest.fixture(scope="module")
def folders(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoints by name."""
    gemma2 = tiny("gemma2", tmp_path_factory.mktemp("dialect") / "gemma2", **GEMMA2)
    return {"llama": checkpoints["llama"], "gpt2": checkpoints["gpt2"], "gemma2": gemma2}


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, folders: dict[str, Path], engines: Engines) -> Iterator[tuple[Any, Any]]:
    """One checkpoint on transformers and on vLLM."""
    engines.close()
    folder = str(folders[request.param])
    reference = NnterpTransformer(
        folder, enable_attention_probs=True, check_renaming=False, dispatch=True, dtype=torch.float32
    )
    model = NnterpVLLM(folder, enable_attention_probs=True, **OPTIONS)
    yield reference, model
    stop(model)


def returned(model: Any, prompt: str) -> dict[str, torch.Tensor]:
    """What transformers' modules take and return, by plain hooks; and the head's product at every position."""
    seen: dict[str, torch.Tensor] = {}
    module = model._module
    ids = torch.tensor([model.tokenizer(prompt)["input_ids"]], device=module.device)
    handles = []

    def watch(part: Any, name: str) -> None:
        def hook(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            seen[f"{name} in"] = (args[0] if args else kwargs["hidden_states"]).detach().clone()
            seen[f"{name} out"] = (output[0] if isinstance(output, tuple) else output).detach().clone()

        handles.append(part.register_forward_hook(hook, with_kwargs=True))

    for index, block in enumerate(model.layers):
        watch(block._module, f"block {index}")
        watch(block.self_attn._module, f"attention {index}")
        watch(block.mlp._module, f"mlp {index}")
    watch(model.ln_final._module, "norm")
    watch(module.get_output_embeddings(), "head")
    with torch.no_grad():
        module(ids)
    for handle in handles:
        handle.remove()
    return seen


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert gap(ours.detach(), theirs.detach()) <= FLOAT32


def test_values_of_layers_and_modules_are_what_the_modules_take_and_return(pair: tuple[Any, Any]) -> None:
    seen = returned(pair[0], PROMPT)
    for model in pair:
        found = {}
        for index in (0, 2):
            with torch.no_grad():
                with model.trace(PROMPT):
                    entering = model.layers_input[index].save()
                    attention_in = model.attentions_input[index].save()
                    attention_out = model.attentions_output[index].save()
                    mlp_in = model.mlps_input[index].save()
                    mlp_out = model.mlps_output[index].save()
                    leaving = model.layers_output[index].save()
            found |= {f"block {index} in": entering, f"block {index} out": leaving}
            found |= {f"attention {index} in": attention_in, f"attention {index} out": attention_out}
            found |= {f"mlp {index} in": mlp_in, f"mlp {index} out": mlp_out}
        for key, value in found.items():
            assert gap(value, seen[key]) <= FLOAT32, (type(model).__name__, key)


def test_a_raw_output_is_not_the_contribution_where_a_norm_stands_between(pair: tuple[Any, Any]) -> None:
    for model in pair:
        with torch.no_grad():
            with model.trace(PROMPT):
                raw = model.attentions_output[1].save()
                contribution = model.layers[1].self_attn.attention_output.save()
        assert (gap(raw, contribution) > 0.01) == (model.family.__name__.endswith("gemma2"))


def edited(model: Any, other: torch.Tensor, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every way in which nnterp 1.x code edits."""
    found: dict[str, torch.Tensor] = {}
    with model.trace(PROMPT):
        model.layers_output[1][:, -1] = 0
        value = model.logits[:, -1].save()
    found["zeroed"] = value
    with model.trace(PROMPT):
        model.layers_output[1] = other
        value = model.layers_input[2].save()
    found["assigned"] = value
    with model.trace(PROMPT):
        model.layers_output[0] += vector
        value = model.logits[:, -1].save()
    found["added"] = value
    with model.trace(PROMPT):
        model.attentions_output[1] = model.attentions_output[1] + vector  # a factor alone would be normed away in Gemma 2
        value = model.logits[:, -1].save()
    found["attention"] = value
    with model.trace(PROMPT):
        model.mlps_output[2][:, 1:] *= -1
        value = model.logits[:, -1].save()
    found["mlp"] = value
    with model.trace(PROMPT):
        model.attentions_input[1][:, 0] = 0
        value = model.logits[:, -1].save()
    found["attention input"] = value
    with model.trace(PROMPT):
        model.token_embeddings[:, 2] = 0
        value = model.logits[:, -1].save()
    found["embeddings"] = value
    with model.trace(PROMPT):
        model.steer(layers=[2, 0], steering_vector=vector, factor=2, token_positions=[0, -1], batch_index=0)
        value = model.next_token_probs.save()
    found["steered"] = value
    with model.trace(PROMPT):
        model.steer(1, vector, positions=-1)
        value = model.logits[:, -1].save()
    found["steered at the end"] = value
    with model.trace(PROMPT):
        model.skip_layers(1, 2, layer_returns_tuple=True)
        value = model.layers_input[3].save()
    found["skipped"] = value
    with model.trace(PROMPT):
        model.skip_layer(0, skip_with=other)
        value = model.logits[:, -1].save()
    found["skipped with"] = value
    return found


def test_edits_have_the_same_effect_on_both_engines(pair: tuple[Any, Any]) -> None:
    reference, model = pair
    with torch.no_grad():
        with reference.trace(PROMPT):
            other = (reference.layers_output[0] * 0.5).save()
            clean = reference.logits[:, -1].save()
        vector = torch.linspace(-1, 1, reference.hidden_size, device=other.device)
        theirs = edited(reference, other, vector)
    ours = edited(model, other, vector)
    for key, value in ours.items():
        same(value, theirs[key])
        if value.shape == clean.shape:
            assert gap(value, clean) > 1e-3, f"{key} had no effect"
    same(ours["assigned"], other)


def test_the_last_norm_and_the_head_can_be_called(pair: tuple[Any, Any]) -> None:
    reference, _ = pair
    seen = returned(reference, PROMPT)
    for model in pair:
        with torch.no_grad():
            with model.trace(PROMPT):
                stream = model.layers_output[-1]
                by_hand = model.lm_head(model.ln_final(stream)).save()
                projected = model.project_on_vocab(stream).save()
        same(by_hand, seen["head out"])
        same(projected, seen["head out"])


def test_the_closest_tokens_come_with_their_probabilities(pair: tuple[Any, Any]) -> None:
    found = []
    for model in pair:
        with torch.no_grad():
            with model.trace(PROMPT):
                one = model.get_topk_closest_tokens(model.layers_output[1][0, -1], k=3).save()
                several = model.get_topk_closest_tokens(model.layers_output[2][:, -1], k=2).save()
        found.append([one, *several])
    for theirs, ours in zip(*found, strict=True):
        assert list(ours) == list(theirs)
        assert list(ours.values()) == pytest.approx(list(theirs.values()), rel=1e-4)


def test_patterns_are_read_on_both_and_assigned_on_transformers(pair: tuple[Any, Any]) -> None:
    reference, model = pair
    assert reference.attn_probs_available
    assert model.attn_probs_available
    with torch.no_grad():
        with reference.trace(PROMPT):
            theirs = reference.attention_probabilities[1].save()
            reference.attention_probabilities[1] = torch.eye(theirs.shape[-1]).expand_as(theirs)
            edited_logits = reference.logits[:, -1].save()
        with reference.trace(PROMPT):
            clean = reference.logits[:, -1].save()
    with model.trace(PROMPT):
        ours = model.attention_probabilities[1].save()
    same(ours, theirs)
    assert gap(edited_logits, clean) > 1e-3
    with pytest.raises(RuntimeError, match=r"^ReadOnlyValue: .*attention_probabilities cannot be assigned"):
        with model.trace(PROMPT):
            model.attention_probabilities[1] = model.attention_probabilities[1] * 0


def test_modules_and_inputs_are_reached_by_their_old_names(pair: tuple[Any, Any]) -> None:
    for model in pair:
        assert model.attentions[1] is model.layers[1].self_attn
        assert model.mlps[-1] is model.layers[model.num_layers - 1].mlp
        assert len(model.layers_output) == model.num_layers == 4
        assert (model.num_heads, model.hidden_size, model.vocab_size) == (4, 128, 512)
        model.detect_layer_output_type()
        with model.trace(PROMPT):
            ids = model.input_ids.save()
            size = tuple(model.input_size).save()
        assert ids.tolist() == [model.tokenizer(PROMPT)["input_ids"]]
        assert size == tuple(ids.shape)


def test_a_trace_without_settings_is_one_forward_and_settings_still_generate(pair: tuple[Any, Any]) -> None:
    _, model = pair
    with model.trace(PROMPT) as tracer:
        short = tracer.result.save()
    with model.trace(PROMPT, max_tokens=3, ignore_eos=True) as tracer:
        longer = tracer.result.save()
    assert len(short.outputs[0].token_ids) == 1
    assert len(longer.outputs[0].token_ids) == 3
    assert longer.outputs[0].token_ids[:1] == short.outputs[0].token_ids


def test_mistakes_are_named(pair: tuple[Any, Any]) -> None:
    for model in pair:
        with pytest.raises(ValueError, match=r"A module cannot be assigned; assign its value: mlps_output\[1\]"):
            model.mlps[1] = torch.zeros(1)
        with pytest.raises(IndexError, match="Layer 4 does not exist"):
            _ = model.layers_output[4]
        with pytest.raises(ValueError, match="two names of one argument"):
            model.steer(0, torch.zeros(128), positions=0, token_positions=0)
        with pytest.raises(ValueError, match="only inside"):
            _ = model.attentions_output[0]
        with pytest.raises(ValueError, match=r"\[hidden\] or \[batch, hidden\]"):
            model.get_topk_closest_tokens(torch.zeros(1, 1, 128))
    _, model = pair
    with pytest.raises(RuntimeError, match=r"^Unavailable: lm_head\.output: .*model\.logits"):
        with model.trace(PROMPT):
            model.lm_head.output.save()


@pytest.mark.parametrize("kind", [NnterpTransformer, NnterpVLLM])
def test_arguments_that_cannot_be_honoured_are_refused_with_the_way_out(kind: type, folders: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedEngine, match=r"^remote=True .*Leave it out"):
        kind(str(folders["llama"]), remote=True)
    with pytest.raises(UnsupportedEngine, match=r"^rename_config= .*rename=.*family="):
        kind(str(folders["llama"]), rename_config=object())
