"""Views of values that are rows of the engine's step: one live tensor's, or the sum of a hidden state and a residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .errors import Unavailable
from .family import Arg
from .layouts import STREAM, Layout, element, private
from .protocol import Value
from .views import View
from .visit import Visit


class RowsView(View):
    """A value whose rows are a request's rows of the step, so that one copy of the step can serve every request."""

    layout: Layout = STREAM

    def rows_of(self, raw: Any) -> torch.Tensor:
        """A private copy of the value's rows: of one request or of the whole step, as ``raw`` is."""
        raise NotImplementedError

    def copy(self, raw: Any) -> tuple[torch.Tensor, torch.Tensor]:
        base = self.rows_of(raw)
        return self.layout.serve(base), base

    def read(self, visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
        shared = visit.shared
        if shared is None or visit.group is None or not shared.worthwhile:
            return self.copy(visit.raw)
        if self not in shared:
            rows = self.rows_of(visit.value)
            by_rows = visit.batcher._token_dim(rows) is not None
            shared[self] = shared.pieces(self.layout.serve(rows), self.layout.axis) if by_rows else {}
        mine = shared[self].get(visit.group[0])
        return self.copy(visit.raw) if mine is None else (mine, mine)


class TensorView(RowsView):
    """A value that one live tensor holds."""

    def __init__(
        self,
        value: Value,
        path: str,
        location: str,
        select: int | Arg | None = None,
        layout: Layout = STREAM,
        times: Callable[[], Any] | None = None,
        plus: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(value, path, location)
        self.select = select
        self.layout = layout
        self.times = times
        self.plus = plus

    def live(self, raw: Any) -> torch.Tensor:
        """This request's live rows."""
        rows = element(raw, self.select, self.location)
        if not isinstance(rows, torch.Tensor):
            raise Unavailable(
                f"{self.path}: the model passes {type(rows).__name__} instead of a tensor at {self.location!r} in this "
                f"layer, so there is nothing to serve."
            )
        return rows

    def rows_of(self, raw: Any) -> torch.Tensor:
        live = self.live(raw)
        base = private(live.shape, live)
        if self.times is None:
            base.copy_(live)
        else:
            torch.mul(live, self.times(), out=base)
        if self.plus is not None and (plus := self.plus()) is not None:
            torch.add(base, plus, out=base)
        return base

    def write(self, raw: Any, new: torch.Tensor) -> None:
        live = self.live(raw)
        rows = self.layout.rows(new, live)
        if self.plus is not None and (plus := self.plus()) is not None:
            rows = rows - plus
        live.copy_(rows if self.times is None else rows / self.times())

    def shape(self, raw: Any) -> tuple[int, ...]:
        return tuple(self.layout.serve(self.live(raw)).shape)


class PairView(RowsView):
    """A residual stream that is the sum of two live tensors; the second may be absent (the first block's input)."""

    def __init__(self, value: Value, path: str, location: str, hidden: int | Arg | None, residual: int | Arg | None) -> None:
        super().__init__(value, path, location)
        self.hidden = hidden
        self.residual = residual

    def pair(self, raw: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The two live tensors."""
        return element(raw, self.hidden, self.location), element(raw, self.residual, self.location)

    def rows_of(self, raw: Any) -> torch.Tensor:
        hidden, residual = self.pair(raw)
        base = private(hidden.shape, hidden)
        if residual is None:
            base.copy_(hidden)
        else:
            torch.add(hidden, residual, out=base)
        return base

    def write(self, raw: Any, new: torch.Tensor) -> None:
        hidden, residual = self.pair(raw)
        hidden.copy_(STREAM.rows(new, hidden))
        if residual is not None:
            residual.zero_()  # what was written plus zero is what the next block computes

    def shape(self, raw: Any) -> tuple[int, ...]:
        return tuple(STREAM.serve(self.pair(raw)[0]).shape)
