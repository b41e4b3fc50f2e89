"""Ministral under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite

LAYERS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]


class TestMinistral(ConformanceSuite):
    model_type = "ministral"
    config = {**SIZES, "head_dim": 32, "sliding_window": 4, "layer_types": LAYERS}
