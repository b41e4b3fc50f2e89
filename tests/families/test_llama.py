"""Llama under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestLlama(ConformanceSuite):
    model_type = "llama"
    config = {**SIZES}
    variants = {"tied": {"tie_word_embeddings": True}}
