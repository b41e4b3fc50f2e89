"""What importing costs, and what our model adds to vLLM's own load.

    python benchmarks/load.py [CHECKPOINT] [ROUNDS]        # CHECKPOINT is SmolLM2-135M in .cache

Each load is a process of its own: vLLM's ``LLM``, then `StandardizedVLLM`, in turn. What is timed is the constructor, the
engine's processes included; "without an engine" is the weightless tree alone, which the driver builds before it starts one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
LOADS = {
    "vLLM's LLM": "from vllm import LLM as load; options = {'enforce_eager': True}",
    "StandardizedVLLM": "from nnterp_vllm_core import StandardizedVLLM as load; options = {'dispatch': True}",
    "without an engine": "from nnterp_vllm_core import StandardizedVLLM as load; options = {}",
}
PROGRAM = """
import time
if __name__ == "__main__":
    import vllm, nnsight.modeling.vllm
    from vllm import LLM
    {imports}
    began = time.perf_counter()
    model = load({checkpoint!r}, dtype="float32", max_model_len=256, **options)
    print("SECONDS", time.perf_counter() - began, flush=True)
"""


def seconds(program: str, folder: Path) -> float:
    """What a program of its own process printed."""
    file = folder / "load_program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=True, env={**ENVIRONMENT, **os.environ}
    )
    return float(next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("SECONDS")))


def imported() -> float:
    """Median seconds of ``import nnterp_vllm_core`` less those of an empty program, over nine runs of each."""
    times: dict[str, list[float]] = {"pass": [], "import nnterp_vllm_core": []}
    for _ in range(9):
        for statement, found in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            found.append(time.perf_counter() - start)
    return statistics.median(times["import nnterp_vllm_core"]) - statistics.median(times["pass"])


def main() -> None:
    import tempfile

    checkpoint = sys.argv[1] if len(sys.argv) > 1 else ".cache/smollm2-135m"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    print(f"import nnterp_vllm_core: {imported():.3f} s")
    times: dict[str, list[float]] = {name: [] for name in LOADS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            # In turn first: a machine that slows down meanwhile does so for both.
            for name, imports in list(LOADS.items())[:: 1 if number % 2 else -1]:
                taken = seconds(PROGRAM.format(imports=imports, checkpoint=checkpoint), Path(folder))
                if number:  # the first round fills the system's caches
                    times[name].append(taken)
                print(f"{name}: {taken:.2f} s", flush=True)
    theirs, ours, tree = times.values()
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    print(f"without an engine: {statistics.median(tree):.2f} s ({min(tree):.2f} to {max(tree):.2f})")
    print(f"ratio of loads: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()
