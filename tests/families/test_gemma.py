"""Gemma under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestGemma(ConformanceSuite):
    model_type = "gemma"
    config = {**SIZES, "head_dim": 32, "tie_word_embeddings": True}
    variants = {"multi-query": {"num_key_value_heads": 1, "head_dim": 64}}
