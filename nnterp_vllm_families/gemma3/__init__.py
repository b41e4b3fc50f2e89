"""Gemma 3: the text model, and the same model inside the multimodal one.

    embed_tokens * sqrt(hidden) -> x
    x -> input_layernorm -> self_attn -> post_attention_layernorm -> +
      -> pre_feedforward_layernorm -> mlp -> post_feedforward_layernorm -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``.
Contributions are normed before they are added, queries and keys before the rotary embedding. Embeddings are scaled as
in Gemma 2; most blocks have a window.
"""

from dataclasses import replace

from nnterp_vllm_core.family import HF_WRAPPED, VLLM_WRAPPED, At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

CONTRIBUTIONS = {
    "attention_output": At("post_attention_layernorm.output"),
    "mlp_output": At("post_feedforward_layernorm.output"),
}
EMBEDDINGS = ".embed_tokens.output"
VLLM = Implementation(
    source="vllm.model_executor.models.gemma3",
    block="Gemma3DecoderLayer",
    stream=FusedStream(),
    values={**CONTRIBUTIONS, "token_embeddings": At(EMBEDDINGS, times=".model.normalizer")},
)
VALUES = {**CONTRIBUTIONS, "token_embeddings": At(EMBEDDINGS, times=".language_model.model.normalizer")}
WRAPPED = replace(VLLM, names=VLLM_WRAPPED, values=VALUES)
HF = replace(VLLM, source="transformers.models.gemma3.modeling_gemma3", stream=Stream(), values=CONTRIBUTIONS)
NOTES = ("Text prompts only: values of a prompt with images have not been compared with transformers.",)
WRAPPED_HF = replace(HF, names=HF_WRAPPED)
TEXT = Family(model_types=("gemma3_text",), vllm=VLLM, transformers=HF)
MULTIMODAL = Family(model_types=("gemma3",), vllm=WRAPPED, transformers=WRAPPED_HF, notes=NOTES)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [TEXT, MULTIMODAL]
