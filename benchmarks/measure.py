"""One engine in a process of its own: every scenario at every number of requests, as ratios to the same engine's plain run.

    python benchmarks/measure.py --engine ours --shape 80x128 --requests 64

Each repetition times the plain run and the scenario one right after the other, so that a machine whose speed drifts drifts
for both. Printed as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import scenarios
import shapes

#: Tokens of a prompt; ``--tokens`` changes it.
LENGTH = [8]
RUNS = 5


def ratio(plain: Callable[[], Any], work: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of both and the median of their ratios, after a warm-up of each."""
    plain()
    work()
    pairs = []
    for _ in range(RUNS):
        start = time.perf_counter()
        plain()
        middle = time.perf_counter()
        work()
        pairs.append((middle - start, time.perf_counter() - middle))
    return {
        "plain_s": round(statistics.median(a for a, _ in pairs), 4),
        "work_s": round(statistics.median(b for _, b in pairs), 4),
        "ratio": round(statistics.median(b / a for a, b in pairs), 3),
    }


def options(cuda: bool, requests: list[int]) -> dict[str, Any]:
    """Engine options, the same for every engine that is compared."""
    found: dict[str, Any] = {"load_format": "dummy", "max_model_len": 256, "max_num_seqs": max(16, *requests)}
    return {**found, "dtype": "bfloat16", "gpu_memory_utilization": 0.5} if cuda else {**found, "dtype": "float32"}


def ours(folder: str, counts: list[int], cuda: bool) -> list[dict[str, Any]]:
    """`StandardizedVLLM`."""
    from nnterp_vllm_core import StandardizedVLLM

    model = StandardizedVLLM(folder, dispatch=True, **options(cuda, counts))
    rows = []
    for count in counts:
        prompts = shapes.prompts(count, LENGTH[0])
        for name, (work, tokens) in scenarios.SCENARIOS.items():
            if tokens > 1 and count > 64:
                continue  # the long one at the largest number says nothing new
            found = ratio(partial(scenarios.plain, model, prompts, tokens), partial(work, model, prompts))
            rows.append({"requests": count, "work": name, **found})
    return rows


def native(folder: str, counts: list[int], cuda: bool) -> list[dict[str, Any]]:
    """nnsight's own ``VLLM`` on its native locations; it runs on CUDA alone."""
    from nnsight.modeling.vllm import VLLM

    model = VLLM(folder, dispatch=True, **options(cuda, counts))
    rows = []
    for count in counts:
        prompts = shapes.prompts(count, LENGTH[0])
        for name, work in scenarios.NATIVE.items():
            found = ratio(partial(scenarios.plain, model, prompts), partial(work, model, prompts))
            rows.append({"requests": count, "work": name, **found})
    return rows


def hooks(folder: str, counts: list[int], cuda: bool) -> list[dict[str, Any]]:
    """transformers with forward hooks, one padded batch; its own plain forward is what it is divided by."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype).to(device).eval()
    rows = []
    for count in counts:
        ids = torch.tensor(shapes.prompts(count, LENGTH[0]), device=device)

        @torch.no_grad()
        def plain(ids: Any = ids) -> None:
            model(ids)
            if cuda:
                torch.cuda.synchronize()

        def every_layer(ids: Any = ids, plain: Callable[[], None] = plain) -> list[Any]:
            states: list[Any] = []

            def keep(module: Any, arguments: Any, out: Any) -> None:
                states.append(out[:, -1].cpu())

            handles = [layer.register_forward_hook(keep) for layer in model.model.layers]
            plain()
            for handle in handles:
                handle.remove()
            return states

        rows.append({"requests": count, "work": "every layer, last token", **ratio(plain, every_layer)})
    return rows


def bare(folder: str, counts: list[int], cuda: bool) -> list[dict[str, Any]]:
    """``vllm.LLM`` with nothing of ours, eager like an untapped engine of ours: seconds of a plain run."""
    from types import SimpleNamespace

    from vllm import LLM

    model = SimpleNamespace(vllm_entrypoint=LLM(folder, enforce_eager=True, **options(cuda, counts)))
    rows = []
    for count in counts:
        prompts = shapes.prompts(count, LENGTH[0])
        found = ratio(partial(scenarios.plain, model, prompts), partial(scenarios.plain, model, prompts))
        rows.append({"requests": count, "work": "plain", **found})
    return rows


ENGINES = {"ours": ours, "nnsight": native, "hooks": hooks, "bare": bare}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--shape", choices=sorted(shapes.SHAPES), required=True)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--folder", type=Path, default=Path(".cache/shapes"))
    parser.add_argument("--tokens", type=int, default=8)
    args = parser.parse_args()
    LENGTH[0] = args.tokens
    import torch

    cuda = torch.cuda.is_available()
    folder = str(shapes.write(shapes.SHAPES[args.shape], args.folder))
    rows = ENGINES[args.engine](folder, args.requests, cuda)
    peak = {
        "driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "worker_mib": _largest_child() // 1024,
    }
    found = {"engine": args.engine, "tokens": args.tokens, "shape": args.shape, "rows": rows, "peak": peak}
    print("RESULT " + json.dumps(found), flush=True)


def _largest_child() -> int:
    """Peak resident KiB of the largest process below this one, while it lives."""
    import psutil

    peaks = [0]
    for child in psutil.Process().children(recursive=True):
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            continue
        peaks += [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    return max(peaks)


if __name__ == "__main__":
    main()
