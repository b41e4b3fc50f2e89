"""OPT.

    x -> self_attn_layer_norm -> self_attn -> + -> final_layer_norm -> fc1 -> relu -> fc2 -> +

``fc2`` makes the second contribution and stands for ``mlp``. Queries are served scaled, as transformers has them.
"""

from dataclasses import replace

from nnterp_vllm_core.family import LLAMA_NAMES, Arg, At, Family, Implementation, Place, Stream
from nnterp_vllm_core.hookspecs import hookimpl

NAMES = {name: path.replace("model.", "model.decoder.") for name, path in LLAMA_NAMES.items()}
VLLM = Implementation(
    source="vllm.model_executor.models.opt",
    block="OPTDecoderLayer",
    stream=Stream(),
    names={**NAMES, "norm": "model.decoder.final_layer_norm"},
    block_names={"self_attn": "self_attn", "mlp": "fc2", "input_layernorm": "self_attn_layer_norm"},
    values={
        "mlp_output": At("fc2.output", 0),
        "attention_queries": At("self_attn.attn.input", Arg(0, "query"), times="self_attn.scaling"),
        "token_embeddings": (At(".model.decoder.project_in.output", 0), At(".embed_tokens.output")),
    },
    before_head=("norm", "model.decoder.project_out"),
)
HF_EMBEDDINGS = (At(".model.decoder.project_in.output"), At(".embed_tokens.output"))
HF_VALUES: dict[str, Place] = {"attention_output": At("self_attn.output", 0), "token_embeddings": HF_EMBEDDINGS}
OPT = Family(
    model_types=("opt",),
    vllm=VLLM,
    transformers=replace(VLLM, source="transformers.models.opt.modeling_opt", values=HF_VALUES),
    sizes={"intermediate_size": ("ffn_dim",)},
    notes=("OPT-350m norms the stream after each addition, so its contributions do not sum to layer_output.",),
)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [OPT]
