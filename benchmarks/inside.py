"""What nnsight's runner and ours add inside an engine step, timed in one process with the engine in it.

    python benchmarks/inside.py [SHAPE] [REQUESTS] [ROUNDS]        # 80x128 64 25

"no block" is a step of plain requests; "known" and "counted" are steps of traces whose blocks do nothing, once the way of a
forward is known, and with each visit of each module counted. The three take turns, each after a step of its kind.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "0", "OMP_NUM_THREADS": "1"}
os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", **SETTINGS})
sys.path.insert(0, str(Path(__file__).parent))
import scenarios  # noqa: E402
import shapes  # noqa: E402
import timing  # noqa: E402

#: What is done for a step beside vLLM's own, whether or not its requests carry blocks.
BOOKKEEPING = ("add", "harvest", "refuse_chunked", "scope", "unflatten", "record_saves")
spent: dict[str, float] = defaultdict(float)


def timed(owner: type, name: str, label: str) -> None:
    """Add up what a method takes."""
    method = getattr(owner, name)

    def measured(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            spent[label] += time.perf_counter() - start

    setattr(owner, name, measured)


def main() -> None:
    from nnterp_vllm_core import StandardizedVLLM

    shape = sys.argv[1] if len(sys.argv) > 1 else "80x128"
    requests, rounds = (int(sys.argv[2]) if len(sys.argv) > 2 else 64, int(sys.argv[3]) if len(sys.argv) > 3 else 25)
    folder = str(shapes.write(shapes.SHAPES[shape], Path(".cache/shapes")))
    options = timing.options(False, [requests], shape)
    model = StandardizedVLLM(folder, dispatch=True, distributed_executor_backend="uni", **options)
    executor = model.vllm_entrypoint.llm_engine.engine_core.engine_core.model_executor
    runner = executor.driver_worker.worker.model_runner
    handoffs = runner.nnsight_requests.handoffs
    timed(type(runner), "_model_forward", "forward")
    for name in BOOKKEEPING:
        timed(type(runner.nnsight_requests), name, "bookkeeping")
    prompts = shapes.prompts(requests, 8)
    works = {"no block": scenarios.plain, "known": scenarios.nothing, "counted": scenarios.nothing}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in works}
    for number in range(rounds + 2):
        for name, work in works.items():
            handoffs._irregular = name == "counted"
            work(model, prompts)
            spent.clear()
            work(model, prompts)
            if number > 1:
                found[name].append(dict(spent))
    print(f"{shape}, {requests} requests, {rounds} rounds; milliseconds, median (least to most)")
    for name, rows in found.items():
        for label in ("forward", "bookkeeping"):
            times = sorted(1000 * row[label] for row in rows)
            print(f"{name}: {label} {statistics.median(times):.2f} ({times[0]:.2f} to {times[-1]:.2f})")


if __name__ == "__main__":
    main()
