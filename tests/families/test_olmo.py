"""OLMo under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestOlmo(ConformanceSuite):
    model_type = "olmo"
    config = {**SIZES}
    variants = {"tied-clipped": {"tie_word_embeddings": True, "clip_qkv": 0.5}}
