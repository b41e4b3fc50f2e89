"""StableLM under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestStableLM(ConformanceSuite):
    model_type = "stablelm"
    config = {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    variants = {"biases": {"use_qkv_bias": True}}
    # vLLM reads the factor under its older name too.
    checkpoint = {"raw": {"partial_rotary_factor": 0.5}}
    no_backend = {"==0.26.*": "vLLM 0.26 refuses StableLM on its Transformers backend"}


class TestStableLMParallel(ConformanceSuite):
    """Both parts read one norm, and query and key heads are normed: transformers' code alone loads such checkpoints."""

    model_type = "stablelm"
    config = {**TestStableLM.config, "use_parallel_residual": True, "qk_layernorm": True}
    engines = ("backend",)
    no_backend = TestStableLM.no_backend
