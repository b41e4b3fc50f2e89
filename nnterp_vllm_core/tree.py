"""The standardized tree over a loaded vLLM model: which declaration applies, its names, its envoys and its views.

Driver and worker build the same tree from the same family, the driver over weightless modules and the worker over the
real ones, so a block written in one finds the same paths in the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from nnsight.modeling.vllm.envoys import ParallelEnvoy

from .attention import Kernel, kernel_of
from .envoys import SLOT, AttentionEnvoy, BlockEnvoy, MlpEnvoy
from .errors import UnsupportedEngine
from .family import Arg, Family, FusedStream, Implementation, Missing, Place
from .layouts import STREAM, Layout, element, heads_layout
from .places import child_of, envoy_at, first_block, located, module_at
from .protocol import INTERIOR, VALUES
from .row_views import PairView, TensorView
from .views import DerivedView, MissingView, SizeView, View, attention_views

#: nnsight names the root of every tree so, in the driver and in the worker.
ROOT = "model"

#: The envoy class at each of a block's two parts, by standard name.
ENVOYS: dict[str, type] = {"self_attn": AttentionEnvoy, "mlp": MlpEnvoy}

_NO_PADDING = "a request is one unpadded sequence on vLLM; StandardizedTransformer has masks"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A family applied to one loaded model.

    Attributes:
        family: The family.
        implementation: The declaration whose block class was found in the model.
    """

    family: Family
    implementation: Implementation

    @property
    def rename(self) -> dict[str, str]:
        """nnsight's ``rename``: native path -> standard name, for every name that differs."""
        aliases: dict[str, str] = {}
        for standard, native in (*self.implementation.names.items(), *self.implementation.block_names.items()):
            if standard != native:
                aliases[native] = standard
        return aliases

    @property
    def envoys(self) -> dict[str, type]:
        """nnsight's ``envoys``: full native path -> the envoy class that carries the values there."""
        layers = f"{ROOT}.{self.implementation.names['layers']}.*"
        classes: dict[str, type] = {layers: BlockEnvoy}
        for standard, envoy in ENVOYS.items():
            if standard in self.implementation.block_names:
                classes[f"{layers}.{self.implementation.block_names[standard]}"] = envoy
        return classes


def with_names(own: Mapping[Any, Any], users: Mapping[Any, Any]) -> dict[Any, Any]:
    """nnsight's ``rename`` map of a family's names and the user's. A path that both name has both names.

    Steering, skipping and collecting go by the standard names, so a user's must not take their place.
    """
    merged = dict(own)
    for place, names in users.items():
        lists = [[one] if isinstance(one, str) else list(one) for one in (own.get(place, []), names)]
        merged[place] = names if place not in own else list(dict.fromkeys(lists[0] + lists[1]))
    return merged


def plan_for(family: Family, module: Any) -> Plan:
    """Choose the declaration that fits a loaded model, by the class of its blocks.

    Raises:
        UnsupportedEngine: No declaration of the family names these blocks.
    """
    seen: list[str] = []
    for implementation in family.native:
        block = first_block(module, implementation)
        if block is None:
            continue
        # Both code bases often use one class name; the block's own module tells whose it is.
        if type(block).__name__ in implementation.blocks and type(block).__module__.startswith("vllm."):
            return Plan(family=family, implementation=implementation)
        seen.append(f"{type(block).__module__}.{type(block).__name__}")
    if family.transformers is not None and (on_backend := _on_backend(family.transformers, module)) is not None:
        return Plan(family=family, implementation=on_backend)
    declared = ", ".join(name for implementation in family.native for name in implementation.blocks) or "none"
    raise UnsupportedEngine(
        f"Family {family.__name__} declares the vLLM blocks {declared}, but this vLLM built {type(module).__name__} with "
        f"blocks {seen[0] if seen else 'under another path'}. Update the family's distribution, or install a vLLM in "
        f"its validated range {family.validated!r}."
    )


def _on_backend(declared: Implementation, module: Any) -> Implementation | None:
    """transformers' declaration as vLLM's Transformers backend runs it, if that is what was loaded.

    The backend keeps the base model under ``model`` whatever transformers calls it, and the head beside it.
    """
    names = {
        standard: "lm_head" if standard == "lm_head" else f"model.{native.partition('.')[2]}"
        for standard, native in declared.names.items()
    }
    implementation = replace(declared, names=names, attention=f"{declared.block_names['self_attn']}.attn")
    block = first_block(module, implementation)
    if block is None or type(block).__name__ not in declared.blocks:
        return None
    _mount_attention(module, implementation)
    if left_out := _left_out(module, implementation):
        reason = (
            f"vLLM's Transformers backend leaves out {left_out} of this model's config, so its logits, and the tokens "
            f"drawn from them, are not the model's. Load it without model_impl='transformers', or on StandardizedTransformer"
        )
        missing = dict.fromkeys(("logits", "next_token_probs"), Missing(reason))
        implementation = replace(implementation, values={**implementation.values, **missing})
    return implementation


def _left_out(module: Any, implementation: Implementation) -> str:
    """The config's keys of what transformers does to the head's output and this engine does not."""
    config, processor = getattr(module, "text_config", None), getattr(module, "logits_processor", None)
    found: list[str] = []
    if config is None or processor is None:
        return ""
    for operation, key in implementation.head:
        asked = getattr(config, key, None)
        if asked is None:
            continue
        wanted, done = (asked, processor.soft_cap) if operation == "softcap" else (asked, processor.scale)
        if operation == "divided":
            wanted = 1.0 / asked
        if done is None or not math.isclose(wanted, done, rel_tol=1e-6):
            found.append(key)
    return " and ".join(found)


def before_head(module: Any, implementation: Implementation, rows: Any) -> Any:
    """``[rows, hidden]`` of the last block's stream through the last norm and whatever else comes before the head."""
    for name in implementation.before_head:
        part = module_at(module, implementation.names.get(name, name))
        if part is not None:
            rows = part(rows)
            # Some of vLLM's norms return (rows, residual), some projections (rows, bias).
            rows = rows[0] if isinstance(rows, tuple) else rows
    return rows


def _mount_attention(module: Any, implementation: Implementation) -> None:
    """Put the engine's attention layers in the tree, where an older backend keeps them in a table beside it."""
    instances = getattr(module, "attention_instances", None)
    if not instances:
        return
    blocks = module.get_submodule(implementation.names["layers"])
    for index, layer in instances.items():
        owner = getattr(blocks[index], implementation.block_names["self_attn"], None)
        if owner is not None and not hasattr(owner, "attn"):
            owner.add_module("attn", layer)


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

    views = [
        view("input_ids", DerivedView, f"{embed}.input", compute=partial(_ids, f"{embed}.input")),
        view("input_size", SizeView, f"{embed}.input"),
        MissingView(VALUES["attention_mask"], f"{ROOT}.attention_mask", _NO_PADDING),
    ]
    served = [
        view("logits", TensorView, logits, layout=Layout(serve=_as_positions, rows=STREAM.rows)),
        view("next_token_probs", DerivedView, logits, compute=_softmax),
    ]
    for one in served:
        place = implementation.place(one.value.name)
        views.append(MissingView(one.value, one.path, place.reason) if isinstance(place, Missing) else one)
    declared = implementation.place("token_embeddings")
    if declared is not None:
        views.append(_placed("token_embeddings", declared, model, f"{ROOT}.token_embeddings", implementation))
    else:
        views.append(view("token_embeddings", TensorView, f"{embed}.output"))
    return {one.value.name: one for one in views}


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
