"""The first declaration that ``new`` writes is read off the sources, compiles, and passes the static check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nnterp_vllm_core.cli.new import write
from nnterp_vllm_core.family import Family
from nnterp_vllm_core.scaffold import outline
from nnterp_vllm_core.sources import Sources
from nnterp_vllm_core.static_check import check_family
from nnterp_vllm_families.gpt2 import GPT2
from nnterp_vllm_families.llama import LLAMA
from nnterp_vllm_families.qwen2 import QWEN2


def drawn(model_type: str, folder: Path) -> Family:
    """The family in the module that ``new`` writes."""
    write("drawn", model_type, folder)
    module: dict[str, Any] = {}
    exec((folder / "nnterp_vllm_drawn" / "__init__.py").read_text(), module)
    (family,) = module["nnterp_vllm_families"]()
    assert isinstance(family, Family)
    return family


@pytest.mark.parametrize("family", [QWEN2, LLAMA, GPT2], ids=["qwen2", "llama", "gpt2"])
def test_it_draws_what_we_declare_ourselves(family: Family, tmp_path: Path) -> None:
    found = drawn(family.model_types[0], tmp_path)
    assert found.vllm == family.vllm
    assert found.transformers == family.transformers


# Fused and plain streams, mixtures of experts, norms after the contributions, a block that inherits its forward.
@pytest.mark.parametrize("model_type", ["mistral", "granite", "qwen3", "olmoe", "gemma", "glm4", "mixtral", "nemotron"])
def test_its_declaration_contradicts_nothing_in_the_sources(model_type: str, tmp_path: Path) -> None:
    assert check_family(drawn(model_type, tmp_path)) == []


def test_a_model_type_that_transformers_does_not_know_takes_llamas_form_and_says_so(tmp_path: Path) -> None:
    assert drawn("toy", tmp_path).vllm == LLAMA.vllm
    assert outline("toy", Sources()).notes == (
        "transformers here has no block of model_type 'toy'; the declaration describes Llama's.",
    )
    conformance = (tmp_path / "nnterp_vllm_drawn" / "conformance.py").read_text()
    assert 'model_type = "llama"' in conformance
    assert 'family = "nnterp_vllm_drawn"' in conformance
