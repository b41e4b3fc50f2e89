"""Attention scores and pattern, recomputed from queries and keys by the rules of the layer's own kernel.

The kernel computes both inside and keeps neither. The arithmetic here is that of transformers' eager attention: product
in the model's dtype, scale, softcap, bias, mask, softmax in float32, back to the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What an attention layer does to its scores.

    Attributes:
        head_dim: Columns of one head.
        scale: Factor on ``queries @ keys``.
        softcap: ``c`` in ``c * tanh(scores / c)``; ``None`` for none.
        window: How many keys a query sees, itself included; ``None`` for all before it.
        slopes: ALiBi slopes, ``[heads]``: ``slope * key position`` is added to the scores.
        sinks: Attention sinks, ``[heads]``: one more score per head in the softmax, whose share is dropped.
    """

    head_dim: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


def kernel_of(layer: Any) -> Kernel:
    """The rules of one of vLLM's attention layers, on every backend that it may have chosen.

    Source: ``vllm/model_executor/layers/attention/attention.py`` (``Attention``) and the ``impl`` that it builds.
    """
    impl = layer.impl
    slopes = getattr(impl, "alibi_slopes", None)
    if slopes is not None and not isinstance(slopes, torch.Tensor):
        slopes = torch.tensor(slopes, dtype=torch.float32)
    return Kernel(
        head_dim=layer.head_size,
        scale=float(impl.scale),
        softcap=getattr(impl, "logits_soft_cap", None) or None,
        window=layer.sliding_window or None,
        slopes=None if slopes is None else _all_heads(slopes),
        sinks=None if (sinks := getattr(impl, "sinks", None)) is None else _all_heads(sinks),
    )


def _all_heads(per_head: torch.Tensor) -> torch.Tensor:
    """One number per head of the whole model: a rank holds its own heads' only."""
    from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_gather

    if get_tensor_model_parallel_world_size() == 1:
        return per_head
    gathered: torch.Tensor = tensor_model_parallel_all_gather(per_head.contiguous())
    return gathered


def scores(queries: torch.Tensor, keys: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """``[1, heads, query, key]`` from ``[1, heads, seq, head_dim]`` and ``[1, kv_heads, seq, head_dim]``.

    A masked position holds the dtype's lowest finite number, as a padding mask of transformers does, so that the softmax
    of a row is the pattern's row and never ``nan``.
    """
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
    raw = queries @ keys.transpose(-1, -2) * kernel.scale
    if kernel.softcap is not None:
        raw = kernel.softcap * torch.tanh(raw / kernel.softcap)
    positions = torch.arange(keys.shape[-2], device=keys.device)
    if kernel.slopes is not None:
        slopes = kernel.slopes.to(device=raw.device, dtype=torch.float32)
        raw = (raw + slopes.view(1, -1, 1, 1) * positions).to(raw.dtype)
    behind = positions.unsqueeze(1) - positions
    masked = behind < 0
    if kernel.window is not None:
        masked = masked | (behind >= kernel.window)
    return raw.masked_fill(masked, torch.finfo(raw.dtype).min)


def probabilities(queries: torch.Tensor, keys: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """The pattern, ``[1, heads, query, key]``; each row sums to one, less a sink's share."""
    masked = scores(queries, keys, kernel)
    if kernel.sinks is None:
        return masked.float().softmax(-1).to(queries.dtype)
    sinks = kernel.sinks.to(device=masked.device, dtype=masked.dtype).view(1, -1, 1, 1)
    with_sinks = torch.cat([masked, sinks.expand(*masked.shape[:-1], 1)], dim=-1)
    return with_sinks.float().softmax(-1)[..., :-1].to(queries.dtype)
