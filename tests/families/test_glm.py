"""GLM-4 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestGLM(ConformanceSuite):
    model_type = "glm"
    config = {**SIZES, "head_dim": 32, "pad_token_id": 0}
    engines = ("backend",)  # vLLM runs it on its Transformers backend, whatever the module that it shares with Llama
