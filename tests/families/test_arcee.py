"""Arcee under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestArcee(ConformanceSuite):
    model_type = "arcee"
    config = {**SIZES, "head_dim": 32}
