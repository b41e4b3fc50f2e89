"""The attention interior of transformers' models: one attention function whose values pass through addressable points.

transformers looks its attention functions up by name. The one registered here computes what the library's eager function
computes, and hands queries, keys, values, scores, pattern and head outputs through identity modules that stand in the
model's own tree, where nnsight serves them like any module's output: readable, writable and differentiable. No class is
changed, and a model loaded under another name is untouched.

Source of the arithmetic: ``eager_attention_forward`` in ``transformers/models/*/modeling_*.py``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
from torch import nn

from .family import Implementation

#: The name under which the function is registered, and so the ``attn_implementation`` of our models.
NAME = "nnterp_vllm"
#: The child of an attention module that holds its points.
CHILD = "interior"
#: Standard value -> its point.
POINTS = {
    "attention_queries": "queries",
    "attention_keys": "keys",
    "attention_values": "values",
    "attention_scores": "scores",
    "attention_probabilities": "pattern",
    "attention_head_outputs": "heads",
}


class Point(nn.Module):
    """A place in the tree that a value passes through unchanged."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value


class Interior(nn.Module):
    """The points of one attention module."""

    def __init__(self) -> None:
        super().__init__()
        for name in POINTS.values():
            self.add_module(name, Point())


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager attention through the points of ``module``.

    Args:
        module: The attention module that calls.
        query: ``[batch, heads, seq, head_dim]``.
        key: ``[batch, kv_heads, key, head_dim]``, the cache's keys included.
        value: ``[batch, kv_heads, key, head_dim]``.
        attention_mask: ``[batch, 1, seq, key]``, added to the scores.
        scaling: Factor on the scores; ``head_dim ** -0.5`` if absent.
        softcap: ``c`` in ``c * tanh(scores / c)``.
        s_aux: Attention sinks, ``[heads]``.

    Returns:
        ``([batch, seq, heads, head_dim], [batch, heads, seq, key])``.
    """
    at: Any = getattr(module, CHILD)
    query, key, value = at.queries(query), at.keys(key), at.values(value)
    groups = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ keys.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores + attention_mask[..., : keys.shape[-2]]
    scores = at.scores(scores)
    if s_aux is None:
        pattern = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    else:
        sinks = s_aux.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        pattern = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1].to(query.dtype)
    pattern = at.pattern(pattern)
    return at.heads((pattern @ values).transpose(1, 2).contiguous()), pattern


def register() -> None:
    """Make the function known to transformers under `NAME`; once or often, it is the same."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, eager_mask)


def dispatches(implementation: Implementation) -> bool:
    """Whether this family's code looks its attention function up by name at all; a few old ones do not."""
    module = sys.modules.get(implementation.source) or import_module(implementation.source)
    return hasattr(module, "ALL_ATTENTION_FUNCTIONS")


def mount(model: nn.Module, implementation: Implementation) -> None:
    """Give every block's attention module its points."""
    for block in model.get_submodule(implementation.names["layers"]).children():
        attention_module = getattr(block, implementation.block_names["self_attn"], None)
        if attention_module is not None and not hasattr(attention_module, CHILD):
            attention_module.add_module(CHILD, Interior())
