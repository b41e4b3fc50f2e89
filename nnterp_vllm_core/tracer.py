"""The tracer of a trace with invokes, which takes their blocks without running up to them under a debugger's hook.

nnsight keeps Python from running the body of ``with tracer.invoke(...)`` with a trace function that raises on its first
line, set and taken away for each invoke. From Python 3.12 on each of the two makes the interpreter instrument all running
code anew, and a trace may have hundreds of invokes. nnsight compiles the body of the trace itself, so here it is compiled
with the invokes' bodies left out: nothing has to be kept from running.
"""

from __future__ import annotations

import ast
import copy
from types import CodeType
from typing import Any

from nnsight.intervention.tracer import Invoker
from nnsight.modeling.vllm.tracer import VLLMTracer
from nnsight.tracing.tracer import TRY_STATEMENTS, skippable

_INVOKE, _HOLLOW = "invoke", "_hollow_invoke"


class HollowInvoker(Invoker):
    """An invoke whose body is not there where it is entered; it is read from the source, as always."""

    def __enter__(self) -> HollowInvoker:
        self.capture()
        return self


class StandardTracer(VLLMTracer):
    """nnsight's tracer, running a trace's body without the bodies of its invokes."""

    def prepare(self, code: CodeType) -> tuple[Any, ...]:
        """See nnsight's ``VLLMTracer.prepare``."""
        prepared: tuple[Any, ...] = super().prepare(self._hollow(code))
        return prepared

    def _hollow_invoke(self, *args: Any, **kwargs: Any) -> HollowInvoker:
        return HollowInvoker(self, *args, **kwargs)

    def _hollow(self, code: CodeType) -> CodeType:
        """The trace's body without its invokes', compiled once for each place in the source."""
        if self.envoy._batch_size(*self.args, **self.kwargs):
            return code  # the body is the one block
        kept: CodeType | None = getattr(self.node, "_nnterp_vllm_hollow", None)
        if kept is None:
            name = next((one.optional_vars.id for one in self.node.items if isinstance(one.optional_vars, ast.Name)), None)
            body = _without_invokes(self.node.body, name)
            if body is None:
                kept = code
            else:
                kept = self.compile(self.build(ast.With(items=self.node.items, body=body)), self.info.frame)
            self.node._nnterp_vllm_hollow = kept
        return kept


def _without_invokes(body: list[ast.stmt], name: str | None) -> list[ast.stmt] | None:
    """Copies of these statements in which ``with NAME.invoke(...)`` has no body; ``None`` if the name is bound anew."""
    if name is None or any(_binds(node, name) for statement in body for node in ast.walk(statement)):
        return None
    hollow = _Hollow(name)
    return [hollow.visit(copy.deepcopy(statement)) for statement in body]


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    # `import x as NAME`, `except ... as NAME`, `def NAME`, `case ... as NAME` and their like keep it as a string.
    fields = (getattr(node, field, None) for field in ("name", "asname", "rest"))
    return name in fields or (isinstance(node, ast.Global | ast.Nonlocal) and name in node.names)


class _Hollow(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self._name = name

    def visit_With(self, node: ast.With) -> ast.AST:
        """Leave the body out where nnsight would keep it from running."""
        call = node.items[0].context_expr
        if not (
            len(node.items) == 1
            and isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == _INVOKE
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id == self._name
        ):
            return self.generic_visit(node)
        first = node.body[0]
        if skippable(node) and first.lineno > node.lineno and not isinstance(first, TRY_STATEMENTS):
            call.func.attr = _HOLLOW
            node.body = [ast.copy_location(ast.Pass(), first)]
        return node

    def _as_it_is(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _as_it_is
