"""Phi under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestPhi(ConformanceSuite):
    model_type = "phi"
    config = {**SIZES, "num_key_value_heads": 4}
