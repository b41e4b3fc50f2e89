"""StarCoder, SantaCoder (GPT-BigCode).

    x -> ln_1 -> attn -> + -> ln_2 -> mlp -> +

vLLM runs transformers' code on its Transformers backend. Positions are learned; all query heads share one key and value
head where ``multi_query`` is set.
"""

from nnterp_vllm_core.family import GPT2_BLOCK_NAMES, GPT2_NAMES, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

GPT_BIGCODE = Family(
    model_types=("gpt_bigcode",),
    transformers=Implementation(
        source="transformers.models.gpt_bigcode.modeling_gpt_bigcode",
        block="GPTBigCodeBlock",
        stream=Stream(),
        names=GPT2_NAMES,
        block_names=GPT2_BLOCK_NAMES,
        values={"attention_output": At("self_attn.output", 0)},
    ),
    sizes={
        "num_kv_heads": ("1 if multi_query", "num_attention_heads"),
        "intermediate_size": ("n_inner", "4 * hidden_size"),
    },
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GPT_BIGCODE]
