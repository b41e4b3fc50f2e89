"""Arcee AFM.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

The feed-forward part is ungated and its activation is a squared relu. vLLM's older block is fused, ``(hidden_states,
residual)``; the newer versions run transformers' code on their Transformers backend.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

ARCEE = Family(
    model_types=("arcee",),
    vllm=Implementation(
        source="vllm.model_executor.models.arcee",
        block="ArceeDecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.arcee.modeling_arcee",
        block="ArceeDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [ARCEE]
