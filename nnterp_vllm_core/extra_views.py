"""The views of values that plugins add, put on a tree that carries the standard ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from .contributions import function_of
from .envoys import SLOT, StandardValue
from .errors import BrokenPlugin, DeclarationError
from .extra import Extra
from .layouts import element
from .live import ComputedView, LiveView
from .places import child_of, located
from .protocol import VALUES
from .views import DerivedView, MissingView, View


def add_extras(model: Any, implementation: Any, extras: Sequence[Extra]) -> tuple[Extra, ...]:
    """Let ``model``'s envoys carry ``extras``; call it once the standard views are bound. Returns them.

    Raises:
        BrokenPlugin: A value's name is taken on its envoy, or its function cannot be imported.
    """
    for extra in extras:
        function = None if extra.compute is None else function_of(extra)
        if extra.host == "model":
            _put(model, extra, _view(extra, function, model, model, None, implementation))
            continue
        for index, block in enumerate(model.get(implementation.names["layers"])):
            host = _envoy(block, extra.host, implementation)
            if host is not None:
                _put(host, extra, _view(extra, function, host, block, index, implementation))
    return tuple(extras)


def _envoy(block: Any, host: str, implementation: Any) -> Any:
    if host == "layer":
        return block
    return child_of(block, implementation.block_names.get("self_attn" if host == "attention" else "mlp"))


def _view(extra: Extra, function: Any, host: Any, block: Any, layer: int | None, implementation: Any) -> View:
    path = f"{host.path}.{extra.name}"
    if extra.layers is not None and layer not in extra.layers:
        return MissingView(extra.value, path, f"its plugin has it for the layers {list(extra.layers)} alone")
    if extra.at is not None:
        try:
            found = located(extra.name, extra.at, block, implementation)
        except DeclarationError as error:  # a plugin meets families that its author never saw
            return MissingView(extra.value, path, f"this model has no such place: {error}")
        kind = ComputedView if _runs_here(block) else DerivedView
        return kind(extra.value, path, found.location, partial(_read, found))
    source = VALUES[str(extra.of)]
    owner = block if source.host in ("model", "layer") else _envoy(block, source.host, implementation)
    view = None if owner is None else owner.__dict__[SLOT].get(source.name)
    if view is None or isinstance(view, MissingView):
        reason = "this block has no such part" if view is None else view.reason
        return MissingView(extra.value, path, f"it is computed from {source.name}, which is unavailable: {reason}")
    if isinstance(view, LiveView | ComputedView):
        return ThroughView(extra, path, view, partial(function, layer=layer))
    return DerivedView(extra.value, path, view.location, partial(_computed, view, function, layer))


class ThroughView(View):
    """A value computed from another view's value in a forward that runs here, so that gradients flow through it."""

    derived = True

    def __init__(self, extra: Extra, path: str, source: View, compute: Any) -> None:
        super().__init__(extra.value, path, source.location)
        self.source = source
        self.compute = compute
        self.prefill_only = False

    def get(self) -> Any:
        return self.compute(self.source.get())


def _runs_here(envoy: Any) -> bool:
    """Whether the forward runs in this process's autograd, on transformers."""
    return any(isinstance(view, LiveView) for view in envoy.__dict__[SLOT].values())


def _read(found: Any, raw: Any) -> Any:
    rows = element(raw, found.select, found.location).clone()
    if found.times is not None:
        rows = rows * found.times()
    plus = None if found.plus is None else found.plus()
    if plus is not None:
        rows = rows + plus
    return rows.unsqueeze(0) if rows.ndim == 2 else rows


def _computed(view: View, function: Any, layer: int | None, raw: Any) -> Any:
    served, _ = view.copy(raw)
    return function(served, layer=layer)


def _put(envoy: Any, extra: Extra, view: View) -> None:
    owner: type = type(envoy)
    if hasattr(owner, extra.name) or extra.name in envoy._child_map:
        raise BrokenPlugin(
            f"The value {extra.name!r} cannot stand on {envoy.path}: {owner.__name__} has something of that name already. "
            f"Rename it in its plugin."
        )
    envoy.__class__ = _carrying(owner, extra)
    envoy.__dict__[SLOT][extra.name] = view


@cache
def _carrying(owner: type, extra: Extra) -> type:
    """``owner`` with one attribute more, where it finds attributes first; one class for all layers."""
    name = f"{owner.__name__}Carrying{extra.name.title().replace('_', '')}"
    return type(name, (owner,), {extra.name: StandardValue(extra.value)})
