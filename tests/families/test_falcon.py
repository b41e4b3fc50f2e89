"""Falcon under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import ConformanceSuite

CONFIG = {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "new_decoder_architecture": True,
    "ffn_hidden_size": 512,
    "max_position_embeddings": 512,
    "bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
RW = {
    "num_kv_heads": 4,
    "new_decoder_architecture": False,
    "multi_query": False,
    "parallel_attn": False,
    "bias": True,
}
NO_BACKEND = "vLLM's Transformers backend needs transformers' attention interface, which Falcon's code does not use"


class TestFalcon(ConformanceSuite):
    model_type = "falcon"
    config = CONFIG
    no_backend = NO_BACKEND
    variants = {
        "7b": {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True},
        "rw-rotary": {**RW, "alibi": False},
    }


class TestFalconRW(ConformanceSuite):
    """With ALiBi, which transformers' eager attention adds twice."""

    model_type = "falcon"
    config = {**CONFIG, **RW, "alibi": True}
    reference_attention = "sdpa"
    no_backend = NO_BACKEND
