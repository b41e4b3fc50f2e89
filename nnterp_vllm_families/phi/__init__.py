r"""Phi-1, Phi-1.5 and Phi-2.

    x -> input_layernorm -> self_attn -> +
             \-----------> mlp -------> +

Both parts read one norm of the stream, and the block adds both. The head has a bias, which ``project_on_vocab`` adds.
vLLM's newer versions run transformers' code on their Transformers backend.
"""

from nnterp_vllm_core.family import LLAMA_NAMES, Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

NAMES = {**LLAMA_NAMES, "norm": "model.final_layernorm"}
BLOCK_NAMES = {"self_attn": "self_attn", "mlp": "mlp", "input_layernorm": "input_layernorm"}
PHI = Family(
    model_types=("phi",),
    vllm=Implementation(
        source="vllm.model_executor.models.phi",
        block="PhiLayer",
        stream=Stream(enters=Arg(1, "hidden_states")),
        names=NAMES,
        block_names=BLOCK_NAMES,
    ),
    transformers=Implementation(
        source="transformers.models.phi.modeling_phi",
        block="PhiDecoderLayer",
        stream=Stream(),
        names=NAMES,
        block_names=BLOCK_NAMES,
        values={"attention_output": At("self_attn.output", 0)},
    ),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [PHI]
