"""The standardized tree over a loaded vLLM model: a view of every standard value on the envoy that carries it.

Driver and worker build the same tree from the same family, the driver over weightless modules and the worker over the
real ones, so a block written in one finds the same paths in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from nnsight.modeling.vllm.envoys import ParallelEnvoy

from .attention import Kernel, kernel_of
from .declared import NO_PADDING
from .envoys import SLOT
from .family import Arg, FusedStream, Implementation, Missing, Place
from .layouts import STREAM, Layout, element, heads_layout
from .places import child_of, envoy_at, located, module_at
from .plan import ENVOYS, ROOT, Plan
from .protocol import INTERIOR, VALUES
from .row_views import PairView, TensorView
from .views import DerivedView, MissingView, SizeView, View, attention_views


def before_head(module: Any, implementation: Implementation, rows: Any) -> Any:
    """``[rows, hidden]`` of the last block's stream through the last norm and whatever else comes before the head."""
    for name in implementation.before_head:
        part = module_at(module, implementation.names.get(name, name))
        if part is not None:
            rows = part(rows)
            # Some of vLLM's norms return (rows, residual), some projections (rows, bias).
            rows = rows[0] if isinstance(rows, tuple) else rows
    return rows


def bind(model: Any, plan: Plan) -> None:
    """Put a view of every standard value on the envoys of ``model``'s tree."""
    implementation = plan.implementation
    model.__dict__[SLOT] = _model_views(model, implementation)
    for block in model.get(implementation.names["layers"]):
        block.__dict__[SLOT] = _block_views(block, implementation)
        for standard, views in (("self_attn", _attention_views), ("mlp", _mlp_views)):
            child = child_of(block, implementation.block_names.get(standard))
            if child is not None:
                if type(child) is ParallelEnvoy:
                    # nnsight looks a class up by module class first, so a contribution that one parallel layer makes
                    # (OPT's fc2) has an envoy for layers split over ranks only; it becomes both.
                    child.__class__ = _both(ENVOYS[standard])
                child.__dict__[SLOT] = views(block, child, implementation)


@cache
def _both(envoy: type) -> type:
    return type(envoy.__name__, (envoy, ParallelEnvoy), {})


def _model_views(model: Any, implementation: Implementation) -> dict[str, View]:
    embed = f"{ROOT}.{implementation.names['embed_tokens']}"
    logits = f"{ROOT}.logits"

    def view(name: str, kind: Callable[..., View], location: str, **options: Any) -> View:
        return kind(VALUES[name], f"{ROOT}.{name}", location, **options)

    views: list[View] = [
        view("input_ids", DerivedView, f"{embed}.input", compute=partial(_ids, f"{embed}.input")),
        view("input_size", SizeView, f"{embed}.input"),
        MissingView(VALUES["attention_mask"], f"{ROOT}.attention_mask", NO_PADDING),
        view("logits", TensorView, logits, layout=Layout(serve=_as_positions, rows=STREAM.rows)),
        view("next_token_probs", DerivedView, logits, compute=_softmax),
    ]
    declared = implementation.place("token_embeddings")
    if declared is not None:
        views.append(_placed("token_embeddings", declared, model, f"{ROOT}.token_embeddings", implementation))
    else:
        views.append(view("token_embeddings", TensorView, f"{embed}.output"))
    return {one.value.name: _unless_missing(one, implementation) for one in views}


def _unless_missing(view: View, implementation: Implementation) -> View:
    """The view, or one that says why the family has no such value here."""
    place = implementation.place(view.value.name)
    return MissingView(view.value, view.path, place.reason) if isinstance(place, Missing) else view


def _ids(location: str, raw: Any) -> Any:
    ids = element(raw, None, location)
    return ids if ids.ndim == 2 else ids.unsqueeze(0)


def _as_positions(rows: Any) -> Any:
    return rows.unsqueeze(0)


def _softmax(raw: Any) -> Any:
    return raw.softmax(-1)


def _block_views(block: Any, implementation: Implementation) -> dict[str, View]:
    stream = implementation.stream
    views: dict[str, View] = {}
    for name, side in (("layer_input", "input"), ("layer_output", "output")):
        value, path, location = VALUES[name], f"{block.path}.{name}", f"{block.path}.{side}"
        if isinstance(stream, FusedStream):
            hidden, residual = (stream.hidden, stream.residual) if side == "input" else (0, 1)
            views[name] = PairView(value, path, location, hidden, residual)
        else:
            select = stream.enters if side == "input" else stream.leaves
            views[name] = TensorView(value, path, location, select)
    return views


def _mlp_views(block: Any, mlp: Any, implementation: Implementation) -> dict[str, View]:
    return {"mlp_output": _contribution("mlp_output", block, mlp, implementation)}


def _attention_views(block: Any, attention: Any, implementation: Implementation) -> dict[str, View]:
    views = {"attention_output": _contribution("attention_output", block, attention, implementation)}
    layer = envoy_at(block, implementation, implementation.attention)
    for name in INTERIOR:
        path = f"{attention.path}.{name}"
        declared = implementation.place(name)
        if isinstance(declared, Missing):
            views[name] = MissingView(VALUES[name], path, declared.reason)
        elif layer is None:
            reason = f"this block has no attention layer at {implementation.attention!r}"
            views[name] = MissingView(VALUES[name], path, reason)
        elif declared is not None:
            views[name] = _placed(name, declared, block, path, implementation, _heads(name, layer._module))
        else:
            views[name] = _interior(name, path, layer)
    return views


def _interior(name: str, path: str, layer: Any) -> View:
    value = VALUES[name]
    if name in ("attention_scores", "attention_probabilities"):
        return attention_views(value, path, f"{layer.path}.input", partial(_kernel, layer))
    layout = _heads(name, layer._module)
    if name == "attention_head_outputs":
        return TensorView(value, path, f"{layer.path}.output", layout=layout)
    return TensorView(value, path, f"{layer.path}.input", _ARGUMENTS[name], layout)


_ARGUMENTS = {
    "attention_queries": Arg(0, "query"),
    "attention_keys": Arg(1, "key"),
    "attention_values": Arg(2, "value"),
}


def _heads(name: str, module: Any) -> Layout:
    """The layout of one interior value of one of vLLM's attention layers."""
    wide = name in ("attention_values", "attention_head_outputs")
    width = getattr(module, "head_size_v", module.head_size) if wide else module.head_size
    return heads_layout(width, heads_first=name != "attention_head_outputs")


def _kernel(layer: Any) -> Kernel:
    return kernel_of(layer._module)


def _contribution(name: str, block: Any, owner: Any, implementation: Implementation) -> View:
    declared = implementation.place(name)
    assert declared is not None
    return _placed(name, declared, block, f"{owner.path}.{name}", implementation)


def _placed(
    name: str, declared: Place, block: Any, path: str, implementation: Implementation, layout: Layout = STREAM
) -> View:
    value = VALUES[name]
    if isinstance(declared, Missing):
        return MissingView(value, path, declared.reason)
    found = located(name, declared, block, implementation)
    return TensorView(value, path, found.location, found.select, layout, found.times, found.plus)
