"""One engine in a process of its own: every scenario at every number of requests, as ratios to the same engine's plain run.

    python benchmarks/measure.py --engine ours --shape 80x128 --requests 64

Printed as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import scenarios
import shapes
import timing

#: Tokens of a prompt; ``--tokens`` changes it.
LENGTH = [8]


def ours(folder: str, counts: list[int], cuda: bool) -> list[dict[str, Any]]:
    """`StandardizedVLLM`."""
    from nnterp_vllm_core import StandardizedVLLM

    model = StandardizedVLLM(folder, dispatch=True, **timing.options(cuda, counts, Path(folder).name))
    rows = []
    for count in counts:
        prompts = shapes.prompts(count, LENGTH[0])
        for name, (work, tokens) in scenarios.SCENARIOS.items():
            if tokens > 1 and count > (128 if cuda else 64):
                continue  # the long one at the largest number says nothing new
            found = timing.ratio(partial(scenarios.plain, model, prompts, tokens), partial(work, model, prompts))
            rows.append({"requests": count, "work": name, **found})
    return rows


def native(folder: str, counts: list[int], cuda: bool) -> list[dict[str, Any]]:
    """nnsight's own ``VLLM`` on its native locations; it runs on CUDA alone."""
    from nnsight.modeling.vllm import VLLM

    model = VLLM(folder, dispatch=True, **timing.options(cuda, counts, Path(folder).name))
    rows = []
    for count in counts:
        prompts = shapes.prompts(count, LENGTH[0])
        for name, work in scenarios.NATIVE.items():
            found = timing.ratio(partial(scenarios.plain, model, prompts), partial(work, model, prompts))
            rows.append({"requests": count, "work": name, **found})
    return rows


def hooks(folder: str, counts: list[int], cuda: bool) -> list[dict[str, Any]]:
    """transformers with forward hooks, one padded batch; its own plain forward is what it is divided by."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype).to(device).eval()
    rows = []
    for count in counts:
        ids = torch.tensor(shapes.prompts(count, LENGTH[0]), device=device)

        @torch.no_grad()
        def plain(ids: Any = ids) -> None:
            model(ids)
            if cuda:
                torch.cuda.synchronize()

        def every_layer(ids: Any = ids, plain: Callable[[], None] = plain) -> list[Any]:
            states: list[Any] = []

            def keep(module: Any, arguments: Any, out: Any) -> None:
                states.append(out[:, -1].cpu())

            handles = [layer.register_forward_hook(keep) for layer in model.model.layers]
            plain()
            for handle in handles:
                handle.remove()
            return states

        rows.append({"requests": count, "work": "every layer, last token", **timing.ratio(plain, every_layer)})
    return rows


ENGINES = {"ours": ours, "nnsight": native, "hooks": hooks}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--shape", choices=sorted(shapes.SHAPES), required=True)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--folder", type=Path, default=Path(".cache/shapes"))
    parser.add_argument("--tokens", type=int, default=8)
    args = parser.parse_args()
    LENGTH[0] = args.tokens
    import torch

    cuda = torch.cuda.is_available()
    folder = str(shapes.write(shapes.SHAPES[args.shape], args.folder))
    rows = ENGINES[args.engine](folder, args.requests, cuda)
    found = {"engine": args.engine, "tokens": args.tokens, "shape": args.shape, "rows": rows, "peak": timing.peak()}
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
