"""What one collection takes from one step of the engine: whose rows, which of them, and copying them together."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from nnsight.util import apply

from ..collect.selection import ALL, GENERATED, LAST, every_view, position_axis
from ..row_views import RowsView
from ..views import View

_LOGITS = "model.logits"


class Job:
    """An open collection.

    Attributes:
        views: The view of each value, by path.
        steps: What was gathered and not yet taken.
        error: The first thing that went wrong, in words for the user.
    """

    def __init__(self, model: Any, payload: bytes) -> None:
        asked = pickle.loads(payload)
        known = every_view(model)
        self.views: dict[str, View] = {path: known[path] for path in asked["paths"]}
        self.mode: str = asked["mode"]
        self.chosen: tuple[int, ...] = asked["chosen"]
        self.reduce = reduction(asked["reduce"])
        self.dtype = None if asked["dtype"] is None else getattr(torch, asked["dtype"])
        self.steps: list[Step] = []
        self.held: dict[int, dict[str, list[torch.Tensor]]] = {}
        self.error: str | None = None

    def fail(self, message: str) -> None:
        """Keep the first error."""
        self.error = self.error or message


class Ticket:
    """One request of a job."""

    __slots__ = ("job", "last", "number", "own")

    def __init__(self, job: Job, number: int, own: list[int] | None) -> None:
        self.job = job
        self.number = number
        self.own = own
        self.last = -1

    def positions(self, computed: int, tokens: int, prompt: int) -> list[int] | range | None:
        """The wanted positions among the ``tokens`` rows of this step; ``None`` for none.

        Args:
            computed: Tokens of the request that were computed before this step.
            tokens: Tokens that this step computes.
            prompt: Tokens of the prompt.
        """
        newest = computed + tokens - 1
        if self.job.mode == GENERATED:
            # A preempted request's whole text is computed again; its newest row alone is new.
            if newest < prompt or newest <= self.last:
                return None
            self.last = newest
            return [tokens - 1]
        if self.last >= 0:
            return None
        self.last = newest
        if computed or tokens < prompt:
            self.job.fail(
                f"Prompt {self.number} has {prompt} tokens and the engine computed {tokens} of them at once, so its rows "
                f"are not together. Build the engine without enable_chunked_prefill and enable_prefix_caching."
            )
            return None
        if self.own is not None:
            return self.own
        if self.job.mode == LAST:
            return [prompt - 1]
        if self.job.mode == ALL:
            return range(prompt)
        return [position % prompt for position in self.job.chosen]


class Step:
    """What one job takes from one step of the engine."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.numbers: list[int] = []
        self.counts: list[int] = []
        self.spans: list[tuple[int, int]] = []
        self.within: list[list[int] | range] = []
        self.rows: list[int] = []
        self.values: dict[str, torch.Tensor | list[torch.Tensor]] = {}
        self._index: list[int] = []
        self._whole = True

    def add(self, ticket: Ticket, row: int, start: int, tokens: int, positions: list[int] | range) -> None:
        """Take ``positions`` of the request that has the batch's ``row`` and ``tokens`` rows from ``start``."""
        self.numbers.append(ticket.number)
        self.counts.append(len(positions))
        self.spans.append((start, tokens))
        self.within.append(positions)
        self.rows.append(row)
        self._whole = self._whole and len(self._index) == start and positions == range(tokens)
        self._index.extend(positions if start == 0 else [start + position for position in positions])

    @property
    def complete(self) -> bool:
        """Whether the model came by every value."""
        return len(self.values) == len(self.job.views)

    def narrowed(self, raw: Any, location: str, batcher: Any) -> Any:
        """``raw`` with every tensor of the step's rows narrowed to the wanted ones; as it is where all are wanted."""
        chosen = self.rows if location == _LOGITS else self._index
        if len(chosen) == batcher.total and (self._whole or chosen == list(range(batcher.total))):
            return raw
        indices: dict[torch.device, torch.Tensor] = {}

        def pick(tensor: torch.Tensor) -> torch.Tensor:
            axis = batcher._token_dim(tensor) if tensor.ndim else None
            if axis is None:
                return tensor
            if tensor.device not in indices:
                indices[tensor.device] = torch.tensor(chosen, dtype=torch.int64).to(tensor.device)
            return tensor.index_select(axis, indices[tensor.device])

        return apply(raw, pick, torch.Tensor)

    def gather(self, path: str, view: View, raw: Any, narrowed: Any, batcher: Any) -> None:
        """Keep a value of the wanted rows."""
        values: torch.Tensor | list[torch.Tensor]
        if isinstance(view, RowsView):
            rows = by_position(view, view.copy(narrowed)[0])
            if rows.shape[0] != sum(self.counts):
                raise RuntimeError(f"{path} has {rows.shape[0]} rows where {sum(self.counts)} were asked for.")
            values = rows if self.job.reduce is None else list(torch.split(rows, self.counts))
        else:
            values = [self._alone(view, number, raw, batcher) for number in range(len(self.numbers))]
        if self.job.mode == GENERATED and self.job.reduce is not None:
            for number, piece in zip(self.numbers, values, strict=True):
                self.job.held.setdefault(number, {}).setdefault(path, []).append(piece)
            self.values[path] = []
            return
        if self.job.reduce is not None:
            values = [self.job.reduce(piece).unsqueeze(0) for piece in values]
        self.values[path] = self._kept(values)

    def _alone(self, view: View, number: int, raw: Any, batcher: Any) -> torch.Tensor:
        """One request's value, for views that must see a request's rows and no other."""
        group = [self.rows[number], 1] if view.location == _LOGITS else list(self.spans[number])
        rows = by_position(view, view.copy(batcher.narrow(raw, group))[0])
        if position_axis(view) is None:
            return rows
        return rows.index_select(0, torch.tensor(list(self.within[number]), device=rows.device))

    def _kept(self, values: torch.Tensor | list[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(values, list):
            if len({value.shape[1:] for value in values}) > 1:
                return [to_host(value, self.job.dtype) for value in values]
            values = torch.cat(values)
        return to_host(values, self.job.dtype)


def by_position(view: View, served: torch.Tensor) -> torch.Tensor:
    """A served value as ``[positions, ...]``."""
    axis = position_axis(view)
    if axis is None:  # one row for each request: [batch, 1, vocab] or [batch, vocab]
        return served.squeeze(0) if served.ndim == 3 else served
    return served.movedim(axis, 1).squeeze(0) if "batch" in view.value.axes else served.movedim(axis, 0)


def to_host(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A contiguous copy in the host's memory. From a GPU it is still on its way until the device is synchronized."""
    tensor = tensor.to(dtype or tensor.dtype).contiguous()
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def reduction(asked: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The function that ``reduce=`` names: ``[positions, ...] -> [...]``."""
    if asked is None:
        return None
    if asked == "mean":
        return partial(torch.mean, dim=0)
    if asked == "sum":
        return partial(torch.sum, dim=0)
    if isinstance(asked, bytes):
        found: Callable[[torch.Tensor], torch.Tensor] = pickle.loads(asked)
        return found
    module, _, name = asked.partition(":")
    found = getattr(importlib.import_module(module), name)
    return found
