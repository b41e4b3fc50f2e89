"""Taps in standard names: which native locations a CUDA-graph engine records its hand-offs at.

vLLM replays a recorded graph for most steps, and a replayed graph runs no Python. nnsight's taps are hand-offs recorded
into the graph at chosen locations; a block can read and edit there, and nowhere else. A family knows the location of every
standard value, so its user names values, groups of values, or patterns of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from nnsight.intervention.envoy import Envoy

from .envoys import SLOT
from .errors import UnsupportedEngine
from .places import child_of
from .plan import ROOT, Plan
from .protocol import INTERIOR, VALUES
from .tree import bind
from .views import MissingView

#: Group -> the values it stands for.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "boundary": ("input_ids", "token_embeddings", "layer_input", "layer_output"),
    "contributions": ("attention_output", "mlp_output"),
    "attention": INTERIOR,
    "standard": tuple(VALUES),
}


def resolve(taps: Iterable[str], module: Any, plan: Plan) -> tuple[list[str], list[str]]:
    """``(locations, native)``: the locations of the standard taps, and the taps that are none, for nnsight to resolve.

    Args:
        taps: Group names, standard paths with ``*`` for an index (``"layers.*.layer_output"``), or nnsight's own
            (``"model.layers.*.output"``).
        module: The loaded (weightless) model.
        plan: The family applied to it.

    Raises:
        UnsupportedEngine: A tap looks like a standard one and names no value that this model serves.
    """
    places = _places(module, plan)
    locations: dict[str, None] = {}
    native: list[str] = []
    for tap in taps:
        patterns = [VALUES[name].path for name in GROUPS[tap]] if tap in GROUPS else [tap]
        found = [place for path, place in places.items() if any(fnmatchcase(path, pattern) for pattern in patterns)]
        if not found:
            if tap.rpartition(".")[2] in ("input", "output"):
                native.append(tap)
                continue
            near = difflib.get_close_matches(tap, [*GROUPS, *(value.path for value in VALUES.values())], n=1)
            raise UnsupportedEngine(
                f"taps: {tap!r} names no value that can be tapped on this model. Groups: {', '.join(GROUPS)}; values as "
                f"in model.support()" + (f". Did you mean {near[0]!r}?" if near else ".")
            )
        locations.update(dict.fromkeys(place for place in found if place.endswith((".input", ".output"))))
    return list(locations), native


def _places(module: Any, plan: Plan) -> dict[str, str]:
    """Standard path with the layer's index -> native location, for every value that is served.

    The tree that nnsight will build does not stand yet when taps are resolved; this one is dropped again.
    """
    model = Envoy(module, path=ROOT)
    bind(model, plan)
    places = {name: view.location for name, view in model.__dict__[SLOT].items() if not isinstance(view, MissingView)}
    names = plan.implementation.block_names
    for index, block in enumerate(model.get(plan.implementation.names["layers"])):
        hosts = {"": block, ".self_attn": child_of(block, names["self_attn"]), ".mlp": child_of(block, names.get("mlp"))}
        for suffix, host in hosts.items():
            for name, view in ({} if host is None else host.__dict__[SLOT]).items():
                if not isinstance(view, MissingView):
                    places[f"layers.{index}{suffix}.{name}"] = view.location
    return places
