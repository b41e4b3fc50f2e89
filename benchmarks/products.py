"""What float32 products cost on CUDA: the same work with `float32_products="ieee"`, which is the default, and ``"tf32"``.

    python benchmarks/products.py [SHAPE]

Each precision runs in a process of its own, because Triton keeps the kernels that it has compiled. Seconds are medians of
five runs after a warm-up: a prefill of 32 prompts of 256 tokens, and 64 new tokens for 32 prompts of 16.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import shapes
import timing

PRODUCTS = ("tf32", "ieee")
WORK = {"prefill": (256, 1), "decode": (16, 64)}
PROMPTS, RUNS = 32, 5


def measure(products: str, shape: str) -> dict[str, float]:
    """Median seconds of each kind of work."""
    from nnterp_vllm_core import StandardizedVLLM

    folder = shapes.write(shapes.SHAPES[shape], Path(".cache/shapes"))
    options = timing.options(True, [PROMPTS], shape, 512, "float32")
    model = StandardizedVLLM(str(folder), dispatch=True, float32_products=products, **options)
    seconds = {}
    for name, (length, tokens) in WORK.items():
        prompts, runs = shapes.prompts(PROMPTS, length), []
        for _ in range(RUNS + 1):
            began = time.perf_counter()
            timing.generate(model.vllm_entrypoint, prompts, tokens)
            runs.append(time.perf_counter() - began)
        seconds[name] = round(statistics.median(runs[1:]), 4)
    return seconds


def main() -> None:
    if len(sys.argv) == 3:
        print("RESULT " + json.dumps(measure(sys.argv[2], sys.argv[1])), flush=True)
        return
    shape = sys.argv[1] if len(sys.argv) > 1 else "24x896"
    found = {}
    for products in PRODUCTS:
        done = subprocess.run([sys.executable, __file__, shape, products], capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise SystemExit(f"{products} did not run: {(done.stdout + done.stderr)[-2000:]}")
        found[products] = json.loads(lines[0].removeprefix("RESULT "))
    for name, (length, tokens) in WORK.items():
        tf32, ieee = (found[products][name] for products in PRODUCTS)
        what = f"{PROMPTS} prompts of {length} tokens, {tokens} new"
        print(f"{shape}, {name}: {what}: tf32 {tf32} s, ieee {ieee} s, {ieee / tf32:.2f}")


if __name__ == "__main__":
    main()
