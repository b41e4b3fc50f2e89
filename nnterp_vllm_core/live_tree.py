"""The views of `StandardizedTransformer`'s tree: where each standard value is in transformers' own modules."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from . import interior
from .envoys import SLOT
from .family import FusedStream, Implementation, Missing
from .layouts import element
from .live import ComputedView, LiveView
from .places import child_of, located
from .plan import ROOT, Plan
from .protocol import INTERIOR, VALUES
from .views import MissingView, View


def bind(model: Any, plan: Plan, no_interior: str | None) -> None:
    """Put a live view of every standard value on the envoys of ``model``'s tree."""
    implementation = plan.implementation
    model.__dict__[SLOT] = _model_views(model, implementation)
    for block in model.get(implementation.names["layers"]):
        block.__dict__[SLOT] = _block_views(block, implementation)
        attention = child_of(block, implementation.block_names["self_attn"])
        if attention is not None:
            attention.__dict__[SLOT] = _attention_views(block, attention, implementation, no_interior)
        mlp = child_of(block, implementation.block_names.get("mlp"))
        if mlp is not None:
            mlp.__dict__[SLOT] = {"mlp_output": _contribution("mlp_output", block, mlp, implementation)}


def _model_views(model: Any, implementation: Implementation) -> dict[str, View]:
    embed = f"{ROOT}.{implementation.names['embed_tokens']}"
    ids = f"{embed}.input"
    output = f"{ROOT}.output"
    embeddings = _declared("token_embeddings", model, f"{ROOT}.token_embeddings", implementation)
    if embeddings is None:
        embeddings = LiveView(VALUES["token_embeddings"], f"{ROOT}.token_embeddings", f"{embed}.output")
    views: list[View] = [
        ComputedView(VALUES["input_ids"], f"{ROOT}.input_ids", ids, partial(element, select=None, location=ids)),
        ComputedView(VALUES["input_size"], f"{ROOT}.input_size", ids, partial(_size, ids)),
        ComputedView(VALUES["attention_mask"], f"{ROOT}.attention_mask", f"{ROOT}.input", _mask),
        embeddings,
        LiveView(VALUES["logits"], f"{ROOT}.logits", output, "logits"),
        ComputedView(VALUES["next_token_probs"], f"{ROOT}.next_token_probs", output, _next_token_probs),
    ]
    return {view.value.name: view for view in views}


def _size(location: str, raw: Any) -> torch.Size:
    ids: torch.Tensor = element(raw, None, location)
    return ids.shape


def _mask(raw: Any) -> Any:
    return raw[1]["attention_mask"]


def _next_token_probs(raw: Any) -> torch.Tensor:
    probabilities: torch.Tensor = raw["logits"][:, -1].softmax(-1)
    return probabilities


def _block_views(block: Any, implementation: Implementation) -> dict[str, View]:
    stream = implementation.stream
    assert not isinstance(stream, FusedStream)
    return {
        "layer_input": LiveView(VALUES["layer_input"], f"{block.path}.layer_input", f"{block.path}.input", stream.enters),
        "layer_output": LiveView(
            VALUES["layer_output"], f"{block.path}.layer_output", f"{block.path}.output", stream.leaves
        ),
    }


def _declared(name: str, block: Any, path: str, implementation: Implementation) -> View | None:
    """The view of a value whose place the family names; ``None`` where it names none."""
    declared = implementation.place(name)
    if declared is None:
        return None
    if isinstance(declared, Missing):
        return MissingView(VALUES[name], path, declared.reason)
    found = located(name, declared, block, implementation)
    return LiveView(VALUES[name], path, found.location, found.select, found.times, found.plus)


def _contribution(name: str, block: Any, owner: Any, implementation: Implementation) -> View:
    view = _declared(name, block, f"{owner.path}.{name}", implementation)
    assert view is not None  # both contributions have a default place
    return view


def _attention_views(block: Any, attention: Any, implementation: Implementation, no_interior: str | None) -> dict[str, View]:
    views = {"attention_output": _contribution("attention_output", block, attention, implementation)}
    for name in INTERIOR:
        path = f"{attention.path}.{name}"
        declared = _declared(name, block, path, implementation)
        if declared is not None:
            views[name] = declared
        elif no_interior is not None:
            views[name] = MissingView(VALUES[name], path, no_interior)
        else:
            point = f"{attention.path}.{interior.CHILD}.{interior.POINTS[name]}.output"
            views[name] = LiveView(VALUES[name], path, point)
    return views
