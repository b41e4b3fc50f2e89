"""GPT-NeoX and Pythia under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestGPTNeoX(ConformanceSuite):
    model_type = "gpt_neox"
    config = {
        **{key: value for key, value in SIZES.items() if key != "num_key_value_heads"},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    }
    no_backend = {"==0.26.*": "vLLM 0.26 does not find the head there, which GPT-NeoX calls embed_out"}
    variants = {"sequential": {"use_parallel_residual": False}}
