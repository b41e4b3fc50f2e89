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
) -> None:
    """Compare a block's stream, pattern and head outputs, and the logits, with transformers. Starts an engine."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from ..agreement import ENGINES, PROMPT
    from ..agreement import agreement as measure

    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine!r} is none of {', '.join(ENGINES)}.", param_hint="--engine")
    lines = measure(checkpoint, layer, PROMPT if prompt is None else prompt, engine)
    rows = [(line.value, str(line.shape), f"{line.gap:.1e}") for line in lines]
    typer.echo(table(("value", "shape", "gap to transformers"), rows))
