"""Hunyuan 1 (dense).

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

Query and key heads are normed after the rotary embedding. vLLM's older block is fused and returns ``(hidden_states,
residual, keys and values)``; the newer versions run transformers' code on their Transformers backend.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

HUNYUAN = Family(
    model_types=("hunyuan_v1_dense",),
    vllm=Implementation(
        source="vllm.model_executor.models.hunyuan_v1",
        block="HunYuanDecoderLayer",
        stream=FusedStream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
    transformers=Implementation(
        source="transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense",
        block="HunYuanDenseV1DecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [HUNYUAN]
