"""Nemotron under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestNemotron(ConformanceSuite):
    model_type = "nemotron"
    config = {**SIZES, "head_dim": 32}
    variants = {"biases": {"attention_bias": True, "mlp_bias": True}}
