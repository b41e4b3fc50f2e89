"""OLMo 2, and OLMo 3, which adds sliding windows.

    x -> self_attn -> post_attention_layernorm -> + -> mlp -> post_feedforward_layernorm -> +

There is no norm before a part, and one after it. Queries and keys are normed over all heads at once. vLLM runs OLMo 2,
and in its newer versions OLMo 3, on its Transformers backend.
"""

from dataclasses import replace

from nnterp_vllm_core.family import Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

BLOCK_NAMES = {"self_attn": "self_attn", "mlp": "mlp", "post_attention_layernorm": "post_attention_layernorm"}
VALUES = {
    "attention_output": At("post_attention_layernorm.output"),
    "mlp_output": At("post_feedforward_layernorm.output"),
}
HF = Implementation(
    source="transformers.models.olmo2.modeling_olmo2",
    block="Olmo2DecoderLayer",
    stream=Stream(),
    block_names=BLOCK_NAMES,
    values=VALUES,
)
HF3 = replace(HF, source="transformers.models.olmo3.modeling_olmo3", block="Olmo3DecoderLayer")
VLLM3 = replace(HF3, source="vllm.model_executor.models.olmo3", stream=Stream(enters=Arg(1, "hidden_states")))
OLMO2 = Family(model_types=("olmo2",), transformers=HF)
OLMO3 = Family(model_types=("olmo3",), vllm=VLLM3, transformers=HF3)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [OLMO2, OLMO3]
