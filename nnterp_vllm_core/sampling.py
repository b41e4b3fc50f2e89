"""vLLM's sampling settings on transformers' ``generate``, with the drawn tokens in reach of a block."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from .errors import UnsupportedEngine
from .interior import Point

#: The settings that both engines understand, by vLLM's names.
SAMPLING = frozenset({"temperature", "max_tokens", "max_new_tokens", "top_p", "top_k", "min_tokens", "ignore_eos", "seed"})

#: vLLM's own defaults for a request.
_TEMPERATURE, _MAX_TOKENS = 1.0, 16


class Sampler(LogitsProcessor):
    """Draws each step's tokens itself and lets them pass through a point of the model's tree.

    ``generate`` draws after its processors and offers no place to read or replace what it drew. This one stands last in
    the list: it draws, passes the ids through the point, and leaves ``generate`` scores under which greedy decoding picks
    exactly those ids.
    """

    def __init__(self) -> None:
        self.point = Point()
        self.temperature = _TEMPERATURE
        self.top_k = 0
        self.top_p = 1.0
        self.generator: torch.Generator | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``[batch, vocab]`` scores with one finite entry a row."""
        ids = self.point(self.draw(scores).to(torch.int32)).to(torch.int64).reshape(-1, 1)
        return torch.full_like(scores, float("-inf")).scatter(1, ids, 0.0)

    def draw(self, scores: torch.Tensor) -> torch.Tensor:
        """Token ids, ``[batch, 1]``: greedy at temperature 0, as vLLM has it."""
        if self.temperature == 0.0:
            return scores.argmax(-1, keepdim=True)
        probabilities = (scores.float() / self.temperature).softmax(-1)
        if self.top_k > 0:
            floor = probabilities.topk(min(self.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
            probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
        if self.top_p < 1.0:
            ordered, order = probabilities.sort(-1, descending=True)
            beyond = ordered.cumsum(-1) - ordered > self.top_p
            probabilities = probabilities.scatter(1, order, ordered.masked_fill(beyond, 0.0))
        return torch.multinomial(probabilities, 1, generator=self.generator)


def taken_from(invokes: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """The settings that were given to a trace's invokes, taken out of their arguments.

    Raises:
        UnsupportedEngine: They differ. The invokes are rows of one batch, which one ``generate`` runs.
    """
    given = [{name: kwargs.pop(name) for name in sorted(SAMPLING & kwargs.keys())} for _, kwargs in invokes]
    if any(one != given[0] for one in given):
        raise UnsupportedEngine(
            f"The invokes of this trace have different sampling settings ({given!r}), and transformers runs them as one "
            f"batch. Give the settings to trace(), or run the prompts in traces of their own; StandardizedVLLM takes both."
        )
    return given[0] if given else {}


def generation_settings(settings: dict[str, Any], tokenizer: Any, sampler: Sampler) -> dict[str, Any]:
    """Arguments of transformers' ``generate`` for vLLM's settings; sets up ``sampler``.

    Raises:
        UnsupportedEngine: Both spellings of the length are given.
    """
    if "max_tokens" in settings and "max_new_tokens" in settings:
        raise UnsupportedEngine("max_tokens= and max_new_tokens= are two names of one setting; give one.")
    sampler.temperature = float(settings.get("temperature", _TEMPERATURE))
    sampler.top_k = int(settings.get("top_k", 0))
    sampler.top_p = float(settings.get("top_p", 1.0))
    seed = settings.get("seed")
    sampler.generator = None if seed is None else torch.Generator().manual_seed(seed)
    length = settings.get("max_tokens", settings.get("max_new_tokens", _MAX_TOKENS))
    options: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": length,
        "logits_processor": LogitsProcessorList([sampler]),
        "pad_token_id": tokenizer.pad_token_id,
    }
    if settings.get("ignore_eos"):
        options["eos_token_id"] = None
        options["min_new_tokens"] = length
    elif settings.get("min_tokens"):
        options["min_new_tokens"] = settings["min_tokens"]
    return options
