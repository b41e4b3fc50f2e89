"""GLM-4-0414 and GLM-Z1.

    x -> input_layernorm -> self_attn -> post_self_attn_layernorm -> +
      -> post_attention_layernorm -> mlp -> post_mlp_layernorm -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. Each
contribution passes a norm of its own before it is added; ``post_attention_layernorm`` is the one before ``mlp``. The
rotary embedding is partial and interleaved.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

VALUES = {
    "attention_output": At("post_self_attn_layernorm.output"),
    "mlp_output": At("post_mlp_layernorm.output"),
}
GLM4 = Family(
    model_types=("glm4",),
    vllm=Implementation(
        source="vllm.model_executor.models.glm4",
        block="Glm4DecoderLayer",
        stream=FusedStream(),
        values=VALUES,
    ),
    transformers=Implementation(
        source="transformers.models.glm4.modeling_glm4",
        block="Glm4DecoderLayer",
        stream=Stream(),
        values=VALUES,
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GLM4]
