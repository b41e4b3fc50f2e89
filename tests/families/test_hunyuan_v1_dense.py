"""HunYuan under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestHunYuanDense(ConformanceSuite):
    model_type = "hunyuan_v1_dense"
    config = {**SIZES, "head_dim": 32}
    variants = {"tied": {"tie_word_embeddings": True}}
