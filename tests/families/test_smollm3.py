"""SmolLM3 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestSmolLM3(ConformanceSuite):
    model_type = "smollm3"
    config = {**SIZES, "pad_token_id": 0}
