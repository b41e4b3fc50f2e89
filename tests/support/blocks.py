"""Short names for what most tests say in a trace."""

from __future__ import annotations

from typing import Any

import torch

from nnterp_vllm_core.testing.compare import TOGETHER

from .oracle import gap, same

#: One deterministic step, the prefill.
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 1}

#: Both sides compute in float32 and differ in the order of their sums; through 30 blocks that stays below this share of a
#: value's largest magnitude.
FLOAT32 = 1e-5

#: Keys of writable values, as ``at`` takes them: every kind, and every place where a stream is held differently.
WRITABLE = (
    "token_embeddings",
    "layers.0.layer_input",
    "layers.2.layer_input",
    "layers.2.self_attn.attention_queries",
    "layers.2.self_attn.attention_keys",
    "layers.2.self_attn.attention_values",
    "layers.2.self_attn.attention_head_outputs",
    "layers.2.self_attn.attention_output",
    "layers.2.mlp.mlp_output",
    "layers.2.layer_output",
    "layers.3.layer_output",
)


def as_in_any_batch(ours: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether these are one request's rows from two runs whose steps may have held other numbers of requests.

    The CPU engine computes a row to the same bits whatever else is in the step. On CUDA the number of rows chooses among
    kernels that sum in other orders, and what the conformance suite allows there holds.
    """
    return gap(ours, reference) <= TOGETHER if torch.cuda.is_available() else same(ours, reference)


def logits_of(model: Any, prompt: Any) -> torch.Tensor:
    """The logits of a clean run."""
    with model.trace(prompt, **GREEDY):
        logits = model.logits.save()
    found: torch.Tensor = logits
    return found


def at(model: Any, key: str) -> tuple[Any, str]:
    """The envoy that carries a value, and the value's name: ``layers.2.mlp.mlp_output`` -> (its mlp, ``mlp_output``)."""
    *path, name = key.split(".")
    envoy = model
    for part in path:
        envoy = envoy[int(part)] if part.isdigit() else getattr(envoy, part)
    return envoy, name
