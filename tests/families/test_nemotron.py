"""Nemotron under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestNemotron(ConformanceSuite):
    model_type = "nemotron"
    config = {**SIZES, "head_dim": 32}
    # The activation is a squared ReLU, and a square doubles what its argument rounds.
    tolerances = dict.fromkeys(
        ("attention_probabilities", "attention_head_outputs"),
        (1.5e-5, "the squared activations carry rounding on: measured up to 1.2e-5 on an H200"),
    )
    no_backend = {"==0.26.*": "vLLM 0.26 gives Nemotron's blocks no attention there"}
    variants = {"biases": {"attention_bias": True, "mlp_bias": True}}
