"""Qwen3 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestQwen3(ConformanceSuite):
    model_type = "qwen3"
    config = {**SIZES, "head_dim": 64}
    variants = {"tied": {"tie_word_embeddings": True}}
