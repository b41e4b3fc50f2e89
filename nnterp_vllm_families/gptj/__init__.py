r"""GPT-J.

    x -> ln_1 -> attn -> +
         \---> mlp --> +

Attention and feed-forward part read the same norm of the stream, and the block adds both. The head has a bias, which
``project_on_vocab`` adds.
"""

from nnterp_vllm_core.family import GPT2_NAMES, Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

BLOCK_NAMES = {"self_attn": "attn", "mlp": "mlp", "input_layernorm": "ln_1"}
GPTJ = Family(
    model_types=("gptj",),
    vllm=Implementation(
        source="vllm.model_executor.models.gpt_j",
        block="GPTJBlock",
        stream=Stream(enters=Arg(1, "hidden_states")),
        names=GPT2_NAMES,
        block_names=BLOCK_NAMES,
    ),
    transformers=Implementation(
        source="transformers.models.gptj.modeling_gptj",
        block="GPTJBlock",
        stream=Stream(leaves=0),
        names=GPT2_NAMES,
        block_names=BLOCK_NAMES,
        values={"attention_output": At("self_attn.output", 0)},
    ),
    sizes={"intermediate_size": ("n_inner", "4 * hidden_size")},
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [GPTJ]
