"""GPT2 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import GPT2_SIZES, ConformanceSuite


class TestGPT2(ConformanceSuite):
    model_type = "gpt2"
    config = {**GPT2_SIZES}
    variants = {"tied": {"tie_word_embeddings": True}}
    no_backend = "vLLM does not load the biases of c_attn there"
