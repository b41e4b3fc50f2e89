"""``nnterp-vllm agreement``: how far this machine's engine is from transformers on a checkpoint."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from .table import table


def agreement(
    checkpoint: Annotated[str, typer.Argument(metavar="REPO_OR_PATH", help="A repo id or a checkpoint folder.")],
    layer: Annotated[int | None, typer.Option(help="The block; the middle one by default.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What both run.")] = None,
    engine: Annotated[
        str, typer.Option(help="vllm; backend, vLLM's Transformers backend; or transformers, against plain hooks.")
    ] = "vllm",
    dtype: Annotated[str, typer.Option(help="What the engine computes in: float32, bfloat16 or float16.")] = "float32",
    float32_products: Annotated[
        str, typer.Option(help="On CUDA in float32, the precision of attention's products: ieee or tf32.")
    ] = "ieee",
) -> None:
    """Compare every value of a block, and the logits, with transformers in float32. Starts an engine.

    In another dtype than float32, the last column says how far transformers itself is from its float32 then.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from ..agreement import DTYPES, ENGINES, PROMPT
    from ..agreement import agreement as measure
    from ..worker.float32 import PRECISIONS

    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine!r} is none of {', '.join(ENGINES)}.", param_hint="--engine")
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r} is none of {', '.join(DTYPES)}.", param_hint="--dtype")
    if engine == "transformers" and dtype != "float32":
        raise typer.BadParameter("plain hooks are compared in float32.", param_hint="--dtype")
    if float32_products not in PRECISIONS:
        raise typer.BadParameter(
            f"{float32_products!r} is none of {', '.join(PRECISIONS)}.", param_hint="--float32-products"
        )
    lines = measure(checkpoint, layer, PROMPT if prompt is None else prompt, engine, dtype, float32_products)
    heads = ["value", "shape", "gap to transformers"] + [f"transformers in {dtype}"] * (dtype != "float32")
    rows = [
        [line.value, str(line.shape), *(f"{gap:.1e}" for gap in (line.gap, line.own) if gap is not None)] for line in lines
    ]
    typer.echo(table(heads, rows))
