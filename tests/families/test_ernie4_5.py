"""ERNIE 4.5 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestErnie45(ConformanceSuite):
    model_type = "ernie4_5"
    config = {**SIZES, "head_dim": 32}
    variants = {"tied": {"tie_word_embeddings": True}}
