"""How far a checkpoint's values on the vLLM engine are from transformers'.

Four values tell most of what can go wrong: a block's stream (names and residuals), its attention pattern (the recomputed
interior), its head outputs (the engine's own kernel) and the logits (everything to the end). transformers runs in a process
of its own, because vLLM's Transformers backend changes transformers' classes in place.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import NnterpVLLMError

PROMPT = "The Eiffel Tower is in the city of"
VALUES = ("layer_output", "attention_probabilities", "attention_head_outputs", "logits")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One compared value.

    Attributes:
        value: Its name.
        shape: Its shape on both engines.
        gap: The largest difference over transformers' largest magnitude.
    """

    value: str
    shape: tuple[int, ...]
    gap: float


def agreement(checkpoint: str, layer: int | None = None, prompt: str = PROMPT) -> list[Line]:
    """Load a checkpoint on both engines in float32 and compare ``VALUES`` of one block.

    Args:
        checkpoint: A repo id or a checkpoint folder.
        layer: The block; the middle one by default.
        prompt: What both engines run.

    Raises:
        NnterpVLLMError: transformers could not compute the reference, or the shapes differ. The checkpoint's own errors
            are those of `StandardizedVLLM`.
    """
    from .model import StandardizedVLLM

    model = StandardizedVLLM(checkpoint, dispatch=True, dtype="float32", max_model_len=256)
    layer = model._layer_index(model.num_layers // 2 if layer is None else layer)
    ours = read(model, layer, prompt, temperature=0.0, max_tokens=1)
    theirs = _reference(checkpoint, layer, prompt)
    return [_compared(value, ours[value], theirs[value]) for value in VALUES]


def read(model: Any, layer: int, prompt: str, **settings: Any) -> dict[str, Any]:
    """``VALUES`` of one prefill, on either engine, on the CPU; of the logits the last position."""
    block = model.layers[layer]
    with model.trace(prompt, **settings):
        pattern = block.self_attn.attention_probabilities.save()
        heads = block.self_attn.attention_head_outputs.save()
        stream = block.layer_output.save()
        logits = model.logits[:, -1:].save()
    return {name: one.detach().cpu() for name, one in zip(VALUES, (stream, pattern, heads, logits), strict=True)}


def _reference(checkpoint: str, layer: int, prompt: str) -> dict[str, Any]:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "reference.pt"
        command = [sys.executable, "-m", __name__, checkpoint, str(layer), prompt, str(out)]
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NnterpVLLMError(
                f"transformers could not compute the reference of {checkpoint!r}; its process ended with "
                f"{done.stderr.strip().splitlines()[-1:]!r}. Run `{' '.join(command[:4])} ...` to see all of it."
            )
        values: dict[str, Any] = torch.load(out)
    return values


def _compared(value: str, ours: Any, theirs: Any) -> Line:
    if ours.shape != theirs.shape:
        raise NnterpVLLMError(
            f"{value} is {tuple(ours.shape)} on vLLM and {tuple(theirs.shape)} on transformers. The family's declaration "
            f"reads it at another place on one of them."
        )
    largest = theirs.abs().max().clamp_min(1e-30)
    return Line(value=value, shape=tuple(ours.shape), gap=float((ours - theirs).abs().max() / largest))


def _serve_reference(checkpoint: str, layer: str, prompt: str, out: str) -> None:
    import torch

    from .transformers_model import StandardizedTransformer

    model = StandardizedTransformer(checkpoint, dispatch=True, dtype=torch.float32)
    with torch.no_grad():
        values = read(model, int(layer), prompt)
    torch.save(values, out)


if __name__ == "__main__":
    _serve_reference(*sys.argv[1:])
