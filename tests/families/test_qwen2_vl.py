"""Qwen2-VL's and Qwen2.5-VL's text models under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite

TEXT = {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}}
TOKENS = {"image_token_id": 500, "video_token_id": 501, "vision_start_token_id": 502, "vision_end_token_id": 503}


class TestQwen2VL(ConformanceSuite):
    model_type = "qwen2_vl"
    config = {
        "text_config": TEXT,
        "vision_config": {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2},
        **TOKENS,
    }
    needs = ("torchvision",)
    engine_options = {"language_model_only": True}
    no_backend = "the multimodal models of vLLM's Transformers backend have not been tried"


class TestQwen25VL(ConformanceSuite):
    model_type = "qwen2_5_vl"
    config = {
        "text_config": TEXT,
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": 128,
            "fullatt_block_indexes": [1],
        },
        **TOKENS,
    }
    needs = ("torchvision",)
    engine_options = {"language_model_only": True}
    no_backend = "the multimodal models of vLLM's Transformers backend have not been tried"
