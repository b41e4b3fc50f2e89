"""Gemma 3's text model under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestGemma3Text(ConformanceSuite):
    model_type = "gemma3_text"
    config = {
        **SIZES,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 48,
    }
