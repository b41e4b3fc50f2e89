"""OLMo 2 and 3 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestOlmo2(ConformanceSuite):
    model_type = "olmo2"
    config = {**SIZES}


class TestOlmo3(ConformanceSuite):
    model_type = "olmo3"
    config = {
        **SIZES,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    }
