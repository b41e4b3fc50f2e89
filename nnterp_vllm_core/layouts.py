"""Between an engine's rows and the standard axes: which element of a served value, and how its rows are laid out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .family import Arg


def private(shape: torch.Size, like: torch.Tensor) -> torch.Tensor:
    """Memory of the block's own. Made outside inference mode, so that torch counts in-place edits of it."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=like.dtype, device=like.device)


def element(raw: Any, select: int | Arg | None, location: str) -> Any:
    """The element of a served value that ``select`` names."""
    if location.endswith(".input"):
        args, kwargs = raw
        if select is None:
            return args[0] if args else next(iter(kwargs.values()))
        assert isinstance(select, Arg)
        return args[select.index] if select.index < len(args) else kwargs[select.name]
    # transformers' blocks have come to return the bare tensor where they once returned a tuple that it was first in.
    return raw if select is None or (select == 0 and isinstance(raw, torch.Tensor)) else raw[select]


@dataclass(frozen=True)
class Layout:
    """A two-way map between an engine's rows and a standard layout.

    Attributes:
        serve: Rows -> standard layout, as a view.
        rows: A standard value and the live rows that it is for -> rows.
        axis: Where the rows are in the standard layout.
    """

    serve: Callable[[torch.Tensor], torch.Tensor]
    rows: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    axis: int = 1


def _batched(rows: torch.Tensor) -> torch.Tensor:
    return rows.unsqueeze(0) if rows.ndim == 2 else rows


#: ``[seq, hidden]`` (or ``[1, seq, hidden]`` already) <-> ``[1, seq, hidden]``.
STREAM = Layout(serve=_batched, rows=lambda new, live: new.reshape(live.shape))


def heads_layout(head_dim: int, *, heads_first: bool) -> Layout:
    """``[seq, heads * head_dim]`` <-> ``[1, heads, seq, head_dim]``, or ``[1, seq, heads, head_dim]``."""

    def serve(rows: torch.Tensor) -> torch.Tensor:
        seq = rows.shape[-2] if rows.ndim == 2 or rows.shape[-1] != head_dim else rows.shape[-3]
        split = rows.reshape(seq, -1, head_dim)
        return (split.transpose(0, 1) if heads_first else split).unsqueeze(0)

    def back(new: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        rows = new.squeeze(0)
        return (rows.transpose(0, 1) if heads_first else rows).reshape(live.shape)

    return Layout(serve=serve, rows=back, axis=2 if heads_first else 1)
