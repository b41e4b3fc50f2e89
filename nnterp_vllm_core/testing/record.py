"""The validation record: how far each value of a tested model was from transformers, one JSON line a model.

Written when ``NNTERP_VLLM_RECORD`` names a file; ``scripts/validation.py`` turns the lines into the record that the
documentation and ``nnterp-vllm families`` show.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .compare import gap

VARIABLE = "NNTERP_VLLM_RECORD"


def record(subject: Any, ours: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor]) -> None:
    """Append one model's largest gap of each value, over its layers, relative to the value's largest magnitude."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    gaps: dict[str, float] = {}
    for key in sorted(ours.keys() & reference.keys()):
        name = key.rpartition(".")[2]
        if ours[key].shape != reference[key].shape or not ours[key].is_floating_point() or name == "attention_scores":
            continue  # a mask's lowest number would be the scale of the scores; the pattern tells the same
        gaps[name] = max(gaps.get(name, 0.0), gap(ours[key], reference[key]))
    line = {
        "model_type": subject.suite.model_type,
        "variant": " ".join(part for part in (_name(subject), subject.case.variant) if part),
        "family": subject.model.family.__name__,
        "engine": subject.engine,
        "block": f"{_block(subject)}",
        "vllm": _version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "dtype": "float32",
        "note": _note(subject),
        "gaps": {name: float(f"{value:.2e}") for name, value in gaps.items()},
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _name(subject: Any) -> str:
    """The class's name where it is not that of the model: one model may have several classes, each its own checkpoint."""
    name = str(subject.suite.__name__.removeprefix("Test"))
    plain = "".join(part for part in subject.suite.model_type if part.isalnum())
    return "" if name.lower() == plain.lower() else name


def _note(subject: Any) -> str:
    """What tells this class from another of its model: options of the engine, and why it is held to wider bounds."""
    options = [f"{name}={value!r}" for name, value in subject.suite.engine_options.items()]
    prefix = "" if subject.engine == "vllm" else f"{subject.engine}:"
    bounds = subject.suite.tolerances.items()
    reasons = [reason for key, (_, reason) in bounds if key.startswith(prefix) and (prefix or ":" not in key)]
    return "; ".join(dict.fromkeys((*options, *reasons)))


def _block(subject: Any) -> str:
    block = type(subject.model.layers[0]._module)
    return f"{block.__module__}.{block.__name__}"


def _version() -> str:
    import vllm

    return str(vllm.__version__)
