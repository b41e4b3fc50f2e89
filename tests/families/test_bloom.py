"""BLOOM under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import ConformanceSuite


class TestBloom(ConformanceSuite):
    model_type = "bloom"
    config = {"vocab_size": 512, "hidden_size": 128, "n_layer": 4, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    no_backend = "vLLM's Transformers backend needs transformers' attention interface, which BLOOM's code does not use"
