"""Llama under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestLlama(ConformanceSuite):
    model_type = "llama"
    config = {**SIZES, "head_dim": 32}
    variants = {
        "tied": {"tie_word_embeddings": True},
        "biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 64},
    }
