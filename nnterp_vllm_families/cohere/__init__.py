r"""Command R (cohere) and Command R7B, Command A (cohere2).

    x -> input_layernorm -> self_attn -> +
             \-----------> mlp -------> +

Both parts read one norm of the stream. vLLM returns ``(stream, what entered)`` and sums the contributions over ranks
together, so each is read at its last projection. Logits are scaled. cohere2's full blocks leave positions out.
"""

from dataclasses import replace

from nnterp_vllm_core.family import TIED_NAMES, Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

BLOCK_NAMES = {"self_attn": "self_attn", "mlp": "mlp", "input_layernorm": "input_layernorm"}
VLLM = Implementation(
    source="vllm.model_executor.models.commandr",
    block="CohereDecoderLayer",
    stream=Stream(enters=Arg(1, "hidden_states"), leaves=0),
    names=TIED_NAMES,
    block_names=BLOCK_NAMES,
    values={"attention_output": At("self_attn.o_proj.output", 0), "mlp_output": At("mlp.down_proj.output", 0)},
)
HF = Implementation(
    source="transformers.models.cohere.modeling_cohere",
    block="CohereDecoderLayer",
    stream=Stream(),
    block_names=BLOCK_NAMES,
    values={"attention_output": At("self_attn.output", 0)},
)
HF2 = replace(HF, source="transformers.models.cohere2.modeling_cohere2", block="Cohere2DecoderLayer")
NO_HEAD = "vLLM's model has no lm_head module: its head is embed_tokens. Use project_on_vocab."
WINDOW = "After 0.28 vLLM's sliding window is one token longer than transformers', as Cohere trained it."
COHERE = Family(model_types=("cohere",), vllm=VLLM, transformers=HF, notes=(NO_HEAD,))
COHERE2 = Family(model_types=("cohere2",), vllm=VLLM, transformers=HF2, notes=(NO_HEAD, WINDOW))


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [COHERE, COHERE2]
