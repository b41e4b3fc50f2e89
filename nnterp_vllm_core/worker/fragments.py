"""Under tensor parallelism: values that one rank holds a part of, made whole for a block and cut again for the model.

nnsight keeps such rules for parallel linear layers. The attention layer between them holds one rank's heads on both
sides, and has none; it gets one here. Key and value heads are replicated when there are fewer of them than ranks, so
gathering keeps one copy of each and cutting gives every rank the copy it had.
"""

from __future__ import annotations

from typing import Any

import torch
from nnsight.modeling.vllm.fragments import VLLMFragments, _tp_world_size


class StandardFragments(VLLMFragments):
    """nnsight's rules and one for vLLM's attention layers.

    Attributes:
        heads: Location -> how often each argument's (or the result's) heads are repeated over the ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heads: dict[str, tuple[int, ...]] = {}

    def instrument(self, envoy: Any) -> None:
        """Record what this envoy's module splits over ranks; called once per module as the tree is built."""
        super().instrument(envoy)
        world = _tp_world_size()
        module = envoy._module
        if world < 2 or not _is_attention(module):
            return
        repeats = max(1, world // max(1, _kv_heads_total(module, world)))
        self.heads[f"{envoy.path}.input"] = (1, repeats, repeats)
        self.heads[f"{envoy.path}.output"] = (1,)
        self.enabled = True

    def fragmented(self, location: str) -> bool:
        """Whether one rank holds a part of what is at ``location``."""
        return location in self.heads or super().fragmented(location)

    def whole(self, location: str, value: Any) -> tuple[Any, Any]:
        """The whole value, and how to cut it back to this rank's part."""
        repeats = self.heads.get(location)
        if repeats is None:
            whole: tuple[Any, Any] = super().whole(location, value)
            return whole
        gathered = self._each(value, location, repeats, _gather)
        return gathered, lambda edited: self._each(edited, location, repeats, _cut)

    def split(self, location: str, whole: Any) -> Any:
        """This rank's part of a whole value."""
        repeats = self.heads.get(location)
        if repeats is None:
            return super().split(location, whole)
        return self._each(whole, location, repeats, _cut)

    def _each(self, value: Any, location: str, repeats: tuple[int, ...], change: Any) -> Any:
        if location.endswith(".output"):
            return change(value, repeats[0])
        args, kwargs = value
        heads = [
            change(one, repeats[index]) if index < len(repeats) and isinstance(one, torch.Tensor) else one
            for index, one in enumerate(args)
        ]
        names = dict(zip(("query", "key", "value"), repeats, strict=True))
        return tuple(heads), {
            name: change(one, names[name]) if name in names and isinstance(one, torch.Tensor) else one
            for name, one in kwargs.items()
        }


def _is_attention(module: Any) -> bool:
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    return isinstance(module, AttentionLayerBase) and hasattr(module, "num_kv_heads")


def _kv_heads_total(module: Any, world: int) -> int:
    """Key/value heads of the whole model. A layer knows its own rank's count, which is at least one."""
    from vllm.config import get_current_vllm_config

    return int(get_current_vllm_config().model_config.get_total_num_kv_heads())


def _gather(part: torch.Tensor, repeats: int) -> torch.Tensor:
    from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_gather

    whole: torch.Tensor = tensor_model_parallel_all_gather(part.contiguous())
    if repeats > 1:
        chunks = whole.chunk(get_tensor_model_parallel_world_size(), dim=-1)
        whole = torch.cat(chunks[::repeats], dim=-1)
    return whole


def _cut(whole: torch.Tensor, repeats: int) -> torch.Tensor:
    from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

    parts: tuple[torch.Tensor, ...] = whole.chunk(get_tensor_model_parallel_world_size() // repeats, dim=-1)
    mine: torch.Tensor = parts[get_tensor_model_parallel_rank() // repeats]
    return mine.contiguous()
