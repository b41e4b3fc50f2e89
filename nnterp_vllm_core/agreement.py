"""How far a checkpoint's values on an engine are from transformers'.

Four values tell most of what can go wrong: a block's stream (names and residuals), its attention pattern (the recomputed
interior), its head outputs (the engine's own kernel) and the logits (everything to the end). transformers runs in a process
of its own, because vLLM's Transformers backend changes transformers' classes in place. `StandardizedTransformer` is held
against plain hooks and transformers' own records.
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
#: vLLM as it chooses, vLLM's Transformers backend, or `StandardizedTransformer`.
ENGINES = ("vllm", "backend", "transformers")
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


def agreement(checkpoint: str, layer: int | None = None, prompt: str = PROMPT, engine: str = "vllm") -> list[Line]:
    """Run a checkpoint on an engine and on transformers, in float32, and compare ``VALUES`` of one block.

    Args:
        checkpoint: A repo id or a checkpoint folder.
        layer: The block; the middle one by default.
        prompt: What both run.
        engine: One of `ENGINES`.

    Raises:
        NnterpVLLMError: transformers could not compute the reference, or the shapes differ. The checkpoint's own errors
            are those of `StandardizedVLLM`.
        ValueError: There is no such engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: expected one of {ENGINES}.")
    if engine == "transformers":
        found = _reference(checkpoint, layer, prompt, independent=True)
        ours, theirs = found["ours"], found["independent"]
    else:
        from .model import StandardizedVLLM

        options: dict[str, Any] = {"model_impl": "transformers"} if engine == "backend" else {}
        model = StandardizedVLLM(checkpoint, dispatch=True, dtype="float32", max_model_len=256, **options)
        ours = read(model, _middle(model, layer), prompt, temperature=0.0, max_tokens=1)
        theirs = _reference(checkpoint, layer, prompt)["ours"]
    return [_compared(value, ours[value], theirs[value]) for value in VALUES if value in theirs]


def _middle(model: Any, layer: int | None) -> int:
    index: int = model._layer_index(model.num_layers // 2 if layer is None else layer)
    return index


def read(model: Any, layer: int, prompt: str, **settings: Any) -> dict[str, Any]:
    """``VALUES`` of one prefill, on either engine, on the CPU; of the logits the last position."""
    block = model.layers[layer]
    with model.trace(prompt, **settings):
        pattern = block.self_attn.attention_probabilities.save()
        heads = block.self_attn.attention_head_outputs.save()
        stream = block.layer_output.save()
        logits = model.logits[:, -1:].save()
    return {name: one.detach().cpu() for name, one in zip(VALUES, (stream, pattern, heads, logits), strict=True)}


def _reference(checkpoint: str, layer: int | None, prompt: str, *, independent: bool = False) -> dict[str, Any]:
    """What `StandardizedTransformer` reads, ``ours``; if wanted, also what plain hooks record, ``independent``."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "reference.pt"
        command = [sys.executable, "-m", __name__, checkpoint, str(layer), prompt, str(out), str(independent)]
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
            f"{value} is {tuple(ours.shape)} on this engine and {tuple(theirs.shape)} on transformers. The family's "
            f"declaration reads it at another place on one of them."
        )
    largest = theirs.abs().max().clamp_min(1e-30)
    return Line(value=value, shape=tuple(ours.shape), gap=float((ours - theirs).abs().max() / largest))


def _serve_reference(checkpoint: str, layer: str, prompt: str, out: str, independent: str) -> None:
    import torch

    from .transformers_model import StandardizedTransformer

    model = StandardizedTransformer(checkpoint, dispatch=True, dtype=torch.float32)
    index = _middle(model, None if layer == "None" else int(layer))
    with torch.no_grad():
        found = {"ours": read(model, index, prompt)}
    if independent == "True":
        found["independent"] = _recorded(checkpoint, model, index, prompt)
    torch.save(found, out)


def _recorded(checkpoint: str, model: Any, layer: int, prompt: str) -> dict[str, Any]:
    from .testing.oracle import Oracle

    seen = Oracle(checkpoint, model.family.transformers).values(model.tokenizer(prompt)["input_ids"])
    places = {"layer_output": f"layers.{layer}.layer_output", "logits": "logits"}
    for value in ("attention_probabilities", "attention_head_outputs"):
        places[value] = f"layers.{layer}.self_attn.{value}"
    return {value: seen[place] for value, place in places.items() if place in seen}


if __name__ == "__main__":
    _serve_reference(*sys.argv[1:])
