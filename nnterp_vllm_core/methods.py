"""What nnterp's models do beyond values: steering, skipping, reading the vocabulary off a hidden state.

Written on standard values alone, so they mean the same on every engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .support import Support


class StandardMethods:
    """Methods of a standardized model, on any engine. Called inside a trace block unless said otherwise."""

    layers: Any

    def steer(
        self,
        layers: int | Iterable[int],
        steering_vector: torch.Tensor,
        factor: float = 1.0,
        positions: int | slice | Sequence[int] | torch.Tensor | None = None,
    ) -> None:
        """Add ``factor * steering_vector`` to the residual stream that leaves each of ``layers``.

        Args:
            layers: One index or several, in any order; they are steered in the model's order.
            steering_vector: ``[hidden]``, or anything that broadcasts to the steered positions.
            factor: A plain multiplier.
            positions: Positions of this step's rows; ``None`` for all. On a decode step there is one row.

        Raises:
            IndexError: A layer or a position does not exist.
            ValueError: The vector's last axis is not ``hidden_size``.
            TypeError: A position is a boolean.
        """
        if isinstance(positions, bool):
            raise TypeError(f"steer: positions={positions!r} is no position; None steers all of them.")
        if steering_vector.shape[-1:] != (self.hidden_size,):
            raise ValueError(
                f"steer: the steering vector is {tuple(steering_vector.shape)}; its last axis has to be "
                f"hidden_size={self.hidden_size}."
            )
        for layer in sorted(self._layer_index(one) for one in ([layers] if isinstance(layers, int) else layers)):
            stream = self.layers[layer].layer_output
            where = slice(None) if positions is None else positions
            stream[:, where] += factor * steering_vector.to(device=stream.device, dtype=stream.dtype)

    def skip_layer(self, layer: int, skip_with: torch.Tensor | None = None) -> None:
        """Let the stream pass ``layer`` unchanged, or replaced by ``skip_with``. See `skip_layers`."""
        self.skip_layers(layer, layer, skip_with)

    def skip_layers(self, start_layer: int, end_layer: int, skip_with: torch.Tensor | None = None) -> None:
        """Let the residual stream pass the layers ``start_layer`` to ``end_layer`` (included) as if they were not there.

        The stream that leaves ``end_layer`` becomes ``skip_with``, or the stream that enters ``start_layer``. The layers
        still run: the engine computes a step for every request in flight, and other requests need them. So the values
        inside a skipped layer can be read, no time is saved, and nobody else's rows change.

        Args:
            start_layer: First layer to skip; negative counts from the end.
            end_layer: Last layer to skip.
            skip_with: ``[batch, seq, hidden]``, the stream after the skipped layers.

        Raises:
            IndexError: A layer does not exist.
            ValueError: ``start_layer`` is after ``end_layer``.
        """
        start, end = self._layer_index(start_layer), self._layer_index(end_layer)
        if start > end:
            raise ValueError(f"skip_layers({start_layer}, {end_layer}): the first layer to skip is after the last.")
        if skip_with is None:
            skip_with = self.layers[start].layer_input
        self.layers[end].layer_output = skip_with

    def project_on_vocab(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Read the vocabulary off a residual stream: the model's last norm, its head, and any bias, scale and softcap.

        Args:
            hidden_states: ``[..., hidden]``, a residual stream such as ``layer_output``.

        Returns:
            Logits, ``[..., vocab]``. Of the last block's ``layer_output`` they equal ``logits`` at the last position.
        """
        width = hidden_states.shape[-1]
        if width != self.hidden_size:
            raise ValueError(
                f"project_on_vocab takes [..., hidden] with hidden={self.hidden_size}, not a last axis of {width}."
            )
        rows = hidden_states.reshape(-1, width).contiguous()
        return self._unembed(rows).reshape(*hidden_states.shape[:-1], -1)

    def get_topk_closest_tokens(self, hidden_states: torch.Tensor, k: int = 5) -> list[Any]:
        """The ``k`` tokens whose logits are largest under `project_on_vocab`, best first, as strings.

        Args:
            hidden_states: ``[hidden]`` gives one list; each further leading axis nests the lists once more.
            k: How many tokens.

        Raises:
            ValueError: ``k`` is not between 1 and the vocabulary's size.
        """
        if not 1 <= k <= self.vocab_size:
            raise ValueError(f"get_topk_closest_tokens: k={k} is not between 1 and vocab_size={self.vocab_size}.")
        ids = self.project_on_vocab(hidden_states).topk(k, dim=-1).indices.tolist()

        def strings(nested: Any) -> Any:
            return [strings(one) for one in nested] if isinstance(nested, list) else self.tokenizer.decode([nested])

        found: list[Any] = strings(ids)
        return found

    def support(self) -> Support:
        """What is served on this model and what is not, value by value, before anything runs."""
        return Support.of(self)

    def _layer_index(self, layer: int) -> int:
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(f"A layer is named by an integer, not by {layer!r}.")
        index = layer + self.num_layers if layer < 0 else layer
        if not 0 <= index < self.num_layers:
            raise IndexError(f"Layer {layer} does not exist; this model has {self.num_layers}.")
        return index

    # Provided by the engine's model class.
    num_layers: int
    hidden_size: int
    vocab_size: int
    tokenizer: Any

    def _unembed(self, rows: torch.Tensor) -> torch.Tensor:
        """Final norm, head, bias, scale and softcap on ``[rows, hidden]``."""
        raise NotImplementedError
