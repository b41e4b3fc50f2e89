"""Everything that a model serves and takes, in one table of tensors: two engines agree when their tables do."""

from __future__ import annotations

from typing import Any

import nnsight
import torch

from .blocks import GREEDY, WRITABLE, at


def read_all(model: Any, prompt: Any) -> dict[str, torch.Tensor]:
    """Every tensor value of one prefill, under the keys that the oracle uses."""
    layers = list(range(model.num_layers))
    with model.trace(prompt, **GREEDY):
        found = nnsight.save({})
        found["input_ids"] = model.input_ids
        found["token_embeddings"] = model.token_embeddings
        for index in layers:
            block, here = model.layers[index], f"layers.{index}"
            found[f"{here}.layer_input"] = block.layer_input
            found[f"{here}.self_attn.attention_queries"] = block.self_attn.attention_queries
            found[f"{here}.self_attn.attention_keys"] = block.self_attn.attention_keys
            found[f"{here}.self_attn.attention_values"] = block.self_attn.attention_values
            found[f"{here}.self_attn.attention_scores"] = block.self_attn.attention_scores
            found[f"{here}.self_attn.attention_probabilities"] = block.self_attn.attention_probabilities
            found[f"{here}.self_attn.attention_head_outputs"] = block.self_attn.attention_head_outputs
            found[f"{here}.self_attn.attention_output"] = block.self_attn.attention_output
            found[f"{here}.mlp.mlp_output"] = block.mlp.mlp_output
            found[f"{here}.layer_output"] = block.layer_output
        found["logits"] = model.logits
        found["next_token_probs"] = model.next_token_probs
    return dict(found)


def survey(model: Any, prompt: Any) -> dict[str, torch.Tensor]:
    """Every read, the effect of every write, three decoding steps and the methods, by what was done."""
    found = {f"read {key}": value for key, value in read_all(model, prompt).items()}
    last = model.layers[-1]
    for key in WRITABLE:
        host, value = at(model, key)
        with model.trace(prompt, **GREEDY):
            getattr(host, value)[:, 0] *= -0.5
            stream = last.layer_output.save()
            logits = model.logits.save()
        found[f"edit {key}: stream"], found[f"edit {key}: logits"] = stream, logits
        with model.trace(prompt, **GREEDY):
            setattr(host, value, getattr(host, value).flip(1))
            served = getattr(host, value).save()
            stream = last.layer_output.save()
        found[f"assign {key}: read again"], found[f"assign {key}: stream"] = served, stream
    with model.trace(prompt, temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
        steps = nnsight.save([])
        for _ in tracer.iter[:3]:
            attention = model.layers[2].self_attn
            queries = attention.attention_queries
            heads = attention.attention_head_outputs
            heads[:, :, 1] *= 0.5
            steps.append((queries, heads.clone(), model.layers[2].layer_output, model.logits))
    for index, step in enumerate(steps):
        found |= {f"step {index}, value {which}": value for which, value in enumerate(step)}
    with model.trace(prompt, **GREEDY):
        model.steer([0, 2], torch.linspace(-1, 1, model.hidden_size), factor=2.0, positions=[0, -1])
        model.skip_layer(3)
        stream = last.layer_output.save()
        projected = model.project_on_vocab(stream).save()
        logits = model.logits.save()
    return found | {"methods: stream": stream, "methods: vocabulary": projected, "methods: logits": logits}
