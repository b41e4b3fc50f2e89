"""A declaration is held against the installed sources: planted errors are found and right declarations pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nnterp_vllm_core.family import Arg, At, Family, FusedStream, Implementation, Stream
from nnterp_vllm_core.static_check import check_family
from nnterp_vllm_families.gpt2 import GPT2
from nnterp_vllm_families.llama import LLAMA
from nnterp_vllm_families.qwen2 import QWEN2

from .installs import Site


def changed(family: Family, engine: str, **changes: Any) -> Family:
    """The family with one implementation's declaration changed."""
    return dataclasses.replace(family, **{engine: dataclasses.replace(getattr(family, engine), **changes)})


def errors(family: Family) -> list[str]:
    """The errors that the check finds, without their level."""
    return [f"{one.where}: {one.text}" for one in check_family(family) if one.level == "error"]


@pytest.mark.parametrize("family", [QWEN2, LLAMA, GPT2], ids=["qwen2", "llama", "gpt2"])
def test_a_right_declaration_passes(family: Family) -> None:
    assert check_family(family) == []


@pytest.mark.parametrize(
    ("family", "where", "text"),
    [
        pytest.param(
            changed(LLAMA, "vllm", block="LlamaBlock"),
            "vllm.model_executor.models.llama.LlamaBlock",
            "the module has no class LlamaBlock; its classes are LlamaMLP, ",
            id="a class that is not there",
        ),
        pytest.param(
            changed(LLAMA, "vllm", source="vllm.model_executor.models.lama"),
            "vllm.model_executor.models.lama.LlamaDecoderLayer",
            "there is no such module here. A class of that name is in vllm.model_executor.models.llama",
            id="a module that is not there",
        ),
        pytest.param(
            changed(LLAMA, "vllm", stream=FusedStream(residual=Arg(3, "residual"))),
            "vllm.model_executor.models.llama.LlamaDecoderLayer",
            "FusedStream.residual is Arg(index=3, name='residual'), but LlamaDecoderLayer.forward takes 'residual' as "
            "argument 2.",
            id="an argument that stands elsewhere",
        ),
        pytest.param(
            changed(LLAMA, "transformers", stream=Stream(enters=Arg(0, "x"))),
            "transformers.models.llama.modeling_llama.LlamaDecoderLayer",
            "Stream.enters is Arg(index=0, name='x'), but LlamaDecoderLayer.forward takes hidden_states, ",
            id="an argument that is not there",
        ),
        pytest.param(
            changed(LLAMA, "vllm", stream=Stream(enters=Arg(1, "hidden_states"), leaves=0)),
            "vllm.model_executor.models.llama.LlamaDecoderLayer",
            "Stream is declared, but forward takes 'residual' and reads it before it assigns it, so the stream is the sum "
            "of both. Declare FusedStream.",
            id="a fused block declared as a stream",
        ),
        pytest.param(
            changed(GPT2, "vllm", stream=FusedStream(hidden=Arg(0, "hidden_states"), residual=Arg(1, "residual"))),
            "vllm.model_executor.models.gpt2.GPT2Block",
            "FusedStream is declared, but forward assigns 'residual' before it reads it, so the stream is 'hidden_states' "
            "alone.",
            id="a stream declared as fused",
        ),
        pytest.param(
            changed(GPT2, "vllm", stream=FusedStream(hidden=Arg(0, "hidden_states"), residual=Arg(1, "residual"))),
            "vllm.model_executor.models.gpt2.GPT2Block",
            "FusedStream is declared, but forward returns a tensor, not a pair. Declare Stream.",
            id="a tensor declared as a pair",
        ),
        pytest.param(
            changed(GPT2, "vllm", stream=Stream(leaves=0)),
            "vllm.model_executor.models.gpt2.GPT2Block",
            "Stream(leaves=0) is declared, but forward returns a tensor.",
            id="a tensor declared as a tuple",
        ),
        pytest.param(
            changed(GPT2, "vllm", block_names={"self_attn": "attention", "mlp": "mlp"}),
            "vllm.model_executor.models.gpt2.GPT2Block",
            "block_names['self_attn'] is 'attention', which GPT2Block never assigns; it assigns attn, ln_1, ln_2, mlp.",
            id="a part under another name",
        ),
        pytest.param(
            changed(QWEN2, "transformers", values={}),
            "transformers.models.qwen2.modeling_qwen2.Qwen2DecoderLayer",
            "attention_output at 'self_attn.output' is declared to be a tensor, but the sources show a tuple of 2. Give the "
            "element's index.",
            id="an attention that returns a pair",
        ),
        pytest.param(
            changed(QWEN2, "vllm", values={"attention_output": At("self_attn.output", 0)}),
            "vllm.model_executor.models.qwen2.Qwen2DecoderLayer",
            "attention_output at 'self_attn.output' is declared to be element 0, but the sources show a tensor.",
            id="an element of a tensor",
        ),
        pytest.param(
            changed(QWEN2, "vllm", values={"mlp_output": At("mlp.gate_proj.output")}),
            "vllm.model_executor.models.qwen2.Qwen2DecoderLayer",
            "mlp_output is declared at 'mlp.gate_proj', but Qwen2MLP never assigns 'gate_proj'; it assigns act_fn, "
            "down_proj, gate_up_proj.",
            id="a place inside a part",
        ),
        pytest.param(
            changed(QWEN2, "vllm", attention="self_attn.attention"),
            "vllm.model_executor.models.qwen2.Qwen2DecoderLayer",
            "attention is declared at 'self_attn.attention', but Qwen2Attention never assigns 'attention'",
            id="the attention layer",
        ),
        pytest.param(
            changed(GPT2, "vllm", names={"embed_tokens": "transformer.wte", "layers": "transformer.layers", "norm": "x"}),
            "vllm.model_executor.models.gpt2.GPT2Block",
            "names['layers'] is 'transformer.layers', but no class of vllm.model_executor.models.gpt2 assigns 'layers'.",
            id="a path from the model",
        ),
    ],
)
def test_a_planted_error_is_found(family: Family, where: str, text: str) -> None:
    found = errors(family)
    assert any(line.startswith(f"{where}: {text}") for line in found), found


def test_inherited_parts_and_forwards_count() -> None:
    """Mistral's block inherits its forward from Llama's, in another file."""
    mistral = Implementation(source="vllm.model_executor.models.mistral", block="MistralDecoderLayer", stream=FusedStream())
    assert check_family(Family(model_types=("mistral",), vllm=mistral)) == []


def test_a_declaration_for_another_version_is_a_note_beside_one_that_applies() -> None:
    older = dataclasses.replace(LLAMA.native[0], source="vllm.model_executor.models.llama_of_old")
    (note,) = check_family(dataclasses.replace(LLAMA, vllm=(LLAMA.native[0], older)))
    assert note.level == "note"
    assert note.text.endswith("Another declaration of the family applies here.")


def test_an_engine_outside_the_validated_range_is_a_warning() -> None:
    (warning,) = check_family(dataclasses.replace(LLAMA, validated=">=0.1,<0.2"))
    assert (warning.level, warning.where) == ("warning", "validated")
    assert warning.text.endswith(" is installed; the family was validated on >=0.1,<0.2.")


def test_nothing_of_vllm_or_transformers_is_imported(site: Site) -> None:
    code = """
    import sys
    from nnterp_vllm_core.loader import find
    from nnterp_vllm_core.static_check import check_family
    assert check_family(find("llama").family) == []
    print(sorted({"torch", "vllm", "nnsight", "transformers"} & set(sys.modules)))
    """
    assert site.python(code).strip() == "[]"
