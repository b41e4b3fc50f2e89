"""Qwen2 and Qwen2.5.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)`` and the
stream is their sum. transformers' block takes and returns the stream.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

QWEN2 = Family(
    model_types=("qwen2",),
    vllm=Implementation(
        source="vllm.model_executor.models.qwen2",
        block="Qwen2DecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.qwen2.modeling_qwen2",
        block="Qwen2DecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [QWEN2]
