"""ERNIE 4.5 (dense), which vLLM runs on Llama's classes.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. The
rotary embedding is interleaved.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

ERNIE4_5 = Family(
    model_types=("ernie4_5",),
    vllm=Implementation(
        source="vllm.model_executor.models.llama",
        block="LlamaDecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.ernie4_5.modeling_ernie4_5",
        block="Ernie4_5DecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
    notes=("With use_bias vLLM leaves out the biases, which transformers adds.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [ERNIE4_5]
