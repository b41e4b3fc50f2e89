"""Gemma 2.

    embed_tokens * sqrt(hidden) -> x
    x -> input_layernorm -> self_attn -> post_attention_layernorm -> +
      -> pre_feedforward_layernorm -> mlp -> post_feedforward_layernorm -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. Each
contribution passes a norm of its own before it is added. Scores and logits are softly capped, and every other block has
a sliding window. Embeddings are scaled after ``embed_tokens`` in vLLM and inside it in transformers.
"""

from nnterp_vllm_core.family import TIED_NAMES, At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

CONTRIBUTIONS = {
    "attention_output": At("post_attention_layernorm.output"),
    "mlp_output": At("post_feedforward_layernorm.output"),
}
GEMMA2 = Family(
    model_types=("gemma2",),
    vllm=Implementation(
        source="vllm.model_executor.models.gemma2",
        block="Gemma2DecoderLayer",
        stream=FusedStream(),
        names=TIED_NAMES,
        values={**CONTRIBUTIONS, "token_embeddings": At(".embed_tokens.output", times=".model.normalizer")},
    ),
    transformers=Implementation(
        source="transformers.models.gemma2.modeling_gemma2",
        block="Gemma2DecoderLayer",
        stream=Stream(),
        values=CONTRIBUTIONS,
    ),
    notes=("vLLM's model has no lm_head module: its head is embed_tokens. Use project_on_vocab.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GEMMA2]
