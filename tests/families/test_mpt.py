"""MPT under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.testing import ConformanceSuite


class TestMPT(ConformanceSuite):
    model_type = "mpt"
    config = {"vocab_size": 512, "d_model": 128, "n_heads": 4, "n_layers": 4, "max_seq_len": 512}
    no_backend = "vLLM ran MPT until 0.28 and its Transformers backend does not"
