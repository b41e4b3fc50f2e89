"""Llama declared wrongly, once each way that a declaration can be wrong, each under the conformance suite.

Run by ``test_conformance.py`` in a pytest of its own; every class but the last has to fail there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nnterp_vllm_core.family import Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.testing import SIZES, ConformanceSuite
from nnterp_vllm_families.llama import LLAMA


def native(**changes: Any) -> Family:
    """Llama with vLLM's side changed."""
    implementation = LLAMA.native[0]
    return replace(LLAMA, vllm=replace(implementation, **changes))


def other(**changes: Any) -> Family:
    """Llama with transformers' side changed."""
    assert isinstance(LLAMA.transformers, Implementation)
    return replace(LLAMA, transformers=replace(LLAMA.transformers, **changes))


class Planted(ConformanceSuite):
    """What the classes below share."""

    model_type = "llama"
    config = {**SIZES}
    engines = ("vllm",)


class TestNorm(Planted):
    family = native(values={"attention_output": At("post_attention_layernorm.output", 0)})


class TestHalfAStream(Planted):
    family = native(stream=Stream(enters=Arg(1, "hidden_states"), leaves=0))


class TestFactor(Planted):
    family = native(values={"mlp_output": At("mlp.output", times=2.0)})


class TestNoLastNorm(Planted):
    family = native(before_head=())


class TestMixedUpArguments(Planted):
    family = native(values={"attention_keys": At("self_attn.attn.input", Arg(2, "value"))})


class TestSize(Planted):
    family = replace(LLAMA, sizes={"num_kv_heads": ("num_attention_heads",)})


class TestTransformersPlace(Planted):
    family = other(values={"attention_output": At("post_attention_layernorm.output")})


class TestTransformersFactor(Planted):
    family = other(values={"attention_output": At("self_attn.output", 0), "mlp_output": At("mlp.output", times=2.0)})


class TestBound(Planted):
    """Declared rightly, with a bound that cannot hold."""

    tolerances = {"layer_output": (1e-12, "planted")}


class TestRight(Planted):
    """Declared rightly."""
