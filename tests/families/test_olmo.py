"""OLMo under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestOlmo(ConformanceSuite):
    model_type = "olmo"
    config = {**SIZES}
    tolerances = {"backend:attention_values": (1.5e-5, "sums of another order, measured up to 1.1e-5 on an H200")}
    variants = {"tied-clipped": {"tie_word_embeddings": True, "clip_qkv": 0.5}}
