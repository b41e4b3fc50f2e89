"""Nemotron (Minitron, Nemotron-4).

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. Norms
are layer norms that multiply by ``1 + weight``, the feed-forward part is ungated and its activation is a squared relu,
and the rotary embedding is partial.
"""

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

NEMOTRON = Family(
    model_types=("nemotron",),
    vllm=Implementation(
        source="vllm.model_executor.models.nemotron",
        block="NemotronDecoderLayer",
        stream=FusedStream(),
    ),
    transformers=Implementation(
        source="transformers.models.nemotron.modeling_nemotron",
        block="NemotronDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [NEMOTRON]
