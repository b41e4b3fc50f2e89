"""EXAONE 4 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestExaone4(ConformanceSuite):
    model_type = "exaone4"
    config = {
        **SIZES,
        "sliding_window": 4,
        "sliding_window_pattern": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    }
    variants = {"no-window": {"sliding_window": None, "layer_types": ["full_attention"] * 4}}
