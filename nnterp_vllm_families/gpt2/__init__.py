"""GPT-2.

    x -> ln_1 -> attn -> + -> ln_2 -> mlp -> +

The block adds both contributions itself: it takes the stream and returns it. ``wpe``, the learned positions, has no
standard name and keeps its own; ``token_embeddings`` are the tokens alone.
"""

from nnterp_vllm_core.family import GPT2_BLOCK_NAMES, GPT2_NAMES, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

GPT2 = Family(
    model_types=("gpt2",),
    vllm=Implementation(
        source="vllm.model_executor.models.gpt2",
        block="GPT2Block",
        stream=Stream(),
        names=GPT2_NAMES,
        block_names=GPT2_BLOCK_NAMES,
    ),
    transformers=Implementation(
        source="transformers.models.gpt2.modeling_gpt2",
        block="GPT2Block",
        stream=Stream(),
        names=GPT2_NAMES,
        block_names=GPT2_BLOCK_NAMES,
        values={"attention_output": At("self_attn.output", 0)},
    ),
    sizes={"intermediate_size": ("n_inner", "4 * hidden_size")},
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GPT2]
