"""The dialect of nnterp 1.x: trace code written for its ``StandardizedTransformer`` runs on either engine.

Change the import, and nothing else::

    from nnterp_vllm_core.nnterp_dialect import NnterpTransformer as StandardizedTransformer
    from nnterp_vllm_core.nnterp_dialect import NnterpVLLM as StandardizedTransformer

Opt-in, because the two vocabularies have near namesakes of different meaning: ``attentions_output[i]`` is what the attention
module returns and ``self_attn.attention_output`` what is added to the stream, which a post-norm or a multiplier sets apart,
and ``get_topk_closest_tokens`` returns dicts here and lists there. Everything of the standard vocabulary is here as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from .errors import UnsupportedEngine
from .methods import StandardMethods
from .model import StandardizedVLLM
from .per_layer import PerLayer
from .plain_head import Head, product_alone
from .raw import RawLiveView, RawRowsView
from .sampling import SAMPLING
from .transformers_model import StandardizedTransformer
from .tree import before_head

#: Arguments of nnterp 1.x that choose checks and switches which have no counterpart: names are declared, not guessed, and
#: patterns are always served.
_WITHOUT_EFFECT = (
    "allow_dispatch",
    "allow_multimodal",
    "check_attn_probs_with_trace",
    "check_renaming",
    "enable_attention_probs",
)

Positions = int | slice | Sequence[int] | torch.Tensor


class NnterpDialect(StandardMethods):
    """The names of nnterp 1.x on a standardized model; a mixin of one class per engine."""

    _raw: ClassVar[type]
    plan: Any

    @property
    def layers_input(self) -> PerLayer:
        """The residual stream that enters each layer, ``[batch, seq, hidden]``; writable."""
        return PerLayer(self, None, "layer_input")

    @property
    def layers_output(self) -> PerLayer:
        """The residual stream that leaves each layer, ``[batch, seq, hidden]``; writable."""
        return PerLayer(self, None, "layer_output")

    @property
    def attentions(self) -> PerLayer:
        """Each layer's attention module."""
        return PerLayer(self, "self_attn", None)

    @property
    def attentions_input(self) -> PerLayer:
        """What each attention module is called with, ``[batch, seq, hidden]``: the normed stream; writable."""
        return PerLayer(self, "self_attn", "input")

    @property
    def attentions_output(self) -> PerLayer:
        """What each attention module returns, ``[batch, seq, hidden]``, before any post-norm or multiplier; writable."""
        return PerLayer(self, "self_attn", "output")

    @property
    def mlps(self) -> PerLayer:
        """Each layer's feed-forward module."""
        return PerLayer(self, "mlp", None)

    @property
    def mlps_input(self) -> PerLayer:
        """What each feed-forward module is called with, ``[batch, seq, hidden]``: the normed stream; writable."""
        return PerLayer(self, "mlp", "input")

    @property
    def mlps_output(self) -> PerLayer:
        """What each feed-forward module returns, ``[batch, seq, hidden]``, before any post-norm or multiplier; writable."""
        return PerLayer(self, "mlp", "output")

    @property
    def attention_probabilities(self) -> PerLayer:
        """Each layer's pattern, ``[batch, heads, query, key]``; writable on transformers alone."""
        return PerLayer(self, "self_attn", "attention_probabilities")

    @property
    def attn_probs_available(self) -> bool:
        """Whether patterns are served on this model."""
        return self.support()["layers.*.self_attn.attention_probabilities"].startswith("served")

    @property
    def ln_final(self) -> Any:
        """The last norm's module."""
        return self.get(self.plan.implementation.names["norm"])  # type: ignore[attr-defined]

    def detect_layer_output_type(self) -> None:
        """Nothing to do: a family declares what its blocks return."""

    def skip_layers(
        self,
        start_layer: int,
        end_layer: int,
        skip_with: torch.Tensor | None = None,
        layer_returns_tuple: bool | None = None,
    ) -> None:
        """See `StandardMethods.skip_layers`; ``layer_returns_tuple`` is known already."""
        super().skip_layers(start_layer, end_layer, skip_with[0] if isinstance(skip_with, tuple) else skip_with)

    def steer(
        self,
        layers: Any,
        steering_vector: torch.Tensor,
        factor: float = 1.0,
        positions: Positions | None = None,
        token_positions: Positions | None = None,
        batch_index: Positions | None = None,
    ) -> None:
        """Add ``factor * steering_vector`` to the stream that leaves each of ``layers``.

        Args:
            layers: One index or several.
            steering_vector: ``[hidden]``, or anything that broadcasts to what is steered.
            factor: A plain multiplier.
            positions: The older name of ``token_positions``.
            token_positions: Positions of this step's rows; ``None`` for all.
            batch_index: Rows of the batch; ``None`` for all. On vLLM the one row is 0.

        Raises:
            ValueError: Both names of the positions are given.
        """
        if positions is not None and token_positions is not None:
            raise ValueError("steer: positions= and token_positions= are two names of one argument; give one.")
        where = token_positions if positions is None else positions
        if batch_index is None:
            super().steer(layers, steering_vector, factor, where)
            return
        for layer in sorted(self._layer_index(one) for one in ([layers] if isinstance(layers, int) else layers)):
            stream = self.layers[layer].layer_output
            added = factor * steering_vector.to(device=stream.device, dtype=stream.dtype)
            stream[batch_index if where is None else (batch_index, where)] += added

    def project_on_vocab(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The last norm and the head's product, ``[..., hidden]`` to ``[..., vocab]``, without a scale or softcap.

        The standard vocabulary's method of this name goes on to ``logits``; so does this one where the model has neither.
        """
        rows = hidden_states.reshape(-1, hidden_states.shape[-1]).contiguous()
        with self._stood_down():
            rows = before_head(self._module, self.plan.implementation, rows)
            return self._head(rows).reshape(*hidden_states.shape[:-1], -1)

    def get_topk_closest_tokens(self, hidden_states: torch.Tensor, k: int = 5) -> Any:
        """The ``k`` likeliest tokens under `project_on_vocab`, as the tokenizer spells them, with their probabilities.

        Args:
            hidden_states: ``[hidden]`` gives a dict, ``[batch, hidden]`` a list of dicts.
            k: How many tokens.

        Raises:
            ValueError: Another number of axes, or another width.
        """
        if hidden_states.ndim not in (1, 2) or hidden_states.shape[-1] != self.hidden_size:
            raise ValueError(
                f"get_topk_closest_tokens takes [hidden] or [batch, hidden] with hidden={self.hidden_size}, not "
                f"{tuple(hidden_states.shape)}."
            )
        rows = hidden_states.unsqueeze(0) if hidden_states.ndim == 1 else hidden_states
        top = self.project_on_vocab(rows).softmax(-1).topk(k, dim=-1)
        found = [
            dict(zip(self.tokenizer.convert_ids_to_tokens(ids), values, strict=True))
            for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        return found[0] if hidden_states.ndim == 1 else found

    # Both engines' classes have these.
    _module: Any
    _stood_down: Any

    def _head(self, rows: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def _understood(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments without those of nnterp 1.x that mean nothing here.

    Raises:
        UnsupportedEngine: One of them asks for something that is done otherwise.
    """
    if kwargs.pop("remote", False):
        raise UnsupportedEngine("remote=True runs blocks on NDIF, which serves none of these names. Leave it out.")
    if kwargs.pop("rename_config", None) is not None:
        raise UnsupportedEngine(
            "rename_config= told nnterp 1.x what a model's modules are called. Pass rename={native path: name}, or "
            "family= with a declaration of the architecture."
        )
    return {name: value for name, value in kwargs.items() if name not in _WITHOUT_EFFECT}


class NnterpTransformer(NnterpDialect, StandardizedTransformer):
    """`StandardizedTransformer` that also speaks nnterp 1.x; takes that class's arguments too."""

    _raw = RawLiveView

    def __init__(self, model: str | torch.nn.Module, **kwargs: Any) -> None:
        kwargs = _understood(kwargs)
        if torch.cuda.is_available():
            kwargs.setdefault("device_map", "auto")
        super().__init__(model, **kwargs)

    def _head(self, rows: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._module.get_output_embeddings()(rows)
        return logits


class NnterpVLLM(NnterpDialect, StandardizedVLLM):
    """`StandardizedVLLM` that also speaks nnterp 1.x; ``trace(prompt)`` is one forward, as it is there."""

    _raw = RawRowsView

    def __init__(self, model: str | torch.nn.Module, **kwargs: Any) -> None:
        kwargs = _understood(kwargs)
        if kwargs.get("device_map") in ("auto", "cuda"):
            del kwargs["device_map"]  # where vLLM puts a model anyway
        if "torch_dtype" in kwargs:
            kwargs["dtype"] = kwargs.pop("torch_dtype")
        super().__init__(model, **kwargs)

    def trace(self, *inputs: Any, **kwargs: Any) -> Any:
        """Open a trace of one deterministic step, unless sampling settings say otherwise."""
        if not SAMPLING & kwargs.keys():
            kwargs["max_tokens"] = 1
        kwargs.setdefault("temperature", 0.0)
        return super().trace(*inputs, **kwargs)

    def _settle_tree(self) -> None:
        super()._settle_tree()
        implementation = self.plan.implementation
        envoy = self.__dict__.get("lm_head")
        self.__dict__["lm_head"] = Head(self, self.get(implementation.names["embed_tokens"]) if envoy is None else envoy)

    def _head(self, rows: torch.Tensor) -> torch.Tensor:
        with product_alone(self._module):
            logits: torch.Tensor = self._module.compute_logits(rows)
        return logits
