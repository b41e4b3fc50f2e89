"""Seed-OSS.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM's older block is fused, ``(hidden_states, residual)``; the newer versions run transformers' code on their
Transformers backend.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

SEED_OSS = Family(
    model_types=("seed_oss",),
    vllm=Implementation(
        source="vllm.model_executor.models.seed_oss",
        block="SeedOssDecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.seed_oss.modeling_seed_oss",
        block="SeedOssDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [SEED_OSS]
