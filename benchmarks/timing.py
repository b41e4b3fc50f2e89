"""How everything here is timed: two pieces of work in turn, and the median of their ratios."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shapes

RUNS = 5


def ratio(plain: Callable[[], Any], work: Callable[[], Any], runs: int = RUNS) -> dict[str, float]:
    """Median seconds of both and the median, least and largest of their ratios, after a warm-up of each.

    Each repetition times one right after the other, so that a machine whose speed drifts drifts for both. Which of them
    comes first changes from one to the next.
    """
    plain()
    work()
    pairs = []
    for run in range(runs):
        times = {}
        for one in (plain, work) if run % 2 == 0 else (work, plain):
            start = time.perf_counter()
            one()
            times[one] = time.perf_counter() - start
        pairs.append((times[plain], times[work]))
    ratios = [after / before for before, after in pairs]
    return {
        "plain_s": round(statistics.median(before for before, _ in pairs), 4),
        "work_s": round(statistics.median(after for _, after in pairs), 4),
        "ratio": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def options(cuda: bool, requests: list[int], shape: str, length: int = 256, dtype: str | None = None) -> dict[str, Any]:
    """Engine options, the same for every engine that is compared. On CUDA the cache is as large as the requests need."""
    sequences = max([16, *requests])
    dtype = dtype or ("bfloat16" if cuda else "float32")
    found = {"load_format": "dummy", "max_model_len": length, "max_num_seqs": sequences, "dtype": dtype}
    if not cuda:
        return found
    size = shapes.SHAPES[shape].cache_bytes(sequences, length) * (2 if dtype == "float32" else 1)
    return {**found, "gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": size}


def generate(engine: Any, prompts: list[list[int]], tokens: int = 1, **extra: Any) -> Any:
    """vLLM's ``generate``, greedy, exactly ``tokens`` new tokens a prompt."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, **extra)
    return engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)


def peak() -> dict[str, int]:
    """Peak resident MiB of this process, and of the largest process below it, while that one lives."""
    import psutil

    below = [0]
    for child in psutil.Process().children(recursive=True):
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            continue
        below += [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    return {"driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "worker_mib": max(below) // 1024}
