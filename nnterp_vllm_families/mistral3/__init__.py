"""Mistral 3, the multimodal model: its text model is Mistral or Ministral 3.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. The
vision tower and its projector keep their own names.
"""

from nnterp_vllm_core.family import HF_WRAPPED, VLLM_WRAPPED, At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

MISTRAL3 = Family(
    model_types=("mistral3",),
    vllm=Implementation(
        source="vllm.model_executor.models.mistral",
        block="MistralDecoderLayer",
        stream=FusedStream(),
        names=VLLM_WRAPPED,
    ),
    transformers=Implementation(
        source="transformers.models.mistral.modeling_mistral",
        block=("MistralDecoderLayer", "Ministral3DecoderLayer"),
        stream=Stream(),
        names=HF_WRAPPED,
        values={"attention_output": At("self_attn.output", 0)},
    ),
    notes=("Text prompts only: values of a prompt with images have not been compared with transformers.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [MISTRAL3]
