"""The standard values: what each is, its axes, when it exists and what a write does.

This table is the one place that defines a value. Families say only *where* a value lives, engines only *how* it is
served; neither repeats a meaning. Axis words are the same everywhere: ``batch seq hidden heads kv_heads head_dim query
key vocab``. On vLLM ``batch`` is 1: a request is one unpadded sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Host = Literal["model", "layer", "attention", "mlp"]
Write = Literal["writable", "read-only"]


@dataclass(frozen=True, kw_only=True)
class Value:
    """One standard value.

    Attributes:
        name: The attribute a block reads, such as ``layer_output``.
        host: The envoy that carries it: the model, a layer, its ``self_attn`` or its ``mlp``.
        axes: Axis words in order.
        meaning: One sentence.
        write: ``writable`` (in-place edits and assignments reach the model) or ``read-only``.
        prefill_only: Whether a decode step raises `Unavailable`.
    """

    name: str
    host: Host
    axes: tuple[str, ...]
    meaning: str
    write: Write = "writable"
    prefill_only: bool = False

    @property
    def path(self) -> str:
        """Where a block finds it, with ``*`` for the layer index."""
        return {
            "model": self.name,
            "layer": f"layers.*.{self.name}",
            "attention": f"layers.*.self_attn.{self.name}",
            "mlp": f"layers.*.mlp.{self.name}",
        }[self.host]


_STREAM = ("batch", "seq", "hidden")

_VALUES = (
    Value(name="input_ids", host="model", axes=("batch", "seq"), write="read-only", meaning="This step's token ids."),
    Value(
        name="input_size",
        host="model",
        axes=(),
        write="read-only",
        meaning="``torch.Size([batch, seq])`` of this step.",
    ),
    Value(
        name="attention_mask",
        host="model",
        axes=("batch", "seq"),
        write="read-only",
        meaning="1 where a position holds a token, 0 where it is padding.",
    ),
    Value(
        name="token_embeddings",
        host="model",
        axes=_STREAM,
        meaning="The embedded tokens, scaled where the model scales them, before any position is added.",
    ),
    Value(name="layer_input", host="layer", axes=_STREAM, meaning="The residual stream that enters the block."),
    Value(
        name="attention_queries",
        host="attention",
        axes=("batch", "heads", "seq", "head_dim"),
        meaning="Queries as the attention kernel takes them: after any norm and rotary embedding.",
    ),
    Value(
        name="attention_keys",
        host="attention",
        axes=("batch", "kv_heads", "seq", "head_dim"),
        meaning="This step's keys as the attention kernel takes them.",
    ),
    Value(
        name="attention_values",
        host="attention",
        axes=("batch", "kv_heads", "seq", "head_dim"),
        meaning="This step's values as the attention kernel takes them.",
    ),
    Value(
        name="attention_scores",
        host="attention",
        axes=("batch", "heads", "query", "key"),
        write="read-only",
        prefill_only=True,
        meaning="Scaled, capped and biased scores; a masked position holds the dtype's lowest finite number.",
    ),
    Value(
        name="attention_probabilities",
        host="attention",
        axes=("batch", "heads", "query", "key"),
        write="read-only",
        prefill_only=True,
        meaning="The softmax of the scores over keys (a sink's share is left out).",
    ),
    Value(
        name="attention_head_outputs",
        host="attention",
        axes=("batch", "seq", "heads", "head_dim"),
        meaning="Each head's weighted values, before the output projection.",
    ),
    Value(
        name="attention_output",
        host="attention",
        axes=_STREAM,
        meaning="What attention adds to the residual stream, after any post-norm or multiplier.",
    ),
    Value(
        name="mlp_output",
        host="mlp",
        axes=_STREAM,
        meaning="What the feed-forward part adds to the residual stream, after any post-norm or multiplier.",
    ),
    Value(name="layer_output", host="layer", axes=_STREAM, meaning="The residual stream that leaves the block."),
    Value(
        name="logits",
        host="model",
        axes=("batch", "1", "vocab"),
        meaning="The last position's logits after any softcap and scale; a write changes what is sampled.",
    ),
    Value(
        name="next_token_probs",
        host="model",
        axes=("batch", "vocab"),
        write="read-only",
        meaning="The softmax of the last position's logits.",
    ),
)

#: Every standard value by name, in the order in which a forward pass reaches them.
VALUES: Mapping[str, Value] = MappingProxyType({value.name: value for value in _VALUES})

#: The values that come from the attention kernel's own arguments and result.
INTERIOR: tuple[str, ...] = (
    "attention_queries",
    "attention_keys",
    "attention_values",
    "attention_scores",
    "attention_probabilities",
    "attention_head_outputs",
)
