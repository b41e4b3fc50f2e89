"""Llama 2 and 3, and the many models that share their code (SmolLM2, Vicuna, TinyLlama, ...).

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)`` and the
stream is their sum. transformers' block takes and returns the stream.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

LLAMA = Family(
    model_types=("llama",),
    vllm=Implementation(
        source="vllm.model_executor.models.llama",
        block="LlamaDecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.llama.modeling_llama",
        block="LlamaDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [LLAMA]
