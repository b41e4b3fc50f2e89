"""HunYuan under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestHunYuanDense(ConformanceSuite):
    model_type = "hunyuan_v1_dense"
    config = {**SIZES, "head_dim": 32}
    variants = {"tied": {"tie_word_embeddings": True}}
    # Up to 0.28 vLLM's own implementation norms queries and keys only where the config says so.
    checkpoint = {"raw": {"use_qk_norm": True}}
