"""Qwen3-VL's text model under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestQwen3VL(ConformanceSuite):
    model_type = "qwen3_vl"
    config = {
        "text_config": {
            **SIZES,
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [4, 6, 6],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": 128,
            "deepstack_visual_indexes": [0, 1],
            "num_position_embeddings": 64,
        },
        "image_token_id": 500,
        "video_token_id": 501,
        "vision_start_token_id": 502,
        "vision_end_token_id": 503,
    }
    needs = ("torchvision",)
    engine_options = {"language_model_only": True}
    no_backend = "the multimodal models of vLLM's Transformers backend have not been tried"
