"""One value, or one module, of every layer, reached by index: the shape of nnterp 1.x's names."""

from __future__ import annotations

from typing import Any

import torch

from .raw import raw_view


class PerLayer:
    """``model.layers_output`` and its like: one value, or one module, of every layer, read and assigned by index."""

    def __init__(self, model: Any, part: str | None, value: str | None) -> None:
        self.model = model
        self.part = part
        self.value = value

    def __getitem__(self, layer: int) -> Any:
        """The value (inside a trace block) or the module of a layer; negative counts from the end."""
        envoy = self._envoy(layer)
        if self.value is None:
            return envoy
        if self.value in ("input", "output"):
            return raw_view(envoy, self.value, self.model._raw).get()
        return getattr(envoy, self.value)

    def __setitem__(self, layer: int, new: torch.Tensor) -> None:
        envoy = self._envoy(layer)
        if self.value is None:
            raise ValueError(f"A module cannot be assigned; assign its value: {self.part}s_output[{layer}] = ...")
        if self.value in ("input", "output"):
            raw_view(envoy, self.value, self.model._raw).set(new)
        else:
            setattr(envoy, self.value, new)

    def __call__(self, layer: int) -> Any:
        """The same as indexing."""
        return self[layer]

    def __len__(self) -> int:
        return int(self.model.num_layers)

    def _envoy(self, layer: int) -> Any:
        block = self.model.layers[self.model._layer_index(layer)]
        return block if self.part is None else getattr(block, self.part)
