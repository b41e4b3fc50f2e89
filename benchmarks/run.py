"""``make bench``: every engine and shape, one process each; a table on the screen and the numbers in JSON.

python benchmarks/run.py --shapes 4x128 24x128 80x128 --requests 1 16 64 256
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


def measure(engine: str, shape: str, requests: list[int]) -> dict[str, Any] | None:
    """The measurements of one engine on one shape, or ``None`` when it does not run here."""
    command = [sys.executable, str(HERE / "measure.py"), "--engine", engine, "--shape", shape, "--requests"]
    done = subprocess.run(
        [*command, *map(str, requests)], capture_output=True, text=True, check=False, env={**ENVIRONMENT, **os.environ}
    )
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", nargs="+", default=["4x128", "24x128", "80x128"])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--engines", nargs="+", default=["bare", "ours", "nnsight", "hooks"])
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    args = parser.parse_args()
    results = []
    for shape in args.shapes:
        for engine in args.engines:
            found = measure(engine, shape, args.requests)
            if found is None:
                continue
            results.append(found)
            for row in found["rows"]:
                print(
                    f"{shape:9} {engine:8} {row['requests']:4} requests  {row['work']:34}"
                    f" plain {row['plain_s']:8.3f} s  work {row['work_s']:8.3f} s  ratio {row['ratio']:6.2f}"
                )
            print(f"{shape:9} {engine:8} peak memory: {found['peak']}", flush=True)
    args.out.write_text(json.dumps({"versions": versions(), "results": results}, indent=1) + "\n")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
