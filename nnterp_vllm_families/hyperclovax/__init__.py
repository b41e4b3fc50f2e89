"""HyperCLOVA X SEED.

    embed_tokens * embedding_multiplier -> x
    x -> input_layernorm -> self_attn -> post_norm1 -> * -> +
      -> post_attention_layernorm -> mlp -> post_norm2 -> * -> +

Contributions pass the norms where ``use_post_norm`` is set, then ``residual_multiplier``. Logits are multiplied by
``logits_scaling``. vLLM's block returns ``(stream, stream before mlp)``.
"""

from dataclasses import replace

from nnterp_vllm_core.family import Arg, At, Family, Implementation, Stream
from nnterp_vllm_core.hookspecs import hookimpl

ATTENTION = tuple(At(it, times="residual_multiplier") for it in ("post_norm1.output", "self_attn.output"))
MLP = tuple(At(it, times="residual_multiplier") for it in ("post_norm2.output", "mlp.output"))
ADDED = {"attention_output": ATTENTION, "mlp_output": MLP}
VLLM = Implementation(
    source="vllm.model_executor.models.hyperclovax",
    block="HyperCLOVAXDecoderLayer",
    stream=Stream(enters=Arg(1, "hidden_states"), leaves=0),
    values={**ADDED, "token_embeddings": At(".embed_tokens.output", times=".model.config.embedding_multiplier")},
)
HF = replace(
    VLLM,
    source="transformers.models.hyperclovax.modeling_hyperclovax",
    stream=Stream(),
    values={**ADDED, "token_embeddings": At(".embed_tokens.output", times=".model.embedding_multiplier")},
    head=(("times", "logits_scaling"),),
)
HYPERCLOVAX = Family(model_types=("hyperclovax",), vllm=VLLM, transformers=HF)


@hookimpl
def nnterp_vllm_families() -> list[Family]:
    return [HYPERCLOVAX]
