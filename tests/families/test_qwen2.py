"""Qwen2 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestQwen2(ConformanceSuite):
    model_type = "qwen2"
    config = {**SIZES}
    variants = {
        "tied": {"tie_word_embeddings": True},
        "full": {"num_key_value_heads": 4},
        "multi-query": {"num_key_value_heads": 1},
    }
