"""Qwen3.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``.
``self_attn`` norms each query and key head before the rotary embedding; ``attention_queries`` and ``attention_keys``
are what comes after both.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

QWEN3 = Family(
    model_types=("qwen3",),
    vllm=Implementation(
        source="vllm.model_executor.models.qwen3",
        block="Qwen3DecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.qwen3.modeling_qwen3",
        block="Qwen3DecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
    notes=("With attention_bias vLLM leaves out the output projection's bias, which transformers adds.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [QWEN3]
