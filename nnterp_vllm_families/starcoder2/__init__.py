"""StarCoder2.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM runs transformers' code on its Transformers backend. Norms are layer norms, the feed-forward part is ungated, and
every block may have a sliding window.
"""

from nnterp_vllm_core.family import At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

STARCODER2 = Family(
    model_types=("starcoder2",),
    transformers=Implementation(
        source="transformers.models.starcoder2.modeling_starcoder2",
        block="Starcoder2DecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [STARCODER2]
