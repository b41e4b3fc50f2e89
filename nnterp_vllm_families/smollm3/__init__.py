"""SmolLM3.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM runs transformers' code on its Transformers backend. Every fourth block leaves the rotary embedding out.
"""

from nnterp_vllm_core.family import At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

SMOLLM3 = Family(
    model_types=("smollm3",),
    transformers=Implementation(
        source="transformers.models.smollm3.modeling_smollm3",
        block="SmolLM3DecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [SMOLLM3]
