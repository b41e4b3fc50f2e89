"""Gemma.

    embed_tokens * sqrt(hidden) -> x
    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. It
scales the embedded tokens after ``embed_tokens``, and transformers inside it; ``token_embeddings`` are the scaled ones
on both. Norms multiply by ``1 + weight``.
"""

from nnterp_vllm_core.family import TIED_NAMES, At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

GEMMA = Family(
    model_types=("gemma",),
    vllm=Implementation(
        source="vllm.model_executor.models.gemma",
        block="GemmaDecoderLayer",
        stream=FusedStream(),
        names=TIED_NAMES,
        values={"token_embeddings": At(".embed_tokens.output", times=".model.normalizer")},
    ),
    transformers=Implementation(
        source="transformers.models.gemma.modeling_gemma",
        block="GemmaDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GEMMA]
