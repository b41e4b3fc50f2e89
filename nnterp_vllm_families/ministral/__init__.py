"""Ministral.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM has no implementation of its own and runs transformers' on its Transformers backend. Blocks with a sliding window
and blocks without alternate as the config's ``layer_types`` says.
"""

from nnterp_vllm_core.family import At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

MINISTRAL = Family(
    model_types=("ministral",),
    transformers=Implementation(
        source="transformers.models.ministral.modeling_ministral",
        block="MinistralDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [MINISTRAL]
