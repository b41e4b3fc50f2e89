"""GPT-J under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import GPT2_SIZES, ConformanceSuite


class TestGPTJ(ConformanceSuite):
    model_type = "gptj"
    config = {**GPT2_SIZES, "rotary_dim": 16, "tie_word_embeddings": False}
    no_backend = "vLLM's Transformers backend needs transformers' attention interface, which GPT-J's code does not use"
