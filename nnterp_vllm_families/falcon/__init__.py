"""Falcon: 7B and 40B, and Falcon-RW.

    x -> ln_attn -> self_attention -> +        x -> input_layernorm -> self_attention -> +
    x -> ln_mlp --> mlp ------------> +          -> post_attention_layernorm -> mlp ---> +

vLLM adds in place and keeps biases apart until every rank's part is summed; the projections are where a contribution is
whole. Norms are named as the variant has them.
"""

from dataclasses import replace

from nnterp_vllm_core.family import GPT2_NAMES, LLAMA_BLOCK_NAMES, Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

VLLM = Implementation(
    source="vllm.model_executor.models.falcon",
    block="FalconDecoderLayer",
    stream=Stream(enters=Arg(1, "hidden_states")),
    names={**GPT2_NAMES, "embed_tokens": "transformer.word_embeddings"},
    block_names={**LLAMA_BLOCK_NAMES, "self_attn": "self_attention"},
    values={
        "attention_output": At("self_attn.dense.output", 0, plus="self_attention.dense.bias"),
        "mlp_output": At("mlp.dense_4h_to_h.output", 0, plus="mlp.dense_4h_to_h.bias"),
    },
)
SOURCE = "transformers.models.falcon.modeling_falcon"
HF = replace(VLLM, source=SOURCE, stream=Stream(leaves=0), values={"attention_output": At("self_attn.output", 0)})
KV_HEADS = ("num_kv_heads if new_decoder_architecture", "1 if multi_query", "num_attention_heads")
FALCON = Family(
    model_types=("falcon",),
    vllm=VLLM,
    transformers=HF,
    sizes={"num_kv_heads": KV_HEADS, "intermediate_size": ("ffn_hidden_size", "4 * hidden_size")},
    notes=("transformers' eager attention adds ALiBi twice; vLLM agrees with its sdpa attention.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [FALCON]
