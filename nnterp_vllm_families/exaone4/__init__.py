"""EXAONE 4.0.

    x -> self_attn -> post_attention_layernorm -> + -> mlp -> post_feedforward_layernorm -> +

There is no norm before a part, and one after it. vLLM's block adds both contributions itself and returns ``(stream,
stream before mlp)``. Query and key heads are normed; only blocks with a sliding window turn them by position.
"""

from nnterp_vllm_core.family import Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

BLOCK_NAMES = {"self_attn": "self_attn", "mlp": "mlp", "post_attention_layernorm": "post_attention_layernorm"}
VALUES = {
    "attention_output": At("post_attention_layernorm.output"),
    "mlp_output": At("post_feedforward_layernorm.output"),
}
EXAONE4 = Family(
    model_types=("exaone4",),
    vllm=Implementation(
        source="vllm.model_executor.models.exaone4",
        block="Exaone4DecoderLayer",
        stream=Stream(enters=Arg(1, "hidden_states"), leaves=0),
        block_names=BLOCK_NAMES,
        values=VALUES,
    ),
    transformers=Implementation(
        source="transformers.models.exaone4.modeling_exaone4",
        block="Exaone4DecoderLayer",
        stream=Stream(),
        block_names=BLOCK_NAMES,
        values=VALUES,
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [EXAONE4]
