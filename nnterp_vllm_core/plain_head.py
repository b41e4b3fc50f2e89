"""vLLM's head as a transformers model has it: a module that multiplies, without the scale and softcap of the logits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .errors import Unavailable


class Head:
    """vLLM's head: callable, as the module of a transformers model is and vLLM's own is not."""

    def __init__(self, model: Any, envoy: Any) -> None:
        self._model = model
        self._envoy = envoy

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The head's product, ``[..., hidden]`` to ``[..., vocab]``."""
        rows = hidden_states.reshape(-1, hidden_states.shape[-1]).contiguous()
        with self._model._stood_down():
            logits: torch.Tensor = self._model._head(rows)
        return logits.reshape(*hidden_states.shape[:-1], -1)

    @property
    def output(self) -> torch.Tensor:
        """Refused: the engine computes the last position's logits alone, outside any module."""
        raise Unavailable(
            "lm_head.output: vLLM never calls its head's module. Read model.logits, the last position's, or call "
            "model.project_on_vocab on a layer's output."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_envoy", "_model"):  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._envoy, name)


@contextlib.contextmanager
def product_alone(module: Any) -> Iterator[None]:
    """Let vLLM's logits processor multiply by the head and nothing else."""
    processors = [one for name, one in module.named_modules() if name.rpartition(".")[2] == "logits_processor"]
    before = [(one.scale, one.soft_cap) for one in processors]
    for one in processors:
        one.scale, one.soft_cap = 1.0, None
    try:
        yield
    finally:
        for one, (scale, cap) in zip(processors, before, strict=True):
            one.scale, one.soft_cap = scale, cap
