"""The text models of Qwen2-VL and Qwen2.5-VL, which vLLM runs on Qwen2's classes.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. The
vision tower keeps its own name. The rotary embedding has three sections; on text all three hold the same positions.
"""

from dataclasses import replace

from nnterp_vllm_core.family import HF_WRAPPED, VLLM_WRAPPED, At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

VLLM = Implementation(
    source="vllm.model_executor.models.qwen2",
    block="Qwen2DecoderLayer",
    stream=FusedStream(),
    names=VLLM_WRAPPED,
)
HF = Implementation(
    source="transformers.models.qwen2_vl.modeling_qwen2_vl",
    block="Qwen2VLDecoderLayer",
    stream=Stream(),
    names=HF_WRAPPED,
    values={"attention_output": At("self_attn.output", 0)},
)
HF_2_5 = replace(HF, source="transformers.models.qwen2_5_vl.modeling_qwen2_5_vl", block="Qwen2_5_VLDecoderLayer")
NOTES = ("Text prompts only: values of a prompt with images have not been compared with transformers.",)
QWEN2_VL = Family(model_types=("qwen2_vl",), vllm=VLLM, transformers=HF, notes=NOTES)
QWEN2_5_VL = Family(model_types=("qwen2_5_vl",), vllm=VLLM, transformers=HF_2_5, notes=NOTES)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [QWEN2_VL, QWEN2_5_VL]
