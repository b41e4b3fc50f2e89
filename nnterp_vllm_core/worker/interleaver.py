"""Serving a visit to the blocks of many requests at the cost of one.

When most of a step's rows belong to requests that wait for the same value, the value is copied once for the whole step and
each block gets its slice. A block's cost is then a slice, not an allocation, an addition and a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from greenlet import getcurrent
from nnsight.modeling.vllm.interleaver import VLLMInterleaver

from .handoffs import Handoffs
from .itinerary import Visits


class Shared(dict[Any, dict[int, torch.Tensor]]):
    """Copies of a whole step at one visit, by view, each cut into the requests' pieces by their first rows."""

    __slots__ = ("groups", "interleaver", "location", "served", "verdict")

    def __init__(self, interleaver: StandardInterleaver, location: str) -> None:
        super().__init__()
        self.interleaver = interleaver
        self.location = location
        self.groups: list[list[int]] = []
        self.served: set[int] = set()
        self.verdict: bool | None = None

    @property
    def worthwhile(self) -> bool:
        """Whether at least two requests wait here, with at least half of the step's rows."""
        if self.verdict is None:
            self.groups = [
                mediator.batch_group
                for mediator in self.interleaver.mediators
                if mediator.pending is not None and mediator.pending.provider == self.location and mediator.batch_group
            ]
            waiting = sum(size for _, size in self.groups)
            self.verdict = len(self.groups) > 1 and 2 * waiting >= self.interleaver.batcher.total
        return self.verdict

    def first_of(self, group: list[int] | None) -> bool:
        """Whether this block is the first of its request here. What an earlier one wrote, a copy may not show."""
        last = -1 if group is None else sum(group)
        first = last not in self.served
        self.served.add(last)
        return first

    def pieces(self, whole: torch.Tensor, axis: int) -> dict[int, torch.Tensor]:
        """Cut a copy at the borders of the requests that wait here.

        ``.data`` is the same memory with an edit counter of its own, so that one request's edit is not taken for another's.
        """
        starts, sizes, at = [], [], 0
        for start, size in [*sorted(self.groups), [whole.shape[axis], 0]]:
            if start < at:
                continue  # a second block of the same request, see `first_of`
            if start > at:
                starts.append(at)
                sizes.append(start - at)
            if size:
                starts.append(start)
                sizes.append(size)
            at = start + size
        parts = torch.split_with_sizes(whole, sizes, axis)
        return {start: part.data for start, part in zip(starts, parts, strict=True)}


class StandardInterleaver(VLLMInterleaver):
    """nnsight's interleaver with copies that requests share.

    Attributes:
        shared: The copies of the visit that is being served.
        gathers: What bulk collection still takes from this step, by location; called with the value that blocks left.
        handoffs: The controllers of the model's modules; set when the tree is built.
        counts: How many times the model came by each place.
    """

    shared: Shared | None = None
    gathers: dict[str, Callable[[Any, Any], None]]
    handoffs: Handoffs
    counts: Visits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gathers = {}
        self.counts = Visits()

    def reindex(self) -> None:
        """Note who waits where; see nnsight's ``Interleaver.reindex``. Modules hand off while something is gathered."""
        super().reindex()
        self.busy = bool(self.mediators or self.gathers)
        self.handoffs.watch(self.gathers)
        self.handoffs.watch(self.observers)

    def _reindex_parked(self) -> None:
        super()._reindex_parked()
        self.handoffs.watch(self.parked)

    def _ready(self, provider: str) -> list[Any]:
        # nnsight's, with the count looked up once for all blocks.
        passed = self.counts.passed(provider)
        counted = self.counts.get(provider, 0)
        return [
            mediator
            for mediator in self.mediators
            if (pending := mediator.pending) is not None
            and pending.provider == provider
            and pending.iteration
            == (counted - mediator.counts_at_start.get(provider, 0) if passed is None else passed - mediator.began)
        ]

    def handle(self, provider: str, value: Any) -> Any:
        """Route a value to the blocks that wait for it; see nnsight's ``Interleaver.handle``."""
        # A module that a block runs for itself is no part of the forward.
        mediator = getattr(getcurrent(), "mediator", None)
        aside = mediator is not None and getattr(mediator(), "interleaver", None) is self
        if not aside:
            self.counts.arrive(provider)
        gather = None if aside else self.gathers.pop(provider, None)
        if provider in self.parked:
            self.shared = Shared(self, provider)
            try:
                value = super().handle(provider, value)
            finally:
                self.shared = None
        elif self.taps or self.observers:
            value = super().handle(provider, value)
        else:
            # What nnsight does when nobody waits, without the way there: a counted forward passes here thousands of times.
            self.counts[provider] = self.counts.get(provider, 0) + 1
        if gather is not None:
            gather(self, value)
        if not aside:
            self.counts.leave(provider)
            self.handoffs.came_by(provider, value)
        return value
