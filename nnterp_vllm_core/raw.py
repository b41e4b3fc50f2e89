"""What a module takes and returns as it stands, in the standard layout: for a vocabulary that names modules, not values.

A module's forward may take positions before the stream and may return a tuple; the value is the first floating-point
argument, or the first element. It is read and written like any standard value.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch

from .envoys import SLOT
from .family import Arg
from .layouts import element
from .live import LiveView
from .protocol import Value
from .row_views import TensorView
from .views import View


def selected(raw: Any, location: str) -> int | Arg | None:
    """Which element of what is served at ``location`` is the module's value."""
    if location.endswith(".output"):
        return 0 if isinstance(raw, tuple) else None
    args, kwargs = raw
    for index, argument in enumerate(args):
        if _real(argument):
            return Arg(index, "")
    return next((Arg(sys.maxsize, name) for name, argument in kwargs.items() if _real(argument)), None)


def _real(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) and thing.is_floating_point()


def _tap(location: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", location.removeprefix("model."))


class RawRowsView(TensorView):
    """A module's value on the vLLM engine."""

    def live(self, raw: Any) -> torch.Tensor:
        """This request's live rows."""
        rows: torch.Tensor = element(raw, selected(raw, self.location), self.location)
        return rows

    @property
    def tap(self) -> str:
        """The module's own location, for any layer."""
        return _tap(self.location)


class RawLiveView(LiveView):
    """A module's value on transformers."""

    def part(self, raw: Any) -> torch.Tensor:
        """The live tensor."""
        self.select = selected(raw, self.location)  # where `put` exchanges it, too
        return super().part(raw)


def raw_view(envoy: Any, side: str, kind: type[RawRowsView] | type[RawLiveView]) -> View:
    """The view of ``envoy``'s ``input`` or ``output``, made once per envoy."""
    views: dict[str, View] = envoy.__dict__.setdefault(SLOT, {})
    name = f"raw {side}"
    if name not in views:
        value = Value(name=side, host="layer", axes=("batch", "seq", "hidden"), meaning=f"The module's {side} as it stands.")
        location = f"{envoy.path}.{side}"
        views[name] = kind(value, location, location)
    return views[name]
