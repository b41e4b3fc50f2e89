"""Whether loading our engine left anything of ours in other people's classes."""

from __future__ import annotations

import sys
from typing import Any

#: Where a patch would reach everybody: modules and classes that every model and every engine of a process share.
_SHARED = (
    "torch.nn.functional",
    "torch.nn.Module",
    "torch.nn.Linear",
    "torch.Tensor",
    "transformers.PreTrainedModel",
    "transformers.GenerationMixin",
    "transformers.modeling_utils",
    "transformers.masking_utils",
    "vllm.LLM",
    "vllm.v1.engine.llm_engine.LLMEngine",
    "vllm.v1.engine.core.EngineCore",
    "vllm.v1.worker.worker_base.WorkerBase",
    "vllm.v1.worker.cpu_worker.CPUWorker",
    "vllm.v1.worker.cpu_model_runner.CPUModelRunner",
    "vllm.v1.worker.gpu_worker.Worker",
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
    "vllm.model_executor.layers.attention.attention.Attention",
    "vllm.model_executor.layers.logits_processor.LogitsProcessor",
    "vllm.model_executor.layers.vocab_parallel_embedding.VocabParallelEmbedding",
)


def snapshot() -> dict[str, Any]:
    """Every attribute of the shared modules and classes that are imported: ``"torch.Tensor.add"`` to its object."""
    found: dict[str, Any] = {}
    for path in _SHARED:
        owner = _imported(path)
        if owner is not None:
            found.update({f"{path}.{name}": value for name, value in list(vars(owner).items())})
    return found


def ours(before: dict[str, Any], after: dict[str, Any], *classes: type) -> list[str]:
    """Attributes that were replaced or added between two snapshots, or stand in ``classes``, and are defined by us."""
    core = __package__.partition(".")[0]
    changed = [(name, value) for name, value in after.items() if before.get(name, value) is not value or name not in before]
    changed += [(f"{owner.__qualname__}.{name}", value) for owner in classes for name, value in vars(owner).items()]
    return sorted(name for name, value in changed if _module(value).partition(".")[0] == core)


def _module(value: Any) -> str:
    """The module whose code an attribute runs, seen through wrappers and bound methods."""
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    if code is not None:
        return next(
            (name for name, one in list(sys.modules.items()) if getattr(one, "__file__", "") == code.co_filename), ""
        )
    return str(getattr(value, "__module__", None) or "")


def _imported(path: str) -> Any:
    """A module or a class, if its module is imported."""
    if path in sys.modules:
        return sys.modules[path]
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)
