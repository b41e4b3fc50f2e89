"""Experiments as a researcher writes them, each once: a function of a model and its prompts that returns tensors.

Nothing in here asks which engine runs. ``trace`` is given vLLM's names of the sampling settings, and a block reads the last
position where the two engines have different rows: a batch of prompts is left padded on transformers, and several invokes
are several requests on vLLM.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import nnsight
import torch

Block: TypeAlias = Callable[[Any, Sequence[str]], dict[str, torch.Tensor]]

#: The first two have the same words, and so the same number of tokens; the last repeats itself.
PROMPTS = (
    "The Eiffel Tower is in the city of",
    "The Eiffel Tower of the city is in",
    "The capital of Japan is",
    "hello world hello world",
)

#: Every block by name, in the order of this file.
BLOCKS: dict[str, Block] = {}

ONE: dict[str, Any] = {"temperature": 0.0, "max_tokens": 1}
FOUR: dict[str, Any] = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}


def experiment(block: Block) -> Block:
    """Enter a block into `BLOCKS`."""
    BLOCKS[block.__name__] = block
    return block


def direction(model: Any, seed: int = 0) -> torch.Tensor:
    """A unit vector of the stream's width, the same on every engine; a block takes it to where the values are."""
    vector = torch.randn(model.hidden_size, generator=torch.Generator().manual_seed(seed))
    return vector / vector.norm()


# --- reading ----------------------------------------------------------------------------------------------------------


@experiment
def logit_lens_over_layers(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        lens = nnsight.save([])
        for layer in model.layers:
            lens.append(model.project_on_vocab(layer.layer_output[:, -1]))
        logits = model.logits[:, -1].save()
    return {"lens": torch.cat(list(lens)), "logits": logits}


@experiment
def logit_lens_of_every_position(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        lens = model.project_on_vocab(model.layers[2].layer_output).log_softmax(-1).save()
    return {"lens": lens, "entropy": -(lens.exp() * lens).sum(-1)}


@experiment
def norm_of_the_stream_by_layer(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        norms = nnsight.save([])
        for layer in model.layers:
            norms.append(layer.layer_input.norm(dim=-1))
        norms.append(model.layers[-1].layer_output.norm(dim=-1))
    return {"norms": torch.cat(list(norms))}


@experiment
def how_much_each_part_turns_the_stream(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        turned = nnsight.save({})
        for index, layer in enumerate(model.layers):
            before = layer.layer_input
            attention = layer.self_attn.attention_output
            mlp = layer.mlp.mlp_output
            turned[f"attention {index}"] = torch.cosine_similarity(before, before + attention, dim=-1)
            turned[f"mlp {index}"] = torch.cosine_similarity(before, before + mlp, dim=-1)
    return dict(turned)


@experiment
def contributions_add_up_to_the_stream(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        total = model.layers[0].layer_input
        for layer in model.layers:
            total = total + layer.self_attn.attention_output
            total = total + layer.mlp.mlp_output
        total = total.save()
        stream = model.layers[-1].layer_output.save()
    assert (total - stream).abs().max() <= 1e-5 * stream.abs().max()
    return {"total": total, "stream": stream}


@experiment
def attention_pattern_statistics(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        found = nnsight.save({})
        for index, layer in enumerate(model.layers):
            pattern = layer.self_attn.attention_probabilities[0]
            seq = pattern.shape[-1]
            positions = torch.arange(seq, device=pattern.device)
            distance = (positions[:, None] - positions).clamp(min=0)
            found[f"entropy {index}"] = torch.special.entr(pattern).sum(-1).mean(-1)
            found[f"distance {index}"] = (pattern * distance).sum(-1).mean(-1)
            found[f"previous token {index}"] = pattern.diagonal(-1, dim1=-2, dim2=-1).mean(-1)
            found[f"first token {index}"] = pattern[:, 1:, 0].mean(-1)
    return dict(found)


@experiment
def induction_score_on_a_repeated_text(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    half = len(model.tokenizer(prompts[3])["input_ids"]) // 2
    with model.trace(prompts[3], **ONE):
        scores = nnsight.save([])
        for layer in model.layers:
            pattern = layer.self_attn.attention_probabilities
            scores.append(pattern.diagonal(1 - half, dim1=-2, dim2=-1).mean(-1))
    return {"scores": torch.cat(list(scores))}


@experiment
def direct_logit_attribution(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    towards = direction(model, 1)
    with model.trace(prompts[0], **ONE):
        parts = nnsight.save([])
        entering = model.layers[0].layer_input[:, -1]
        towards = towards.to(entering.device)
        parts.append(entering @ towards)
        for layer in model.layers:
            parts.append(layer.self_attn.attention_output[:, -1] @ towards)
            parts.append(layer.mlp.mlp_output[:, -1] @ towards)
        whole = (model.layers[-1].layer_output[:, -1] @ towards).save()
    attribution = torch.stack([*parts, whole])
    assert (attribution[:-1].sum(0) - whole).abs().max() <= 1e-5 * attribution.abs().max()
    return {"attribution": attribution}


@experiment
def head_outputs_weigh_values_by_the_pattern(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    attention = model.layers[1].self_attn
    groups = model.num_heads // model.num_kv_heads
    with model.trace(prompts[0], **ONE):
        values = attention.attention_values.repeat_interleave(groups, dim=1)
        pattern = attention.attention_probabilities
        by_hand = (pattern @ values).transpose(1, 2).save()
        heads = attention.attention_head_outputs.save()
    assert (by_hand - heads).abs().max() <= 1e-5 * heads.abs().max()
    return {"by hand": by_hand, "heads": heads}


@experiment
def scores_are_scaled_products_of_queries_and_keys(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    attention = model.layers[2].self_attn
    with model.trace(prompts[0], **ONE):
        queries = attention.attention_queries.save()
        keys = attention.attention_keys.save()
        last = attention.attention_scores[:, :, -1].save()
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    return {"last": last, "by hand": (queries[:, :, -1:] @ keys.transpose(2, 3)).squeeze(2) * model.head_dim**-0.5}


@experiment
def several_prompts_at_once(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    layers = model.layers
    with model.trace(**ONE) as tracer:
        streams, tops = nnsight.save([]), nnsight.save([])
        for prompt in prompts:
            with tracer.invoke(prompt):
                streams.append(layers[2].layer_output[:, -1])
                tops.append(model.logits[:, -1].argmax(-1))
    return {"streams": torch.cat(list(streams)), "tops": torch.cat(list(tops))}


# --- editing one forward ----------------------------------------------------------------------------------------------


@experiment
def activation_patching_between_prompts(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        clean = nnsight.save([])
        for layer in model.layers:
            clean.append(layer.layer_output[:, -1].clone())
    patched = []
    for index in range(model.num_layers):
        vector = clean[index]
        with model.trace(prompts[1], **ONE):
            model.layers[index].layer_output[:, -1] = vector
            logits = model.logits[:, -1].save()
        patched.append(logits)
    return {"patched": torch.cat(patched)}


@experiment
def patching_every_layer_in_one_trace(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        clean = nnsight.save([])
        for layer in model.layers:
            clean.append(layer.layer_output[:, -1].clone())
    with model.trace(**ONE) as tracer:
        patched = nnsight.save([])
        for index in range(model.num_layers):
            with tracer.invoke(prompts[1]):
                model.layers[index].layer_output[:, -1] = clean[index]
                patched.append(model.logits[:, -1])
    return {"patched": torch.cat(list(patched))}


@experiment
def patching_every_position_into_slots(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    positions = range(1, len(model.tokenizer(prompts[1])["input_ids"]), 3)
    with model.trace(prompts[0], **ONE):
        clean = model.layers[1].layer_output.save()
    with model.trace(**ONE) as tracer:
        slots = nnsight.save([None] * len(positions))
        for slot, position in enumerate(positions):
            with tracer.invoke(prompts[1]):
                model.layers[1].layer_output[:, position] = clean[:, position]
                slots[slot] = model.logits[:, -1]
    return {"patched": torch.cat(list(slots))}


@experiment
def patching_from_a_saved_file(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        saved = model.layers[1].layer_output.save()
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file)
    with model.trace(prompts[1], **ONE):
        model.layers[1].layer_output = loaded
        following = model.layers[2].layer_input.save()
        patched = model.logits[:, -1].save()
    assert torch.equal(following, loaded)
    return {"patched": patched}


@experiment
def patching_heads_between_prompts(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        heads = model.layers[1].self_attn.attention_head_outputs.save()
    effects = []
    for head in range(model.num_heads):
        with model.trace(prompts[1], **ONE):
            model.layers[1].self_attn.attention_head_outputs[:, :, head] = heads[:, :, head]
            logits = model.logits[:, -1].save()
        effects.append(logits)
    return {"effects": torch.cat(effects)}


@experiment
def causal_tracing(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    noise = 0.5 * direction(model, 2)
    with model.trace(prompts[0], **ONE):
        clean = nnsight.save([])
        for layer in model.layers:
            clean.append(layer.layer_output[:, 3].clone())
        top = model.next_token_probs.save()
    restored = []
    for index in range(model.num_layers):
        with model.trace(prompts[0], **ONE):
            embeddings = model.token_embeddings
            embeddings[:, 1:4] += noise.to(embeddings.device)
            model.layers[index].layer_output[:, 3] = clean[index]
            probabilities = model.next_token_probs.save()
        restored.append(probabilities)
    return {"clean": top, "restored": torch.cat(restored)}


@experiment
def path_patching_with_frozen_contributions(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        attention, mlps = nnsight.save([]), nnsight.save([])
        for layer in model.layers:
            attention.append(layer.self_attn.attention_output.clone())
            mlps.append(layer.mlp.mlp_output.clone())
    with model.trace(prompts[1], **ONE):
        for index, layer in enumerate(model.layers):
            layer.self_attn.attention_output = attention[index]
            if index != 1:
                layer.mlp.mlp_output = mlps[index]
        stream = model.layers[-1].layer_output.save()
        logits = model.logits[:, -1].save()
    return {"stream": stream, "logits": logits}


@experiment
def ablating_each_head(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(**ONE) as tracer:
        effects = nnsight.save([])
        for index in (0, 2):
            for head in range(model.num_heads):
                with tracer.invoke(prompts[0]):
                    model.layers[index].self_attn.attention_head_outputs[:, :, head] = 0
                    effects.append(model.logits[:, -1])
    return {"effects": torch.cat(list(effects))}


@experiment
def ablating_each_mlp(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(**ONE) as tracer:
        effects = nnsight.save([])
        for layer in model.layers:
            with tracer.invoke(prompts[0]):
                layer.mlp.mlp_output = torch.zeros_like(layer.mlp.mlp_output)
                effects.append(model.logits[:, -1])
    return {"effects": torch.cat(list(effects))}


@experiment
def mean_ablation_of_attention(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    means = []
    for prompt in prompts:
        with model.trace(prompt, **ONE):
            mean = model.layers[2].self_attn.attention_output.mean(1).save()
        means.append(mean)
    average = torch.cat(means).mean(0)
    with model.trace(prompts[0], **ONE):
        model.layers[2].self_attn.attention_output[:] = average
        logits = model.logits[:, -1].save()
    return {"average": average, "logits": logits}


@experiment
def removing_a_direction_everywhere(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    unit = direction(model, 3)
    with model.trace(prompts[0], **ONE):
        for layer in model.layers:
            stream = layer.layer_output
            unit = unit.to(stream.device)
            stream -= (stream @ unit).unsqueeze(-1) * unit
        left = (model.layers[-1].layer_output @ unit).save()
        logits = model.logits[:, -1].save()
    assert left.abs().max() <= 1e-5
    return {"logits": logits}


@experiment
def steering_at_positions(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        model.steer([0, 2], direction(model), factor=3.0, positions=[1, -1])
        stream = model.layers[-1].layer_output.save()
        logits = model.logits[:, -1].save()
    return {"stream": stream, "logits": logits}


@experiment
def steering_by_a_difference_of_prompts(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(**ONE) as tracer:
        ends = nnsight.save([])
        for prompt in prompts[:2]:
            with tracer.invoke(prompt):
                ends.append(model.layers[1].layer_output[:, -1])
    vector = ends[0][0] - ends[1][0]
    with model.trace(prompts[2], **ONE):
        model.layers[1].layer_output[:, -1] += 4.0 * vector
        logits = model.logits[:, -1].save()
    return {"vector": vector, "logits": logits}


@experiment
def scaling_queries_sharpens_the_pattern(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    attention = model.layers[1].self_attn
    with model.trace(prompts[0], **ONE):
        attention.attention_queries *= 2.0
        scores = attention.attention_scores[:, :, -1].save()
        pattern = attention.attention_probabilities.save()
        logits = model.logits[:, -1].save()
    return {"scores": scores, "pattern": pattern, "logits": logits}


@experiment
def replacing_the_values_of_one_head(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    attention = model.layers[2].self_attn
    with model.trace(prompts[0], **ONE):
        values = attention.attention_values.save()
    with model.trace(prompts[1], **ONE):
        attention.attention_values[:, 0] = values[:, 0]
        heads = attention.attention_head_outputs.save()
        logits = model.logits[:, -1].save()
    return {"heads": heads, "logits": logits}


@experiment
def hiding_a_position_by_its_key(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    attention = model.layers[1].self_attn
    with model.trace(prompts[0], **ONE):
        attention.attention_keys[:, :, 2] = 0
        pattern = attention.attention_probabilities.save()
        logits = model.logits[:, -1].save()
    return {"pattern": pattern, "logits": logits}


@experiment
def skipping_layers(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        model.skip_layers(1, 2)
        stream = model.layers[3].layer_input.save()
        logits = model.logits[:, -1].save()
    with model.trace(prompts[0], **ONE):
        entering = model.layers[1].layer_input.save()
    assert torch.equal(stream, entering)
    return {"stream": stream, "logits": logits}


@experiment
def leaving_early(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        lens = model.project_on_vocab(model.layers[1].layer_input[:, -1]).save()
        model.skip_layers(1, -1)
        logits = model.logits[:, -1].save()
    assert (lens - logits).abs().max() <= 1e-5 * logits.abs().max()
    return {"logits": logits}


@experiment
def skipping_a_layer_with_another_stream(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[1], **ONE):
        other = model.layers[2].layer_output.save()
    with model.trace(prompts[0], **ONE):
        model.skip_layer(2, skip_with=other)
        logits = model.logits[:, -1].save()
    return {"logits": logits}


@experiment
def an_edit_that_depends_on_what_it_reads(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        stream = model.layers[1].layer_output
        largest = stream.norm(dim=-1).argmax(-1)
        if largest.item() >= 0:
            stream[:, largest] *= 0.25
        largest = largest.save()
        logits = model.logits[:, -1].save()
    return {"largest": largest, "logits": logits}


@experiment
def different_edits_of_prompts_that_run_together(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(**ONE) as tracer:
        found = nnsight.save({})
        with tracer.invoke(prompts[0]):
            model.layers[1].mlp.mlp_output[:] = 0
            found["no mlp"] = model.logits[:, -1]
        with tracer.invoke(prompts[2]):
            model.layers[2].layer_output[:, -1] *= -1
            found["turned round"] = model.logits[:, -1]
        with tracer.invoke(prompts[3]):
            found["clean"] = model.logits[:, -1]
    return dict(found)


# --- generating -------------------------------------------------------------------------------------------------------


@experiment
def collecting_at_generated_positions(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **FOUR) as tracer:
        streams, tokens = nnsight.save([]), nnsight.save([])
        for _ in tracer.iter[:4]:
            streams.append(model.layers[2].layer_output[:, -1])
            tokens.append(model.samples.reshape(-1).to(torch.int64))
    return {"streams": torch.cat(list(streams)), "tokens": torch.cat(list(tokens))}


@experiment
def steering_every_generated_token(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    vector = 4.0 * direction(model, 4)
    with model.trace(prompts[0], **FOUR) as tracer:
        logits = nnsight.save([])
        for _ in tracer.iter[:4]:
            stream = model.layers[1].layer_output
            stream[:, -1] += vector.to(stream.device)
            logits.append(model.logits[:, -1])
    return {"logits": torch.cat(list(logits))}


@experiment
def editing_one_step_alone(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **FOUR) as tracer:
        logits = nnsight.save([])
        for step in tracer.iter[:4]:
            if step == 2:
                model.layers[0].mlp.mlp_output[:] = 0
            logits.append(model.logits[:, -1])
    return {"logits": torch.cat(list(logits))}


@experiment
def forcing_tokens(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    forced = [17, 42, 5, 99]
    with model.trace(prompts[0], **FOUR) as tracer:
        surprise = nnsight.save([])
        for step in tracer.iter[:4]:
            surprise.append(-model.next_token_probs[:, forced[step]].log())
            model.samples = torch.full_like(model.samples, forced[step])
    return {"surprise": torch.cat(list(surprise))}


@experiment
def banning_a_token(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **ONE):
        best = model.logits[:, -1].argmax(-1).save()
    with model.trace(prompts[0], **FOUR) as tracer:
        tokens = nnsight.save([])
        for _ in tracer.iter[:4]:
            model.logits[:, -1, best] = -1e4
            tokens.append(model.samples.reshape(-1).to(torch.int64))
    generated = torch.cat(list(tokens))
    assert best.item() not in generated.tolist()
    return {"tokens": generated}


@experiment
def ablating_a_head_while_generating(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(prompts[0], **FOUR) as tracer:
        heads, logits = nnsight.save([]), nnsight.save([])
        for _ in tracer.iter[:4]:
            attention = model.layers[2].self_attn
            attention.attention_head_outputs[:, :, 1] = 0
            heads.append(attention.attention_head_outputs[:, -1])
            logits.append(model.logits[:, -1])
    return {"heads": torch.cat(list(heads)), "logits": torch.cat(list(logits))}


@experiment
def contributions_at_every_step(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    towards = direction(model, 5)
    with model.trace(prompts[0], **FOUR) as tracer:
        found = nnsight.save([])
        for _ in tracer.iter[:4]:
            for layer in model.layers:
                attention = layer.self_attn.attention_output[:, -1]
                towards = towards.to(attention.device)
                found.append(attention @ towards)
                found.append(layer.mlp.mlp_output[:, -1] @ towards)
    return {"found": torch.cat(list(found))}


@experiment
def several_prompts_that_generate_together(model: Any, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
    with model.trace(**FOUR) as tracer:
        found = nnsight.save({})
        for index, prompt in enumerate(prompts[:3]):
            with tracer.invoke(prompt):
                for step in tracer.iter[:4]:
                    found[f"prompt {index}, step {step}"] = model.layers[3].layer_output[:, -1]
    return dict(found)
