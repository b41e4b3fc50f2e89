"""The place where the model is paused for a block, and the copies that the block holds there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .mediator import StandardMediator


class Visit:
    """The place where the model is paused for a block.

    Attributes:
        location: nnsight's name of it.
        occurrence: How many times the request came by before.
        value: What the model serves there for the whole step: live tensors with every request's rows.
        batcher: nnsight's row arithmetic; ``None`` where no rows are to be told apart.
        group: The block's ``[start, size]`` among the rows.
        shared: Copies of the whole step that blocks of several requests share at this visit, by view; ``None`` once this
            block has done anything here that such a copy may not show.
        swapped: The batcher's count of native assignments when the value was served; a later count means that the model
            goes on with other tensors.
    """

    __slots__ = ("_raw", "batcher", "group", "location", "mediator", "native", "occurrence", "shared", "swapped", "value")

    def __init__(self, location: str, occurrence: int, value: Any, mediator: StandardMediator, shared: Any) -> None:
        self.location = location
        self.occurrence = occurrence
        self.value = value
        self.batcher = mediator.interleaver.batcher
        self.group = mediator.batch_group
        self.shared = shared
        self.swapped = self.batcher.swapped
        self.mediator = mediator
        self.native = mediator.native
        self._raw: Any = None

    @property
    def raw(self) -> Any:
        """The value with every tensor narrowed to this request's live rows."""
        if self._raw is None:
            self._raw = self.batcher.narrow(self.value, self.group)
        return self._raw

    @property
    def stale(self) -> bool:
        """Whether the tensors may be others since: a native assignment replaced them, or this block read them natively.

        What is read natively are the live rows, and an edit of those leaves no trace.
        """
        return bool(self.swapped != self.batcher.swapped or self.native != self.mediator.native)


class Held:
    """A private copy that the block holds at the current visit."""

    __slots__ = ("base", "served", "version", "visit")

    def __init__(self, served: torch.Tensor, base: torch.Tensor, visit: Any) -> None:
        self.served = served
        self.base = base
        self.visit = visit
        self.version = base._version

    @property
    def edited(self) -> bool:
        """Whether the copy was changed in place since it was handed out or last written back."""
        return self.base._version != self.version
