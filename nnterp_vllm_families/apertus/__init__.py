"""Apertus.

    x -> attention_layernorm -> self_attn -> + -> feedforward_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. Query
and key heads are normed before the rotary embedding; the feed-forward part is ungated and its activation, xIELU, has
two learned numbers.
"""

from nnterp_vllm_core.family import LLAMA_BLOCK_NAMES, At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

BLOCK_NAMES = {
    **LLAMA_BLOCK_NAMES,
    "input_layernorm": "attention_layernorm",
    "post_attention_layernorm": "feedforward_layernorm",
}
APERTUS = Family(
    model_types=("apertus",),
    vllm=Implementation(
        source="vllm.model_executor.models.apertus",
        block="ApertusDecoderLayer",
        stream=FusedStream(),
        block_names=BLOCK_NAMES,
    ),
    transformers=Implementation(
        source="transformers.models.apertus.modeling_apertus",
        block="ApertusDecoderLayer",
        stream=Stream(),
        block_names=BLOCK_NAMES,
        values={"attention_output": At("self_attn.output", 0)},
    ),
    notes=("vLLM keeps xIELU's learned numbers in bfloat16, so it agrees with transformers to 1e-3 only.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [APERTUS]
