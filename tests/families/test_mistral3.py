"""Mistral 3's text models under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite

VISION = {
    "model_type": "pixtral",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 32,
    "image_size": 32,
    "patch_size": 8,
}


class TestMistral3(ConformanceSuite):
    model_type = "mistral3"
    config = {
        "text_config": {**SIZES, "model_type": "mistral", "head_dim": 32, "sliding_window": None},
        "vision_config": VISION,
        "image_token_index": 502,
        "tie_word_embeddings": False,
    }
    needs = ("torchvision",)
    engine_options = {"language_model_only": True}
    no_vllm = {"==0.26.*": "vLLM 0.26's Pixtral code, which its Mistral 3 imports, does not import with transformers 5.19"}
    no_backend = "the multimodal models of vLLM's Transformers backend have not been tried"
