"""Mistral, and Ministral 3, which vLLM runs on the same classes.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM fuses each ``+`` into the norm that follows, so its block takes and returns ``(hidden_states, residual)``. A
sliding window, where the config has one, is every block's. Ministral 3 scales the queries of late positions.
"""

from dataclasses import replace

from nnterp_vllm_core.family import At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

VLLM = Implementation(
    source="vllm.model_executor.models.mistral",
    block="MistralDecoderLayer",
    stream=FusedStream(),
)
HF = Implementation(
    source="transformers.models.mistral.modeling_mistral",
    block="MistralDecoderLayer",
    stream=Stream(),
    values={"attention_output": At("self_attn.output", 0)},
)
HF3 = replace(HF, source="transformers.models.ministral3.modeling_ministral3", block="Ministral3DecoderLayer")
MISTRAL = Family(model_types=("mistral",), vllm=VLLM, transformers=HF)
SCALING = "vLLM scales queries by the config's llama_4_scaling alone, transformers by its rope_parameters."
YARN = "vLLM 0.26 leaves out mscale and mscale_all_dim of a YaRN config, so its rotated queries and keys are others there."
MINISTRAL3 = Family(model_types=("ministral3",), vllm=VLLM, transformers=HF3, notes=(SCALING, YARN))


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [MISTRAL, MINISTRAL3]
