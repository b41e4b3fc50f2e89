"""Mistral and Ministral 3 under the conformance suite."""

from __future__ import annotations

from nnterp_vllm_core.engine import engine_version
from nnterp_vllm_core.testing import SIZES, ConformanceSuite

#: Its first context is shorter than the suite's longest prompt, past which queries are scaled.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
    "max_position_embeddings": 512,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
if (engine_version() or "").startswith("0.26."):
    # There vLLM takes neither and scales by what YaRN gives without them.
    del YARN["mscale"], YARN["mscale_all_dim"]


class TestMistral(ConformanceSuite):
    model_type = "mistral"
    config = {**SIZES, "head_dim": 32, "sliding_window": 4}
    variants = {"no-window": {"sliding_window": None, "head_dim": 64}}


class TestMinistral3(ConformanceSuite):
    model_type = "ministral3"
    config = {**SIZES, "head_dim": 32, "rope_parameters": YARN}
    # vLLM takes the scaling of queries from this key alone, transformers from the one above.
    checkpoint = {"raw": {"llama_4_scaling": {"original_max_position_embeddings": 32, "beta": 0.1}}}
