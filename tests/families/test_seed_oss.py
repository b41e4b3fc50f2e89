"""Seed-OSS under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestSeedOss(ConformanceSuite):
    model_type = "seed_oss"
    config = {**SIZES, "head_dim": 32}
