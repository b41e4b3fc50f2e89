"""StarCoder2 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestStarcoder2(ConformanceSuite):
    model_type = "starcoder2"
    config = {**SIZES, "pad_token_id": 0}
    variants = {"tied-window": {"tie_word_embeddings": True, "sliding_window": 4}}
