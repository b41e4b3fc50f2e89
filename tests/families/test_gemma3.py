"""Gemma 3, the text model alone and inside the multimodal one, under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite

TEXT = {
    **SIZES,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 48,
}


class TestGemma3Text(ConformanceSuite):
    model_type = "gemma3_text"
    config = TEXT


class TestGemma3(ConformanceSuite):
    model_type = "gemma3"
    config = {
        "text_config": TEXT,
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        },
        "mm_tokens_per_image": 4,
        "boi_token_index": 500,
        "eoi_token_index": 501,
        "image_token_index": 502,
    }
    needs = ("torchvision",)
    engine_options = {"language_model_only": True}
    no_backend = "the multimodal models of vLLM's Transformers backend have not been tried"
