"""MPT.

    x -> norm_1 -> attn -> + -> norm_2 -> ffn -> +

Positions enter as ALiBi, and the head is the embedding. In transformers ``ffn`` adds the stream itself, so its last
projection makes the contribution. vLLM runs MPT up to 0.28.
"""

from dataclasses import replace

from nnterp_vllm_core.family import GPT2_NAMES, Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

VLLM = Implementation(
    source="vllm.model_executor.models.mpt",
    block="MPTBlock",
    stream=Stream(enters=Arg(1, "hidden_states")),
    names={**GPT2_NAMES, "layers": "transformer.blocks", "norm": "transformer.norm_f"},
    block_names={"self_attn": "attn", "mlp": "ffn", "input_layernorm": "norm_1", "post_attention_layernorm": "norm_2"},
)
HF = replace(
    VLLM,
    source="transformers.models.mpt.modeling_mpt",
    block="MptBlock",
    stream=Stream(leaves=0),
    values={"attention_output": At("self_attn.output", 0), "mlp_output": At("mlp.down_proj.output")},
    head=(),
)
MPT = Family(
    model_types=("mpt",),
    vllm=VLLM,
    transformers=HF,
    sizes={"intermediate_size": ("expansion_ratio * hidden_size",)},
    validated=">=0.26,<0.29",
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [MPT]
