"""BLOOM.

    word_embeddings -> word_embeddings_layernorm -> x
    x -> input_layernorm -> self_attention -> + -> post_attention_layernorm -> mlp -> +

``token_embeddings`` are what precedes the first norm. Positions enter as ALiBi. In transformers the modules
``self_attention`` and ``mlp`` add the stream themselves, so their last projections make the contributions.
"""

from dataclasses import replace

from nnterp_vllm_core.family import GPT2_NAMES, LLAMA_BLOCK_NAMES, Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

VLLM = Implementation(
    source="vllm.model_executor.models.bloom",
    block="BloomBlock",
    stream=Stream(enters=Arg(1, "hidden_states")),
    names={**GPT2_NAMES, "embed_tokens": "transformer.word_embeddings"},
    block_names={**LLAMA_BLOCK_NAMES, "self_attn": "self_attention"},
)
HF = replace(
    VLLM,
    source="transformers.models.bloom.modeling_bloom",
    stream=Stream(leaves=0),
    values={"attention_output": At("self_attn.dense.output"), "mlp_output": At("mlp.dense_4h_to_h.output")},
)
BLOOM = Family(
    model_types=("bloom",),
    vllm=VLLM,
    transformers=HF,
    sizes={"intermediate_size": ("4 * hidden_size",)},
    notes=("With apply_residual_connection_post_layernorm the block adds to a norm of the stream, not to the stream.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [BLOOM]
