"""Run the researcher's blocks on one engine in a process of its own.

Use it as ``python -m support.run_blocks ENGINE OUT NAME=FOLDER...``.

vLLM's Transformers backend changes transformers' classes in place, so neither it nor its reference may share a process.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import torch

from .researcher_blocks import BLOCKS, PROMPTS


def results(model: Any) -> dict[str, Any]:
    """What every block returns, or the traceback that it ended with, by block."""
    found: dict[str, Any] = {}
    for name, block in BLOCKS.items():
        try:
            found[name] = {key: value.detach().cpu().clone() for key, value in block(model, PROMPTS).items()}
        except Exception:  # noqa: BLE001  # one block's failure is that block's result
            found[name] = traceback.format_exc()
    return found


def main(engine: str, out: str, *named: str) -> None:
    """Load each checkpoint on ``engine`` (``transformers`` or ``backend``), run, and write everything to ``out``."""
    found: dict[str, Any] = {}
    for name, folder in (one.split("=", 1) for one in named):
        if engine == "transformers":
            from nnterp_vllm_core import StandardizedTransformer

            with torch.no_grad():
                found[name] = results(StandardizedTransformer(folder, dispatch=True, dtype=torch.float32))
            continue
        from nnterp_vllm_core.testing.engines import start, stop

        model = start(folder, model_impl="transformers")
        found[name] = results(model)
        stop(model)
    torch.save(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
