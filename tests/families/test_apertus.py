"""Apertus under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestApertus(ConformanceSuite):
    model_type = "apertus"
    config = {**SIZES}
    # vLLM keeps the activation's two numbers in bfloat16 whatever the model's dtype.
    checkpoint = {"bfloat16": ("act_fn.alpha",)}
