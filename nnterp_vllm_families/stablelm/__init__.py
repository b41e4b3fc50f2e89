"""StableLM.

    x -> input_layernorm -> self_attn -> + -> post_attention_layernorm -> mlp -> +

vLLM's block adds both contributions itself and returns ``(stream, stream before mlp)``: the second is not to be added.
"""

from nnterp_vllm_core.family import Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

STABLELM = Family(
    model_types=("stablelm",),
    vllm=Implementation(
        source="vllm.model_executor.models.stablelm",
        block="StablelmDecoderLayer",
        stream=Stream(enters=Arg(1, "hidden_states"), leaves=0),
    ),
    transformers=Implementation(
        source="transformers.models.stablelm.modeling_stablelm",
        block="StableLmDecoderLayer",
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0)},
    ),
    notes=("vLLM cannot load checkpoints with use_parallel_residual or qk_layernorm; transformers runs both.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [STABLELM]
