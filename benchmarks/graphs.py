"""Decoding with CUDA graphs: the plain engine beside ours, by how much is tapped and by what a block does on each step.

    python benchmarks/graphs.py --shape 24x896 --out graphs.json

Each engine runs in a process of its own. Times are medians of five runs after a warm-up, for 8 requests of 128 new tokens.
`boundary` and its like are groups of taps; `one layer` and `every layer` tap streams alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import shapes

REQUESTS, TOKENS, RUNS = 8, 128, 5
#: What an engine of ours taps, by its name in the table.
TAPS: dict[str, list[str]] = {
    "none": [],
    "one layer": ["layers.12.layer_output"],
    "every layer": ["layers.*.layer_output"],
    **{group: [group] for group in ("boundary", "contributions", "attention", "standard")},
}
ENGINES = ("plain", *TAPS)


def timed(run: Callable[[], Any]) -> float:
    """Median seconds of `RUNS` runs after one that is not counted."""
    run()
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def one(engine: str, folder: str) -> dict[str, float]:
    """Seconds of each kind of work on one engine."""
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": 16,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": 2 << 30,
    }
    prompts = shapes.prompts(REQUESTS, 16)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    if engine == "plain":
        llm = LLM(folder, **options)
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        return {"no block": timed(lambda: llm.generate(requests, params, use_tqdm=False))}

    import nnsight

    from nnterp_vllm_core import StandardizedVLLM

    model = StandardizedVLLM(folder, dispatch=True, taps=TAPS[engine], **options)
    requests = [{"prompt_token_ids": ids} for ids in prompts]
    middle = model.num_layers // 2
    seconds = {"no block": timed(lambda: model.vllm_entrypoint.generate(requests, params, use_tqdm=False))}

    def read_one() -> None:
        with model.trace(temperature=0.0, max_tokens=TOKENS, ignore_eos=True) as tracer:
            for prompt in prompts:
                with tracer.invoke(prompt):
                    states = nnsight.save([])
                    for _ in tracer.iter[:TOKENS]:
                        states.append(model.layers[middle].layer_output[:, -1])

    def edit_one() -> None:
        with model.trace(temperature=0.0, max_tokens=TOKENS, ignore_eos=True) as tracer:
            for prompt in prompts:
                with tracer.invoke(prompt):
                    for _ in tracer.iter[:TOKENS]:
                        model.layers[middle].layer_output[:, -1] *= 1.01

    def read_all() -> None:
        with model.trace(temperature=0.0, max_tokens=TOKENS, ignore_eos=True) as tracer:
            for prompt in prompts:
                with tracer.invoke(prompt):
                    states = nnsight.save([])
                    for _ in tracer.iter[:TOKENS]:
                        for layer in model.layers:
                            states.append(layer.layer_output[:, -1])

    if engine in ("none", "one layer", "every layer", "boundary", "standard"):
        seconds["read one layer a step"] = timed(read_one)
        seconds["edit one layer a step"] = timed(edit_one)
    if engine in ("none", "every layer", "boundary", "standard"):
        seconds["read every layer a step"] = timed(read_all)
    return {"locations": len(model.taps), **seconds}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="24x896", choices=sorted(shapes.SHAPES))
    parser.add_argument("--out", type=Path, default=Path("graphs.json"))
    parser.add_argument("--folder", type=Path, default=Path(".cache/shapes"))
    parser.add_argument("--one", choices=ENGINES)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES))
    args = parser.parse_args()
    folder = str(shapes.write(shapes.SHAPES[args.shape], args.folder))
    if args.one:
        print("RESULT " + json.dumps(one(args.one, folder)))
        return
    table: dict[str, Any] = {}
    for engine in args.engines:
        command = [sys.executable, __file__, "--shape", args.shape, "--folder", str(args.folder), "--one", engine]
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        found = re.search(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
        if found is None:
            print(engine, "failed:", (done.stdout + done.stderr)[-1500:])
            continue
        graphs = re.search(r"Graph capturing finished in ([\d.]+) secs?, took (-?[\d.]+) GiB", done.stdout + done.stderr)
        seconds = json.loads(found[1])
        locations = seconds.pop("locations", 0)
        table[engine] = {"seconds": seconds, "locations": locations, "graph_gib": float(graphs[2]) if graphs else None}
        plain = table.get("plain", {}).get("seconds", {}).get("no block")
        for work, value in seconds.items():
            ratio = f"{value / plain:.2f}" if plain else "-"
            memory = graphs[2] if graphs else "-"
            print(f"{engine:14} {locations:4} taps {work:26} {value:8.3f} s  {ratio:>6} of plain   graphs {memory} GiB")
        sys.stdout.flush()
    args.out.write_text(
        json.dumps({"shape": args.shape, "requests": REQUESTS, "tokens": TOKENS, "engines": table}, indent=1)
    )


if __name__ == "__main__":
    main()
