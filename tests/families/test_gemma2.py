"""Gemma 2 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestGemma2(ConformanceSuite):
    model_type = "gemma2"
    config = {
        **SIZES,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 48,
        "final_logit_softcapping": 3.0,
        "attn_logit_softcapping": 5.0,
    }
    no_backend = {
        "==0.26.*": "vLLM 0.26's Transformers backend leaves out final_logit_softcapping, so its logits are not the model's"
    }
    variants = {"no-caps": {"final_logit_softcapping": None, "attn_logit_softcapping": None}}
