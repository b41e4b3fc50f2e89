"""Apertus under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestApertus(ConformanceSuite):
    """vLLM computes the softplus of the activation's two numbers in bfloat16; of these it is zero in any dtype."""

    model_type = "apertus"
    config = {**SIZES}
    checkpoint = {"fill": {"act_fn.alpha": -100.0}}


class TestApertusActivation(ConformanceSuite):
    """With numbers whose softplus bfloat16 rounds."""

    model_type = "apertus"
    config = {**SIZES}
    tolerances = {"*": (1.5e-3, "vLLM computes two factors of the activation in bfloat16: measured up to 1.2e-3")}
