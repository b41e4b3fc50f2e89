"""Phi-3, Phi-3.5 and Phi-4, which vLLM runs on Llama's classes.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. The
projections are fused in the checkpoint.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

PHI3 = Family(
    model_types=("phi3",),
    vllm=Implementation(
        source="vllm.model_executor.models.llama",
        block="LlamaDecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.phi3.modeling_phi3",
        block="Phi3DecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [PHI3]
