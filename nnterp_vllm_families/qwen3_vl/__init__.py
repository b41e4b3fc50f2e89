"""The text model of Qwen3-VL.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. Query
and key heads are normed. With an image the model adds visual features to the first blocks' output between blocks; on
text it adds nothing.
"""

from dataclasses import replace

from nnterp_vllm_core.family import HF_WRAPPED, VLLM_WRAPPED, At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

VLLM = Implementation(
    source="vllm.model_executor.models.qwen3_vl",
    block="Qwen3VLDecoderLayer",
    stream=FusedStream(),
    names=VLLM_WRAPPED,
)
# vLLM up to 0.28 builds Qwen3's own blocks here.
VLLM_0_28 = replace(VLLM, source="vllm.model_executor.models.qwen3", block="Qwen3DecoderLayer")
HF = Implementation(
    source="transformers.models.qwen3_vl.modeling_qwen3_vl",
    block="Qwen3VLTextDecoderLayer",
    stream=Stream(),
    names=HF_WRAPPED,
    values={"attention_output": At("self_attn.output", 0)},
)
NOTES = ("Text prompts only: values of a prompt with images have not been compared with transformers.",)
QWEN3_VL = Family(model_types=("qwen3_vl",), vllm=(VLLM, VLLM_0_28), transformers=HF, notes=NOTES)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [QWEN3_VL]
