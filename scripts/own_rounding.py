"""How far transformers' float32 is from its own float64: what an engine that sums in another order cannot be held below.

    python scripts/own_rounding.py nemotron llama olmo

For each family's conformance classes and their variants, the largest difference of each value over all layers, relative to
the value's largest magnitude, for the suite's longest prompt.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from nnterp_vllm_core import loader
from nnterp_vllm_core.protocol import VALUES
from nnterp_vllm_core.testing import ConformanceSuite, tiny
from nnterp_vllm_core.testing.case import prompts
from nnterp_vllm_core.testing.oracle import Oracle

TESTS = Path(__file__).resolve().parent.parent / "tests" / "families"


def classes(family: str) -> list[type[ConformanceSuite]]:
    """The family's classes in its test file."""
    spec = importlib.util.spec_from_file_location(family, TESTS / f"test_{family}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, ConformanceSuite)]
    return [one for one in own if one is not ConformanceSuite]


def rounding(suite: type[ConformanceSuite], variant: str, folder: Path) -> dict[str, float]:
    """The largest gap of each value."""
    config = {**suite.config, **suite.variants.get(variant, {})}
    checkpoint = tiny(suite.model_type, folder, **suite.checkpoint, **config)
    declared = loader.find(suite.model_type).family.transformers
    assert declared is not None
    single, double = (Oracle(str(checkpoint), declared) for _ in range(2))
    double.model.double()
    ids = prompts(config)[-1]
    found, expected = single.values(ids), double.values(ids)
    gaps: dict[str, float] = {}
    for key in sorted(found.keys() & expected.keys()):
        name = key.rpartition(".")[2]
        ours, theirs = found[key].double(), expected[key].double()
        if name in VALUES and ours.shape == theirs.shape:
            gaps[name] = max(gaps.get(name, 0.0), float((ours - theirs).abs().max() / theirs.abs().max()))
    return gaps


def main(families: list[str]) -> None:
    torch.set_num_threads(1)
    for family in families:
        for suite in classes(family):
            for variant in ("", *suite.variants):
                with tempfile.TemporaryDirectory() as folder:
                    gaps = rounding(suite, variant, Path(folder) / "checkpoint")
                shown: Any = ", ".join(f"{name} {gap:.1e}" for name, gap in sorted(gaps.items(), key=lambda one: -one[1]))
                print(f"{suite.__name__} {variant}: {shown}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["llama"])
