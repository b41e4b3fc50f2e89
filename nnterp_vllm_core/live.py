"""Views for an engine whose forward runs here, with gradients: transformers.

A private copy would fall out of the gradient's path, so a read hands out a clone and lets the model go on with *a clone of
that*. Gradients flow through what was handed out, an edit of it reaches the model when the block moves on, and a saved value
stays what it was read as, because the model, which may add into its tensors in place (Falcon's does), never holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from greenlet import getcurrent
from nnsight.intervention.interleaver import Event, Mediator, Pending

from .family import Arg
from .layouts import element
from .mediator import StandardMediator
from .protocol import Value
from .views import View
from .visit import Held


def replaced(raw: Any, select: int | Arg | str | None, location: str, new: Any) -> Any:
    """``raw`` with one element exchanged, in the container that the model passes on."""
    if location.endswith(".input"):
        args, kwargs = raw
        if isinstance(select, Arg) and select.index >= len(args):
            return args, {**kwargs, select.name: new}
        if select is None and not args:
            return args, {**kwargs, next(iter(kwargs)): new}
        index = select.index if isinstance(select, Arg) else 0
        return (*args[:index], new, *args[index + 1 :]), kwargs
    if select is None or (select == 0 and isinstance(raw, torch.Tensor)):
        return new
    if isinstance(select, str):
        raw[select] = new
        return raw
    assert isinstance(select, int)
    return type(raw)([*raw[:select], new, *raw[select + 1 :]])


class LiveView(View):
    """A value that one tensor of the running forward holds."""

    def __init__(
        self,
        value: Value,
        path: str,
        location: str,
        select: int | Arg | str | None = None,
        times: Callable[[], Any] | None = None,
        plus: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(value, path, location)
        self.select = select
        self.times = times
        self.plus = plus
        self.writable = True
        self.prefill_only = False

    def standard(self, live: torch.Tensor) -> torch.Tensor:
        """The standard value of what is there: a clone, or what the factor and the addend make of it."""
        live = rows_of(live) if self.flat(live) else live
        served = live.clone() if self.times is None else live * self.times()
        if self.plus is not None and (plus := self.plus()) is not None:
            served = served + plus
        return served

    def native(self, served: torch.Tensor) -> torch.Tensor:
        """What has to be there for ``served`` to be the standard value."""
        if self.plus is not None and (plus := self.plus()) is not None:
            served = served - plus
        return served if self.times is None else served / self.times()

    def flat(self, live: torch.Tensor) -> bool:
        """Whether the model has batch and positions in one axis there (OPT's feed-forward part)."""
        return live.ndim == 2 and len(self.value.axes) == 3

    def part(self, raw: Any) -> torch.Tensor:
        """The live tensor."""
        if isinstance(self.select, str):
            found: torch.Tensor = raw[self.select]
            return found
        tensor: torch.Tensor = element(raw, self.select, self.location)
        return tensor

    def get(self) -> torch.Tensor:
        mediator = StandardMediator.running(self.path)
        occurrence = mediator.due(self.location, self.path)
        visit = (self.location, occurrence)
        held = mediator.held.get(self)
        if held is not None and mediator.visit == visit:
            return held.served
        raw = Mediator.value(self.location)
        mediator.visit = visit
        served = self.standard(self.part(raw))
        if self.times is None and self.plus is None:
            self.put(raw, served)
        mediator.held[self] = Held(served, served, raw)
        return served

    def set(self, new: Any) -> None:
        mediator = StandardMediator.running(self.path)
        occurrence = mediator.due(self.location, self.path)
        visit = (self.location, occurrence)
        held = mediator.held.get(self)
        if held is not None and mediator.visit == visit and new is held.served and held.edited:
            mediator.settle()
            return
        raw = Mediator.value(self.location)
        mediator.visit = visit
        self.write(raw, self.checked(new, raw))
        if held is None or new is not held.served:
            mediator.held.pop(self, None)

    def land(self, held: Held) -> None:
        self.write(held.visit, held.served)

    def write(self, raw: Any, new: torch.Tensor) -> None:
        live = self.part(raw)
        self.put(raw, self.native(new.to(device=live.device, dtype=live.dtype)))

    def put(self, raw: Any, new: torch.Tensor) -> None:
        """Let the model go on with a clone of ``new``, in its own layout."""
        visit = StandardMediator.running(self.path).visit
        assert visit is not None
        live = self.part(raw)
        new = with_rows(live, new) if self.flat(live) else new.clone()
        swap(visit, replaced(raw, self.select, self.location, new))

    def shape(self, raw: Any) -> tuple[int, ...]:
        live = self.part(raw)
        return tuple((rows_of(live) if self.flat(live) else live).shape)


def rows_of(live: torch.Tensor) -> torch.Tensor:
    """``[rows, seq, hidden]``, this invoke's part of ``[batch * seq, hidden]``.

    nnsight narrows tensors whose first axis is the batch, which this one's is only where each row has one position.
    """
    mediator = StandardMediator.running("a value")
    total = mediator.interleaver.batcher.total or 1
    start, size = mediator.batch_group or (0, total)
    if live.shape[0] == size:
        return live.unsqueeze(1)
    return live.reshape(total, -1, live.shape[-1])[start : start + size]


def with_rows(live: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """A clone of ``live`` with this invoke's part replaced."""
    whole = live.clone()
    rows_of(whole).copy_(new)
    return whole


class ComputedView(View):
    """A read-only value computed from what is served at a location, on the gradient's path."""

    def __init__(self, value: Value, path: str, location: str, compute: Callable[[Any], Any]) -> None:
        super().__init__(value, path, location)
        self.compute = compute
        self.writable = False
        self.prefill_only = False

    def get(self) -> Any:
        StandardMediator.running(self.path).due(self.location, self.path)
        return self.compute(Mediator.value(self.location))


def swap(visit: tuple[str, int], new: Any) -> None:
    """Put ``new`` in place of what is served at the visit where the model is paused.

    Tagged with the visit itself: under ``tracer.iter`` a request made now could already mean the next step.
    """
    location, occurrence = visit
    getcurrent().parent.switch(Pending(Event.SWAP, location, occurrence, new))
