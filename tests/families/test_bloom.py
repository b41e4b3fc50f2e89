"""BLOOM under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import ConformanceSuite

CONFIG = {"vocab_size": 512, "hidden_size": 128, "n_layer": 4, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
NO_BACKEND = "vLLM's Transformers backend needs transformers' attention interface, which BLOOM's code does not use"


class TestBloom(ConformanceSuite):
    """vLLM computes GELU by erf and transformers by tanh; so close to zero the two are one number."""

    model_type = "bloom"
    config = CONFIG
    checkpoint = {"scale": {"dense_h_to_4h": 0.02}}
    no_backend = NO_BACKEND


class TestBloomActivation(ConformanceSuite):
    """With activations of the usual size."""

    model_type = "bloom"
    config = CONFIG
    tolerances = {"*": (4e-4, "vLLM computes GELU by erf and transformers by tanh: measured up to 3.6e-4")}
    no_backend = NO_BACKEND
