"""GLM-4 and GLM-Edge, which vLLM's older versions run on Llama's classes.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

The rotary embedding is partial and interleaved. vLLM's older block is fused, ``(hidden_states, residual)``; the newer
versions run transformers' code on their Transformers backend.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

GLM = Family(
    model_types=("glm",),
    vllm=Implementation(
        source="vllm.model_executor.models.llama",
        block="LlamaDecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.glm.modeling_glm",
        block="GlmDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GLM]
