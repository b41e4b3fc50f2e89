"""The trace blocks of the conformance suite, written once and run on both engines.

The vLLM engine and transformers take the same block; they differ in what ``trace`` is given, and that is a `Runner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import nnsight
import torch

from ..envoys import SLOT
from ..protocol import VALUES, Value
from ..views import MissingView

#: One deterministic step, the prefill.
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 1}

Ids = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One value of one envoy: ``key`` is what a block would write after ``model.``, ``layers.2.mlp.mlp_output``."""

    key: str
    envoy: Any
    value: Value

    @property
    def name(self) -> str:
        """The value's name, the last part of its key."""
        return self.value.name

    @property
    def missing(self) -> str | None:
        """Why it cannot be read; ``None`` where it can."""
        view = self.envoy.__dict__.get(SLOT, {}).get(self.name)
        if view is None:
            return "this block has no such part"
        return view.reason if isinstance(view, MissingView) else None

    @property
    def writable(self) -> bool:
        """Whether a write reaches the model."""
        return bool(self.envoy.__dict__[SLOT][self.name].writable)


def places(model: Any) -> Iterator[Place]:
    """Every value of every layer, in the order in which a forward pass reaches them."""
    # transformers has the mask at the model's own input, before anything is embedded.
    for name in ("attention_mask", "input_ids", "input_size", "token_embeddings"):
        yield Place(key=name, envoy=model, value=VALUES[name])
    for index, block in enumerate(model.layers):
        for value in VALUES.values():
            owner = _owner(block, value)
            if owner is not None:
                middle = {"layer": "", "attention": "self_attn.", "mlp": "mlp."}[value.host]
                yield Place(key=f"layers.{index}.{middle}{value.name}", envoy=owner, value=value)
    for name in ("logits", "next_token_probs"):
        yield Place(key=name, envoy=model, value=VALUES[name])


def _owner(block: Any, value: Value) -> Any:
    if value.host in ("model", "layer"):
        return block if value.host == "layer" else None
    return block.__dict__.get("self_attn" if value.host == "attention" else "mlp")


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A model and how it is traced.

    Attributes:
        model: A `StandardizedVLLM` or a `StandardizedTransformer`.
        transformers: Whether it is the latter, which takes tensors and computes gradients unless told otherwise.
    """

    model: Any
    transformers: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What ``trace`` gets beside the prompt."""
        return {} if self.transformers else dict(GREEDY)

    def prompt(self, ids: Ids) -> Any:
        """Token ids as this engine takes them."""
        return torch.tensor([list(ids)]) if self.transformers else list(ids)

    def quiet(self) -> AbstractContextManager[Any]:
        """No gradients, where there would be some."""
        return torch.no_grad() if self.transformers else nullcontext()

    def places(self) -> list[Place]:
        """Every value that can be read and is a tensor."""
        return [one for one in places(self.model) if one.missing is None and one.name != "input_size"]

    def place(self, key: str) -> Place:
        """The place with this key."""
        return next(one for one in places(self.model) if one.key == key)

    def read(self, ids: Ids, wanted: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """Values of one prefill by key; all of them unless named. ``logits`` are the last position's, on both engines."""
        model, prompt, settings = self.model, self.prompt(ids), self.settings
        asked = [(one.key, one.envoy, one.name) for one in self.places() if wanted is None or one.key in wanted]
        with self.quiet():
            with model.trace(prompt, **settings):
                found = nnsight.save({})
                for key, envoy, name in asked:
                    found[key] = getattr(envoy, name)
        return self._tidy(dict(found))

    def alone(self, ids: Ids, key: str) -> torch.Tensor:
        """One value, read by a trace of its own and cloned where it is read."""
        model, prompt, settings, place = self.model, self.prompt(ids), self.settings, self.place(key)
        envoy, name = place.envoy, place.name
        with self.quiet():
            with model.trace(prompt, **settings):
                value = getattr(envoy, name).clone().save()
        found: torch.Tensor = value.cpu()
        return found[:, -1:] if key == "logits" else found

    def edited(self, ids: Ids, key: str, *, assign: bool = False) -> dict[str, torch.Tensor]:
        """The last stream and the logits after one value was edited: the last entry of its second axis, times -1/2."""
        model, prompt, settings, place = self.model, self.prompt(ids), self.settings, self.place(key)
        envoy, name, last = place.envoy, place.name, self.model.layers[-1]
        with self.quiet():
            with model.trace(prompt, **settings):
                if assign:
                    new = getattr(envoy, name).clone()
                    new[:, -1] *= -0.5
                    setattr(envoy, name, new)
                else:
                    getattr(envoy, name)[:, -1] *= -0.5
                found = nnsight.save({})
                found["stream"] = last.layer_output
                found["logits"] = model.logits
        return self._tidy(dict(found))

    def steered(self, ids: Ids, layer: int, vector: torch.Tensor, factor: float) -> dict[str, torch.Tensor]:
        """The last stream and the logits of a run whose stream was steered at every position after ``layer``."""
        model, prompt, settings, last = self.model, self.prompt(ids), self.settings, self.model.layers[-1]
        with self.quiet():
            with model.trace(prompt, **settings):
                model.steer(layer, vector, factor=factor)
                found = nnsight.save({})
                found["stream"] = last.layer_output
                found["logits"] = model.logits
        return self._tidy(dict(found))

    def projected(self, ids: Ids) -> dict[str, torch.Tensor]:
        """The last stream read off the vocabulary, at the last position, beside the logits and their probabilities."""
        model, prompt, settings, last = self.model, self.prompt(ids), self.settings, self.model.layers[-1]
        with self.quiet():
            with model.trace(prompt, **settings):
                found = nnsight.save({})
                found["projected"] = model.project_on_vocab(last.layer_output[:, -1:])
                found["logits"] = model.logits
                found["probabilities"] = model.next_token_probs
        return self._tidy(dict(found))

    def _tidy(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """On the CPU; transformers gives the logits of every position, vLLM the last one's."""
        found = {key: value.cpu() for key, value in found.items()}
        if "logits" in found:
            found["logits"] = found["logits"][:, -1:]
        return found
