"""How far a checkpoint's values on an engine are from transformers'.

Every value of one block and the logits: names and residuals, the recomputed interior, the engine's own kernels, and
everything to the end. transformers runs in a process of its own, because vLLM's Transformers backend changes transformers'
classes in place. `StandardizedTransformer` is held against plain hooks and transformers' own records.
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
from .protocol import VALUES

PROMPT = "The Eiffel Tower is in the city of"
#: vLLM as it chooses, vLLM's Transformers backend, or `StandardizedTransformer`.
ENGINES = ("vllm", "backend", "transformers")
#: What either side may compute in. The reference is float32 in any case.
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One compared value.

    Attributes:
        value: Its name.
        shape: Its shape on both engines.
        gap: The largest difference from transformers in float32, over transformers' largest magnitude.
        own: The same of transformers itself in the engine's dtype; ``None`` where that is float32.
    """

    value: str
    shape: tuple[int, ...]
    gap: float
    own: float | None = None


def agreement(
    checkpoint: str,
    layer: int | None = None,
    prompt: str = PROMPT,
    engine: str = "vllm",
    dtype: str = "float32",
    float32_products: str = "ieee",
) -> list[Line]:
    """Compare the values of one block, and the logits, with those of transformers in float32.

    transformers runs on the CUDA device where there is one, before the engine takes its memory, and on the CPU otherwise.

    Args:
        checkpoint: A repo id or a checkpoint folder.
        layer: The block; the middle one by default.
        prompt: What both run.
        engine: One of `ENGINES`.
        dtype: What the engine computes in, one of `DTYPES`.
        float32_products: As for `StandardizedVLLM`, on CUDA in float32.

    Raises:
        NnterpVLLMError: transformers could not compute the reference, or the shapes differ. The checkpoint's own errors
            are those of `StandardizedVLLM`.
        ValueError: There is no such engine or dtype, or the dtype is not float32 where plain hooks are the reference.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: expected one of {ENGINES}.")
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: expected one of {DTYPES}.")
    if engine == "transformers":
        if dtype != "float32":
            raise ValueError(f"dtype={dtype!r}: the engine 'transformers' is compared with plain hooks in float32.")
        found = _reference(checkpoint, layer, prompt, "independent")
        return _compared(found["ours"], found["independent"])

    from .model import StandardizedVLLM

    options: dict[str, Any] = {"model_impl": "transformers"} if engine == "backend" else {}
    options["float32_products"] = float32_products
    model = StandardizedVLLM(checkpoint, dtype=dtype, max_model_len=256, **options)
    index = _middle(model, layer)
    reference = _reference(checkpoint, index, prompt)["ours"]
    own = None if dtype == "float32" else _reference(checkpoint, index, prompt, dtype)["ours"]
    return _compared(read(model, index, prompt, temperature=0.0, max_tokens=1), reference, own)


def _middle(model: Any, layer: int | None) -> int:
    index: int = model._layer_index(model.num_layers // 2 if layer is None else layer)
    return index


def read(model: Any, layer: int, prompt: str, **settings: Any) -> dict[str, Any]:
    """The values of one block in one prefill, on either engine, on the CPU; of the logits the last position.

    Scores are left out: a mask's lowest number would be their scale, and the pattern tells the same.
    """
    import nnsight

    from .testing.blocks import places

    here = f"layers.{layer}."
    chosen = [place for place in places(model) if place.key.startswith(here) or place.key == "logits"]
    asked = [(one.name, one.envoy) for one in chosen if one.missing is None and one.name != "attention_scores"]
    with model.trace(prompt, **settings):
        found = nnsight.save({})
        for name, envoy in asked:
            found[name] = getattr(envoy, name)
    values = {name: value.detach().float().cpu() for name, value in dict(found).items()}
    return {**values, "logits": values["logits"][:, -1:]}


def _reference(checkpoint: str, layer: int | None, prompt: str, how: str = "float32") -> dict[str, Any]:
    """What `StandardizedTransformer` reads in a dtype, ``ours``; ``independent``: also what plain hooks record."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "reference.pt"
        command = [sys.executable, "-m", __name__, checkpoint, str(layer), prompt, str(out), how]
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NnterpVLLMError(
                f"transformers could not compute the reference of {checkpoint!r}; its process ended with "
                f"{done.stderr.strip().splitlines()[-1:]!r}. Run `{' '.join(command[:4])} ...` to see all of it."
            )
        values: dict[str, Any] = torch.load(out)
    return values


def _compared(ours: dict[str, Any], theirs: dict[str, Any], own: dict[str, Any] | None = None) -> list[Line]:
    lines = []
    for value in (name for name in VALUES if name in ours and name in theirs):
        if ours[value].shape != theirs[value].shape:
            raise NnterpVLLMError(
                f"{value} is {tuple(ours[value].shape)} on this engine and {tuple(theirs[value].shape)} on transformers. "
                f"The family's declaration reads it at another place on one of them."
            )
        gaps = [_gap(side[value], theirs[value]) for side in (ours, own) if side is not None]
        lines.append(Line(value=value, shape=tuple(ours[value].shape), gap=gaps[0], own=gaps[1] if gaps[1:] else None))
    return lines


def _gap(ours: Any, theirs: Any) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))


def _serve_reference(checkpoint: str, layer: str, prompt: str, out: str, how: str) -> None:
    import torch

    from .transformers_model import StandardizedTransformer

    independent = how == "independent"
    dtype = torch.float32 if independent else getattr(torch, how)
    # Plain hooks run on the CPU, and beside them this engine does too; left to itself it would take a device.
    place: dict[str, Any] = {"device_map": "cpu" if independent else "cuda"} if torch.cuda.is_available() else {}
    model = StandardizedTransformer(checkpoint, dispatch=True, dtype=dtype, **place)
    index = _middle(model, None if layer == "None" else int(layer))
    with torch.no_grad():
        found = {"ours": read(model, index, prompt)}
    if independent:
        found["independent"] = _recorded(checkpoint, model, index, prompt)
    torch.save(found, out)


def _recorded(checkpoint: str, model: Any, layer: int, prompt: str) -> dict[str, Any]:
    from .testing.oracle import Oracle

    seen = Oracle(checkpoint, model.family.transformers).values(model.tokenizer(prompt)["input_ids"])
    here = f"layers.{layer}."
    found = {key.rpartition(".")[2]: value for key, value in seen.items() if key.startswith(here) or key == "logits"}
    return {name: value for name, value in found.items() if name in VALUES}


if __name__ == "__main__":
    _serve_reference(*sys.argv[1:])
