"""Engines in this process, one at a time: four seconds a model instead of twenty for a spawned worker."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: What every engine of the suite is built with. Short sequences keep the cache of a tiny model small.
OPTIONS: Mapping[str, Any] = {
    "dispatch": True,
    "dtype": "float32",
    "max_model_len": 128,
    "distributed_executor_backend": "uni",
    "num_gpu_blocks_override": 64,  # filling a gigabyte of cache takes half a second
}

#: What vLLM reads from the environment while an engine is built; what the user has set wins, except for the first.
_FORCED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_DEFAULTS = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


@contextmanager
def environment() -> Iterator[None]:
    """The variables for an engine in this process, taken back afterwards."""
    before = {name: os.environ.get(name) for name in (*_FORCED, *_DEFAULTS)}
    os.environ.update(_FORCED)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep vLLM from collecting garbage a dozen times a model.

    Each time walks everything that torch, transformers and vLLM keep alive, half a second; the rest of a tiny model's load
    takes less than two. `stop` collects once.
    """
    real = gc.collect

    def skipped(generation: int = 2) -> int:
        return 0

    gc.collect = skipped
    try:
        yield
    finally:
        gc.collect = real


def share_of_a_card() -> dict[str, Any]:
    """Engine options under which a tiny model takes little of a CUDA device and several engines share it; none on the CPU.

    The cache has a fixed size: vLLM would measure what is free, and refuses to when another process frees some meanwhile.
    """
    import torch

    return {"gpu_memory_utilization": 0.03, "kv_cache_memory_bytes": 256 << 20} if torch.cuda.is_available() else {}


def start(checkpoint: Path, **options: Any) -> Any:
    """A dispatched `StandardizedVLLM` whose engine runs in this process."""
    with environment(), _without_collections():
        from .. import StandardizedVLLM

        try:
            return StandardizedVLLM(str(checkpoint), **{**OPTIONS, **share_of_a_card(), **options})
        except BaseException:
            # What a failed start leaves behind would break the next one in this process.
            from vllm.distributed import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
            raise


def stop(model: Any) -> None:
    """End a model's engine and the process group that it brought up, so that the next one finds a clean process."""
    from vllm.distributed import cleanup_dist_env_and_memory

    entrypoint = getattr(model, "vllm_entrypoint", None)
    with _without_collections():
        if entrypoint is not None:
            entrypoint.llm_engine.engine_core.shutdown()
            model.vllm_entrypoint = None
        cleanup_dist_env_and_memory()
    gc.collect()
    # vLLM keeps one pool for the graphs of a process, which is gone with the last graph that was recorded into it.
    from vllm.platforms import current_platform

    if hasattr(type(current_platform), "_global_graph_pool"):
        type(current_platform)._global_graph_pool = None
