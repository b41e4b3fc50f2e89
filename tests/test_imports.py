"""What is data loads without what is heavy: a laptop lists families and reads declarations in milliseconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "nnsight", "transformers")
LIGHT = (
    "nnterp_vllm_core",
    "nnterp_vllm_core.protocol",
    "nnterp_vllm_core.family",
    "nnterp_vllm_core.errors",
    "nnterp_vllm_core.hookspecs",
    "nnterp_vllm_core.loader",
    "nnterp_vllm_core.guard",
    "nnterp_vllm_core.checkpoint",
    "nnterp_vllm_core.names",
    "nnterp_vllm_families.qwen2",
    "nnterp_vllm_families.llama",
    "nnterp_vllm_families.gpt2",
)


@pytest.mark.parametrize("module", LIGHT)
def test_a_data_module_loads_nothing_heavy(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_every_public_name_is_there() -> None:
    import nnterp_vllm_core

    assert set(nnterp_vllm_core.__all__) <= set(dir(nnterp_vllm_core))
    for name in nnterp_vllm_core.__all__:
        assert getattr(nnterp_vllm_core, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'StandardisedVLLM'"):
        _ = nnterp_vllm_core.StandardisedVLLM
