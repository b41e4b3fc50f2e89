"""OLMo.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM runs transformers' code on its Transformers backend. The norms are layer norms without weights.
"""

from nnterp_vllm_core.family import At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

OLMO = Family(
    model_types=("olmo",),
    transformers=Implementation(
        source="transformers.models.olmo.modeling_olmo",
        block="OlmoDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [OLMO]
