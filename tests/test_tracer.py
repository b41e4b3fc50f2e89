"""A trace's body is run without the bodies of its invokes, and only of those that are surely its own."""

from __future__ import annotations

import ast
import sys
from typing import Any

import nnsight
import pytest
from support.blocks import GREEDY, as_in_any_batch, logits_of

from nnterp_vllm_core.tracer import _without_invokes

HOLLOW = {
    "an invoke": ("with tracer.invoke(a, n=1):\n    x = 1", "with tracer._hollow_invoke(a, n=1):\n    pass"),
    "with a name": ("with tracer.invoke(a) as one:\n    x = 1", "with tracer._hollow_invoke(a) as one:\n    pass"),
    "in a loop": (
        "for a in b:\n    if a:\n        with tracer.invoke(a):\n            x = 1",
        "for a in b:\n    if a:\n        with tracer._hollow_invoke(a):\n            pass",
    ),
    "two, and code between": (
        "with tracer.invoke(a):\n    x = 1\ny = tracer.invoke\nwith tracer.invoke(b):\n    z = 2",
        "with tracer._hollow_invoke(a):\n    pass\ny = tracer.invoke\nwith tracer._hollow_invoke(b):\n    pass",
    ),
}
LEFT = {
    "another's": "with other.invoke(a):\n    x = 1",
    "another method": "with tracer.iter[:2]:\n    x = 1",
    "beside another context": "with tracer.invoke(a), torch.no_grad():\n    x = 1",
    "nothing in it": "with tracer.invoke(a):\n    pass",
    "nnsight refuses a try": "with tracer.invoke(a):\n    try:\n        x = 1\n    finally:\n        pass",
    "in a function": "def f():\n    with tracer.invoke(a):\n        x = 1",
}
REBOUND = {
    "assigned": "tracer = other\nwith tracer.invoke(a):\n    x = 1",
    "a loop's": "for tracer in several:\n    with tracer.invoke(a):\n        x = 1",
    "imported": "import other as tracer\nwith tracer.invoke(a):\n    x = 1",
    "a function": "def tracer():\n    pass\nwith tracer.invoke(a):\n    x = 1",
}


@pytest.mark.parametrize("case", HOLLOW)
def test_an_invokes_body_is_left_out(case: str) -> None:
    source, expected = HOLLOW[case]
    body = ast.parse(source).body
    found = _without_invokes(body, "tracer")
    assert found is not None
    assert ast.unparse(found) == expected
    assert ast.unparse(body) == source  # the tree that blocks are read from stays
    lines = [node.lineno for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.With)]
    assert lines == [node.lineno for node in ast.walk(ast.Module(found, [])) if isinstance(node, ast.With)]


@pytest.mark.parametrize("case", LEFT)
def test_what_may_be_something_else_is_left_as_it_is(case: str) -> None:
    found = _without_invokes(ast.parse(LEFT[case]).body, "tracer")
    assert found is not None
    assert ast.unparse(found) == LEFT[case]


@pytest.mark.parametrize("case", REBOUND)
def test_a_name_that_is_bound_anew_is_no_tracers(case: str) -> None:
    assert _without_invokes(ast.parse(REBOUND[case]).body, "tracer") is None


@pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")
def test_a_trace_of_invokes_sets_the_hook_for_itself_alone(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["The Eiffel Tower", "hello", "The capital of Japan"]
    alone = [logits_of(model, text) for text in texts]
    calls: list[Any] = []
    real = sys.settrace

    def settrace(function: Any) -> None:
        calls.append(function)
        real(function)

    monkeypatch.setattr(sys, "settrace", settrace)
    with model.trace(**GREEDY) as tracer:
        logits = nnsight.save([])
        for text in texts:
            with tracer.invoke(text):
                logits.append(model.logits)
    assert len(calls) == 2  # to keep the trace's own body from running
    for one, other in zip(logits, alone, strict=True):
        assert as_in_any_batch(one, other)
