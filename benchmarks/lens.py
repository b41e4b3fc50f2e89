"""vllm-lens on the same work, in an environment of its own (it pins another vLLM); prints what `measure.py` prints.

    python benchmarks/lens.py --shape 80x128 --requests 64        # with the Python of that environment

`README.md` beside this file says how to make the environment. Its plugin takes effect in every engine there, so what the
ratios are to is a plain `generate` of the same engine, as for the others.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import shapes
import timing


def captured(engine: Any, prompts: Any, layers: list[int]) -> Any:
    """The stream after some layers, all positions."""
    return timing.generate(engine, prompts, extra_args={"output_residual_stream": layers})


def last_positions(engine: Any, prompts: Any, layers: list[int]) -> Any:
    """Every layer's last position through a hook, which is this library's way to send less than all of it."""
    from vllm_lens import Hook

    def keep(ctx: Any, hidden: Any) -> None:
        ctx.saved[str(ctx.layer_idx)] = hidden[-1].clone()

    return timing.generate(engine, prompts, extra_args={"apply_hooks": [Hook(fn=keep, layer_indices=layers)]})


def halved(engine: Any, prompts: Any, layer: int) -> Any:
    """An edit at one layer."""
    from vllm_lens import Hook

    def halve(ctx: Any, hidden: Any) -> Any:
        hidden = hidden.clone()
        hidden[-1] *= 0.5
        return hidden

    return timing.generate(engine, prompts, extra_args={"apply_hooks": [Hook(fn=halve, layer_indices=[layer])]})


def pattern(engine: Any, prompts: Any, layer: int) -> Any:
    """The attention pattern of one layer, computed in the driver from captured queries and keys."""
    from vllm_lens.attention import attention_patterns

    outputs = timing.generate(engine, prompts, extra_args={"output_qk": [layer]})
    return [attention_patterns(output.activations, layer=layer) for output in outputs]


def each_step(engine: Any, prompts: Any, layer: int) -> Any:
    """The stream at one layer on each of 64 generated tokens."""
    return timing.generate(engine, prompts, 64, extra_args={"output_residual_stream": [layer]})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=sorted(shapes.SHAPES), required=True)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--folder", type=Path, default=Path(".cache/shapes"))
    parser.add_argument("--tokens", type=int, default=8)
    args = parser.parse_args()
    import torch
    from vllm import LLM

    folder = shapes.write(shapes.SHAPES[args.shape], args.folder)
    engine = LLM(str(folder), enforce_eager=True, **timing.options(torch.cuda.is_available(), args.requests, args.shape))
    layers = shapes.SHAPES[args.shape].layers
    works = {
        "one value of one layer": (partial(captured, layers=[layers // 2]), 1),
        "every layer, last token": (partial(last_positions, layers=list(range(layers))), 1),
        "every layer, all positions": (partial(captured, layers=list(range(layers))), 1),
        "an edit at one layer": (partial(halved, layer=layers // 2), 1),
        "pattern of one layer": (partial(pattern, layer=layers // 2), 1),
        "64 decode steps, one read each": (partial(each_step, layer=layers // 2), 64),
    }
    rows = []
    for count in args.requests:
        prompts = shapes.prompts(count, args.tokens)
        for name, (work, tokens) in works.items():
            if tokens > 1 and count > 64:
                continue
            found = timing.ratio(partial(timing.generate, engine, prompts, tokens), partial(work, engine, prompts))
            rows.append({"requests": count, "work": name, **found})
    found = {"engine": "vllm-lens", "tokens": args.tokens, "shape": args.shape, "rows": rows, "peak": timing.peak()}
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
