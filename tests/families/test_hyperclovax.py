"""HyperCLOVA X under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestHyperCLOVAX(ConformanceSuite):
    model_type = "hyperclovax"
    config = {
        **SIZES,
        "head_dim": 32,
        "embedding_multiplier": 6.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.1,
    }
    variants = {"pre-norm": {"use_post_norm": False}}
    no_backend = "vLLM's Transformers backend leaves out logits_scaling, so its logits are not the model's"
