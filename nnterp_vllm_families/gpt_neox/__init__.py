"""GPT-NeoX, Pythia.

    x -> input_layernorm ----------> attention -> +
    x -> post_attention_layernorm -> mlp -------> +

The block adds both. Without ``use_parallel_residual`` the second norm reads the stream after attention. vLLM's newer
versions run transformers' code on their Transformers backend.
"""

from dataclasses import replace

from nnterp_vllm_core.family import LLAMA_BLOCK_NAMES, Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

NAMES = {"embed_tokens": "gpt_neox.embed_in", "layers": "gpt_neox.layers", "norm": "gpt_neox.final_layer_norm"}
VLLM = Implementation(
    source="vllm.model_executor.models.gpt_neox",
    block="GPTNeoXLayer",
    stream=Stream(enters=Arg(1, "hidden_states")),
    names={**NAMES, "lm_head": "embed_out"},
    block_names={**LLAMA_BLOCK_NAMES, "self_attn": "attention"},
)
HF = replace(
    VLLM,
    source="transformers.models.gpt_neox.modeling_gpt_neox",
    stream=Stream(),
    names={**NAMES, "lm_head": "lm_head"},
    values={"attention_output": At("self_attn.output", 0)},
)
GPT_NEOX = Family(model_types=("gpt_neox",), vllm=VLLM, transformers=HF)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GPT_NEOX]
