"""GPT-BigCode and SantaCoder under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import GPT2_SIZES, ConformanceSuite


class TestGPTBigCode(ConformanceSuite):
    model_type = "gpt_bigcode"
    config = {**GPT2_SIZES, "multi_query": True}
    variants = {"full": {"multi_query": False}}
