"""One standard value at one location: how it is copied out of the live tensors and how an edit goes back in.

A view knows the location where the model is paused, which element of what is served there is its own, and the layout
between the engine's rows and the standard axes. Reading copies the rows; landing an edit writes rows in place, which
leaves every other request's rows alone to the bit, works in a replayed CUDA graph and needs no copy of the whole step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .attention import Kernel, probabilities, scores
from .errors import NnterpVLLMError, ReadOnlyValue, Unavailable
from .family import Arg
from .layouts import element, heads_layout, private
from .mediator import StandardMediator
from .protocol import Value
from .visit import Held, Visit


class View:
    """The common part: reading once per visit, checking an assignment, and what a user is told.

    Attributes:
        value: The standard value it serves.
        path: What the user wrote, for messages: ``model.model.layers.3.layer_output``.
        location: Where the model is paused when this value exists.
        derived: Whether it is computed from rows that other views write.
        writable: Whether a write can reach the model on this engine.
        prefill_only: Whether this engine has it on the prefill alone.
    """

    derived = False

    def __init__(self, value: Value, path: str, location: str) -> None:
        self.value = value
        self.path = path
        self.location = location
        self.writable = value.write == "writable"
        self.prefill_only = value.prefill_only

    @property
    def tap(self) -> str:
        """This value's name in ``taps=[...]``, for any layer."""
        return self.value.path

    def copy(self, raw: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """``(served, base)``: the standard value, and the private memory behind it."""
        raise NotImplementedError

    def write(self, raw: Any, new: torch.Tensor) -> None:
        """Put ``new``, in standard layout, into the live rows."""
        raise NotImplementedError

    def shape(self, raw: Any) -> tuple[int, ...]:
        """The standard shape on this request and step."""
        raise NotImplementedError

    def read(self, visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
        """``(served, base)`` of this request at a visit."""
        return self.copy(visit.raw)

    def get(self) -> Any:
        """Read: pause the model at the location and hand out a private copy."""
        mediator = StandardMediator.running(self.path)
        visit = self.at(mediator)
        held = mediator.held.get(self)
        if held is not None and held.visit is visit:
            return held.served
        served, base = self.read(visit)
        mediator.held[self] = Held(served, base, visit)
        return served

    def set(self, new: Any) -> None:
        """Assign: pause the model at the location and write the whole value."""
        if not self.writable:
            raise ReadOnlyValue(self.read_only("cannot be assigned"))
        mediator = StandardMediator.running(self.path)
        held = mediator.held.get(self)
        own = held is not None and new is held.served
        counted = held is not None and held.edited
        visit = self.at(mediator)
        own = own and held is not None and held.visit is visit
        if own and counted:
            return  # `value += x` edits the copy, which has landed by now, and then assigns it to itself
        self.write(visit.raw, self.checked(new, visit.raw))
        visit.shared = None
        mediator.wrote = True
        # The block's own copy goes on being watched: it may be edited again.
        for view in [view for view in mediator.held if (view is self and not own) or view.derived]:
            del mediator.held[view]

    def at(self, mediator: StandardMediator) -> Visit:
        """The visit where this value exists, asked for once however many views read there."""
        occurrence = mediator.due(self.location, self.path)
        visit: Visit | None = mediator.visit
        if visit is not None and visit.location == self.location and visit.occurrence == occurrence and not visit.stale:
            mediator.settle()
            return visit
        if mediator.cached or self.prefill_only or mediator.interleaver.taps:
            self.admit(mediator, occurrence)
        return mediator.ask(self.location, occurrence)

    def admit(self, mediator: StandardMediator, occurrence: int) -> None:
        """Refuse, before the model is asked, what this step cannot serve whole."""
        if self.prefill_only and occurrence > 0:
            raise Unavailable(
                f"{self.path} is there on the prefill only: this is step {occurrence}, which holds one token's keys. "
                f"Read it before `tracer.iter` moves past step 0, or trace the whole text as one prompt."
            )
        taps = mediator.interleaver.taps
        if taps and self.location not in taps and self.location.endswith((".input", ".output")):
            raise Unavailable(
                f"{self.path} is not tapped on this engine, so a replayed CUDA graph never stops there. Add "
                f"{self.tap!r} (or 'standard') to taps=[...] when the model is built, or leave taps out."
            )
        if mediator.cached and occurrence == 0:
            raise Unavailable(
                f"{self.path}: the engine took {mediator.cached} prompt tokens from its prefix cache, so their rows are "
                f"not computed. Build the engine with enable_prefix_caching=False."
            )

    def land(self, held: Held) -> None:
        """Write an edited copy back."""
        if not self.writable:
            raise ReadOnlyValue(self.read_only("was edited in place"))
        visit: Visit = held.visit
        if visit.stale:
            raise NnterpVLLMError(
                f"{self.path} was edited after its native location {self.location!r} was read or assigned in the same step, "
                f"and writing it back could undo what was done there. Read it again, then edit it."
            )
        self.write(visit.raw, held.served)
        visit.shared = None
        visit.mediator.wrote = True

    def read_only(self, did: str) -> str:
        """The message for a write that could reach nothing."""
        return (
            f"{self.path} {did}, but it is computed beside the model and no edit of it can reach the model. Edit the "
            f"values it is computed from, or work on a `.clone()`."
        )

    def checked(self, new: Any, raw: Any) -> torch.Tensor:
        """The assigned value, if it can replace what was served.

        Raises:
            TypeError: It is no tensor, or its dtype cannot hold real numbers where the value does.
            ValueError: Its shape differs: the rows belong to a step that other requests share.
        """
        if not isinstance(new, torch.Tensor):
            raise TypeError(
                f"{self.path} was assigned a {type(new).__name__}; assign a tensor of the value's shape, or write into "
                f"it: `value[:] = ...`."
            )
        expected = self.shape(raw)
        if tuple(new.shape) != expected:
            raise ValueError(
                f"{self.path} is {expected} on this request and cannot be replaced by a value of shape "
                f"{tuple(new.shape)}; write into the rows you mean instead (``value[:, positions] = ...``)"
            )
        if not new.is_floating_point():
            raise TypeError(
                f"{self.path} holds real numbers and was assigned a tensor of {new.dtype}. Convert it first: "
                f"`value.float()`."
            )
        return new


class DerivedView(View):
    """A read-only value that is computed from what is served at a location."""

    derived = True

    def __init__(self, value: Value, path: str, location: str, compute: Callable[[Any], torch.Tensor]) -> None:
        super().__init__(value, path, location)
        self.compute = compute

    def copy(self, raw: Any) -> tuple[torch.Tensor, torch.Tensor]:
        computed = self.compute(raw)
        base = private(computed.shape, computed)
        base.copy_(computed)
        return base, base


class SizeView(View):
    """``input_size``: no tensor, so nothing is copied or written."""

    def get(self) -> torch.Size:
        ids = element(self.at(StandardMediator.running(self.path)).raw, None, self.location)
        return torch.Size((1, ids.shape[-1]))


class MissingView(View):
    """A value that cannot be served; every access says why."""

    def __init__(self, value: Value, path: str, reason: str) -> None:
        super().__init__(value, path, "")
        self.reason = reason

    def get(self) -> Any:
        raise Unavailable(f"{self.path} is unavailable: {self.reason}")

    def set(self, new: Any) -> None:
        self.get()


def attention_views(value: Value, path: str, location: str, kernel: Callable[[], Kernel]) -> DerivedView:
    """The scores or the pattern, recomputed from the queries and keys that enter the attention layer."""

    def compute(raw: Any) -> torch.Tensor:
        rules = kernel()
        layout = heads_layout(rules.head_dim, heads_first=True)
        queries = layout.serve(element(raw, Arg(0, "query"), location))
        keys = layout.serve(element(raw, Arg(1, "key"), location))
        return (scores if value.name == "attention_scores" else probabilities)(queries, keys, rules)

    return DerivedView(value, path, location, compute)
