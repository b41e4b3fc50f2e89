"""Command R and Command R7B under the conformance suite."""

from __future__ import annotations

from packaging.version import Version

from nnterp_vllm_core.engine import engine_version
from nnterp_vllm_core.testing import SIZES, ConformanceSuite

LONGER = Version(engine_version() or "0") >= Version("0.27")


class TestCohere(ConformanceSuite):
    model_type = "cohere"
    config = {**SIZES, "tie_word_embeddings": True, "logit_scale": 0.5, "use_qk_norm": True}
    variants = {"no-norms": {"use_qk_norm": False}}


class TestCohere2(ConformanceSuite):
    model_type = "cohere2"
    config = {
        **SIZES,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "logit_scale": 0.5,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    }
    # From 0.27 on vLLM's own window is one token longer than what the config says.
    engine_options = {"hf_overrides": {"sliding_window": 4}} if LONGER else {}
    no_backend = "the shorter window that the engine is told is for vLLM's own implementation"
