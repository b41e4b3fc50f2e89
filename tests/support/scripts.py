"""Python in a process of its own, where vLLM spawns its worker as it does for a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


def search_path() -> str:
    """``PYTHONPATH`` with the tests' own modules before what it held."""
    return os.pathsep.join(part for part in (str(TESTS), os.environ.get("PYTHONPATH", "")) if part)


def run(*arguments: str | Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python on ``arguments`` with the engine in its own process; the output is kept.

    Raises:
        AssertionError: ``check`` and it failed; the message is the end of what it wrote.
    """
    in_process = ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_BREAKABLE_CUDAGRAPH")
    inherited = {key: value for key, value in os.environ.items() if key not in in_process}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**inherited, "PYTHONPATH": search_path(), "PYTHONUNBUFFERED": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not check or done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done
