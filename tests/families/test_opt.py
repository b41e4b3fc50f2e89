"""OPT under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import ConformanceSuite

CONFIG = {
    "vocab_size": 512,
    "hidden_size": 128,
    "ffn_dim": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "word_embed_proj_dim": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}


class TestOPT(ConformanceSuite):
    model_type = "opt"
    config = CONFIG


class TestOPT350m(ConformanceSuite):
    """The one size that norms after each addition, and whose embeddings are narrower than its stream."""

    model_type = "opt"
    config = {**CONFIG, "do_layer_norm_before": False, "word_embed_proj_dim": 64}
    no_identity = "OPT-350m norms the stream after each addition"
    no_backend = {"==0.26.*": "vLLM 0.26 makes the embeddings there as wide as the stream"}
