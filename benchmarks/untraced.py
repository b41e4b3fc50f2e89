"""What an engine of ours costs a request that carries no block, beside a ``vllm.LLM`` with nothing of ours.

    python benchmarks/untraced.py 80x128 3        # shape, rounds

Each engine is alone in a process of its own: two in one process are not alike, whichever they are (of two plain ones the
first was up to 1.7 times slower than the second). The processes take turns, and the ratio is taken round by round. Both
engines are eager, with whole prompts and no prefix cache, as an engine for traces is.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import shapes
import timing
from run import ENVIRONMENT

REQUESTS = (1, 16, 64)
TOKENS = (1, 16)
RUNS = 12


def seconds(kind: str, shape: str) -> None:
    """One engine: the median of each piece of work, printed as JSON."""
    import torch

    folder = str(shapes.write(shapes.SHAPES[shape], Path(".cache/shapes")))
    options = timing.options(torch.cuda.is_available(), list(REQUESTS), shape)
    if kind == "bare":
        from vllm import LLM

        engine = LLM(folder, enforce_eager=True, enable_prefix_caching=False, enable_chunked_prefill=False, **options)
    else:
        from nnterp_vllm_core import StandardizedVLLM

        engine = StandardizedVLLM(folder, dispatch=True, **options).vllm_entrypoint
    found = {}
    for count in REQUESTS:
        prompts = shapes.prompts(count, 8)
        for tokens in TOKENS:
            times = []
            for _ in range(RUNS + 2):
                start = time.perf_counter()
                timing.generate(engine, prompts, tokens)
                times.append(time.perf_counter() - start)
            found[f"{count} requests, {tokens} tokens"] = statistics.median(times[2:])
    print("RESULT " + json.dumps(found), flush=True)


def main() -> None:
    shape, rounds = (sys.argv[1:] + ["80x128", "3"][len(sys.argv) - 1 :])[:2]
    ratios: dict[str, list[float]] = {}
    for number in range(int(rounds)):
        found: dict[str, dict[str, float]] = {}
        for kind in ("bare", "ours") if number % 2 == 0 else ("ours", "bare"):
            done = subprocess.run(
                [sys.executable, __file__, "--engine", kind, shape],
                capture_output=True,
                text=True,
                check=True,
                env={**ENVIRONMENT, **os.environ},
            )
            line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
            found[kind] = json.loads(line.removeprefix("RESULT "))
        for work, bare in found["bare"].items():
            ratios.setdefault(work, []).append(found["ours"][work] / bare)
        print({work: [round(one, 3) for one in each] for work, each in ratios.items()}, flush=True)
    for work, each in ratios.items():
        print(f"| {work} | {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f}) |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        seconds(sys.argv[2], sys.argv[3])
    else:
        main()
