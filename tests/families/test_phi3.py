"""Phi-3 and Phi-4 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestPhi3(ConformanceSuite):
    model_type = "phi3"
    config = {**SIZES, "sliding_window": None, "pad_token_id": 0}
    variants = {"tied-window": {"tie_word_embeddings": True, "sliding_window": 4}}
