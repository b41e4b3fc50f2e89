"""Granite 3 (dense).

    embed_tokens * embedding_multiplier -> x
    x -> input_layernorm -> self_attn -> * -> + -> post_attention_layernorm -> mlp -> * -> +

Both contributions are multiplied by ``residual_multiplier``, the scores by ``attention_multiplier``, and the logits are
divided by ``logits_scaling``. vLLM multiplies the embeddings in place.
"""

from dataclasses import replace

from nnterp_vllm_core.family import Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

MLP = {"mlp_output": At("mlp.output", times="residual_multiplier")}
VLLM = Implementation(
    source="vllm.model_executor.models.granite",
    block="GraniteDecoderLayer",
    stream=Stream(enters=Arg(1, "hidden_states")),
    values={
        "token_embeddings": At(".embed_tokens.output", times=".model.config.embedding_multiplier"),
        "attention_output": At("self_attn.output", times="residual_multiplier"),
        **MLP,
    },
)
HF_VALUES = {
    "token_embeddings": At(".embed_tokens.output", times=".model.embedding_multiplier"),
    "attention_output": At("self_attn.output", 0, times="residual_multiplier"),
    **MLP,
}
SOURCE = "transformers.models.granite.modeling_granite"
HF = replace(VLLM, source=SOURCE, stream=Stream(), values=HF_VALUES)
GRANITE = Family(model_types=("granite",), vllm=VLLM, transformers=HF)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GRANITE]
