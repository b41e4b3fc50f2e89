"""Bulk collection against the bare engine: what a data set's rows cost on top of its prefill.

python benchmarks/collect.py [SHAPE] [PROMPTS] [TOKENS] [ROUNDS]     ratios to plain generate, median of the rounds
python benchmarks/collect.py --memory [SHAPE] [PROMPTS] [TOKENS]     the driver's memory over a long run to disk

Every ratio divides by vLLM's own ``generate`` over the same prompts, in the same process and the same round.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scenarios
import shapes
import timing
import torch


def load(shape: str, tokens: int, folder: Path) -> Any:
    from nnterp_vllm_core import StandardizedVLLM

    path = shapes.write(shapes.SHAPES[shape], folder)
    options = timing.options(torch.cuda.is_available(), [256], shape, max(128, 2 * tokens))
    return StandardizedVLLM(str(path), dispatch=True, **options)


def ratios(shape: str, count: int, tokens: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = load(shape, tokens, Path(folder))
        prompts = shapes.prompts(count, tokens)
        middle = f"layers.{model.num_layers // 2}.layer_output"
        out = Path(folder) / "out"
        jobs: dict[str, dict[str, Any]] = {
            "one layer, last position, to memory": {"values": middle},
            "one layer, last position, to disk": {"values": middle, "out": out},
            "one layer, all positions, to memory": {"values": middle, "positions": "all"},
            "one layer, all positions, to disk": {"values": middle, "positions": "all", "out": out},
            "one layer, mean over positions, to disk": {"values": middle, "positions": "all", "reduce": "mean", "out": out},
            "every layer, last position, to disk": {"values": "layers.*.layer_output", "out": out},
        }
        times: dict[str, list[float]] = {name: [] for name in jobs}
        for turn in range(rounds + 1):
            began = time.perf_counter()
            scenarios.plain(model, prompts)
            plain = time.perf_counter() - began
            for name, job in jobs.items():
                shutil.rmtree(out, ignore_errors=True)
                began = time.perf_counter()
                model.collect(prompts, quiet=True, **job)
                if turn:  # the first round warms up
                    times[name].append((time.perf_counter() - began) / plain)
            print(f"{shape}, {count} prompts of {tokens} tokens, round {turn}: plain generate took {plain:.2f} s")
            for name, found in times.items() if turn else ():
                print(f"  {name:42s} {statistics.median(found):.2f}  ({min(found):.2f} to {max(found):.2f})", flush=True)


def memory(shape: str, count: int, tokens: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = load(shape, tokens, Path(folder))
        seen: list[int] = []

        def prompts() -> Iterator[list[int]]:
            for number in range(count):
                if number % (count // 10) == 0:
                    seen.append(resident())
                    print(f"  {number:8d} prompts: driver {seen[-1] >> 20} MiB", flush=True)
                yield [1 + (number + position) % 380 for position in range(tokens)]

        middle = f"layers.{model.num_layers // 2}.layer_output"
        model.collect(prompts(), middle, positions="all", out=Path(folder) / "out", shard_bytes=32 << 20, quiet=True)
        print(f"  {count:8d} prompts: driver {resident() >> 20} MiB")


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--memory"]
    shape = arguments[0] if arguments else "24x128"
    count, tokens, rounds = (int(one) for one in (*arguments[1:], *("2000", "32", "3")[len(arguments[1:]) :]))
    if "--memory" in sys.argv:
        memory(shape, count, tokens)
    else:
        ratios(shape, count, tokens, rounds)
