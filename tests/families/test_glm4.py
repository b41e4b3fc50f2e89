"""GLM-4-0414 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestGLM4(ConformanceSuite):
    model_type = "glm4"
    config = {**SIZES, "head_dim": 32, "pad_token_id": 0}
    variants = {"biases": {"attention_bias": True}}
