"""``make bench``: every engine and shape, one process each; tables on the screen and the numbers in JSON.

python benchmarks/run.py --shapes 4x128 24x128 80x128 --requests 1 16 64 256
python benchmarks/run.py --lens ../lens/bin/python      # beside them vllm-lens, in its own environment
python benchmarks/run.py --table benchmarks/results.json        # the tables of an earlier run again
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Single-threaded on a CPU: Python between kernels lets OpenMP's threads fall asleep, and waking them is what is timed then.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "OMP_NUM_THREADS": "1",
}


def measure(engine: str, shape: str, requests: list[int], tokens: int, lens: str | None) -> dict[str, Any] | None:
    """The measurements of one engine on one shape, or ``None`` when it does not run here."""
    if engine == "vllm-lens":
        command = [str(lens), str(HERE / "lens.py")]
    else:
        command = [sys.executable, str(HERE / "measure.py"), "--engine", engine]
    command += ["--shape", shape, "--tokens", str(tokens), "--requests", *map(str, requests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**ENVIRONMENT, **os.environ})
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return found
    reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
    print(f"{engine} on {shape} did not run: {reason[:200]}")
    return None


def versions() -> dict[str, str]:
    """What was measured, and on what."""
    import torch
    import vllm
    from importlib_metadata import version

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    names = ("nnterp-vllm", "nnsight", "transformers")
    found = {name: version(name) for name in names}
    return {**found, "vllm": vllm.__version__, "torch": torch.__version__, "python": platform.python_version(), "on": device}


def tables(results: list[dict[str, Any]]) -> None:
    """Print each engine's ratios, one line a work and one column a number of requests, and what a read costs."""
    for found in results:
        counts = sorted({row["requests"] for row in found["rows"]})
        print(f"\n{found['shape']}, prompts of {found['tokens']} tokens, {found['engine']}; peak MiB {found['peak']}\n")
        print("| requests |" + "".join(f" {count} |" for count in counts))
        print("| --- |" + " --- |" * len(counts))
        for work in dict.fromkeys(row["work"] for row in found["rows"]):
            mine = {row["requests"]: row for row in found["rows"] if row["work"] == work}
            cells = [_cell(mine[count]) if count in mine else "" for count in counts]
            print(f"| {work} |" + "".join(f" {cell} |" for cell in cells))
        layers = int(found["shape"].split("x")[0])
        for work in ("every layer, last token", "every layer, all positions"):
            each = {
                row["requests"]: 1e6 * (row["work_s"] - row["plain_s"]) / (row["requests"] * layers)
                for row in found["rows"]
                if row["work"] == work
            }
            if each:
                cells = [f" {each[count]:.0f} |" if count in each else " |" for count in counts]
                print(f"| {work}: µs a request and layer |" + "".join(cells))


def _cell(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", nargs="+", default=["4x128", "24x128", "80x128"])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--engines", nargs="+", default=["ours", "nnsight", "hooks"])
    parser.add_argument("--lens", help="the Python of an environment with vllm-lens")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    parser.add_argument("--table", type=Path, help="print the tables of this file and measure nothing")
    args = parser.parse_args()
    if args.table:
        tables(json.loads(args.table.read_text())["results"])
        return
    engines = [*args.engines, *(["vllm-lens"] if args.lens else [])]
    results = []
    for shape in args.shapes:
        for engine in engines:
            found = measure(engine, shape, args.requests, args.tokens, args.lens)
            if found is not None:
                results.append(found)
                tables([found])
                sys.stdout.flush()
                args.out.write_text(json.dumps({"versions": versions(), "results": results}, indent=1) + "\n")
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
