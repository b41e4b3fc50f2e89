"""Which declaration of a family a loaded vLLM model follows, and the names and envoy classes that come of it.

Driver and worker decide this alike, the driver over weightless modules and the worker over the real ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .envoys import AttentionEnvoy, BlockEnvoy, MlpEnvoy
from .errors import UnsupportedEngine
from .family import Family, Implementation, Missing
from .places import first_block

#: nnsight names the root of every tree so, in the driver and in the worker.
ROOT = "model"

#: The envoy class at each of a block's two parts, by standard name.
ENVOYS: dict[str, type] = {"self_attn": AttentionEnvoy, "mlp": MlpEnvoy}


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
    def without_logits(self) -> str:
        """Why this engine's logits are not the model's; empty where they are."""
        place = self.implementation.place("logits")
        return place.reason if isinstance(place, Missing) else ""

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
