"""What the declaration says is served is what a loaded engine serves."""

from __future__ import annotations

from typing import Any

from nnterp_vllm_core.declared import declared_support


def test_support_from_the_declaration_is_support_of_the_loaded_model(model: Any) -> None:
    assert dict(declared_support(model.plan.implementation)) == dict(model.support())
