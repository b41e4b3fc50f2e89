"""Which names a block of code needs from around it: those it may read before it has bound them.

A block travels to the engine as source text together with the values of the names it needs. A name that the block binds
first (``states = nnsight.save([])`` and then ``states.append(...)``) must not bring its previous value along: after one
run of an all-layers loop that value is every activation of the run before.

The analysis is a forward walk over statements that keeps the set of names bound on every path so far. It may call a
name needed that is not (an unknown path), never the other way round.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Sequence

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def needed(body: Sequence[ast.stmt]) -> set[str]:
    """The names that ``body`` may read before binding them.

    >>> needed(ast.parse("out = []\\nfor layer in layers:\\n    out.append(layer)").body)
    {'layers'}
    """
    walk = _Walk()
    walk.block(body, set())
    return walk.needed


#: Methods that change a list, a dict or a set in place.
_CHANGING = frozenset(
    ("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear")
)


def changed(body: Sequence[ast.stmt]) -> set[str]:
    """The names whose object ``body`` changes in place: ``name[...] = ...``, ``del name[...]``, ``name.append(...)``."""
    found: set[str] = set()
    for node in (part for statement in body for part in ast.walk(statement)):
        owner: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            owner = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            owner = node.func.value
        if isinstance(owner, ast.Name):
            found.add(owner.id)
    return found


class _Walk:
    def __init__(self) -> None:
        self.needed: set[str] = set()

    def block(self, body: Iterable[ast.stmt], bound: set[str]) -> set[str]:
        """Walk ``body``; return the names bound after it whichever path it took."""
        for statement in body:
            bound = self.statement(statement, bound)
        return bound

    def statement(self, node: ast.stmt, bound: set[str]) -> set[str]:
        match node:
            case ast.Assign(targets=targets, value=value):
                bound = self.expression(value, bound)
                for target in targets:
                    bound = self.target(target, bound)
            case ast.AugAssign(target=target, value=value):
                bound = self.expression(target, self.expression(value, bound), reading=True)
                bound = self.target(target, bound)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                bound = self.expression(annotation, bound)
                if value is not None:
                    bound = self.target(target, self.expression(value, bound))
            case (
                ast.For(target=target, iter=source, body=body, orelse=orelse)
                | ast.AsyncFor(target=target, iter=source, body=body, orelse=orelse)
            ):
                bound = self.expression(source, bound)
                self.block(body, self.target(target, set(bound)))
                self.block(orelse, set(bound))
            case ast.While(test=test, body=body, orelse=orelse):
                bound = self.expression(test, bound)
                self.block(body, set(bound))
                self.block(orelse, set(bound))
            case ast.If(test=test, body=body, orelse=orelse):
                bound = self.expression(test, bound)
                bound = self.block(body, set(bound)) & self.block(orelse, set(bound))
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    bound = self.expression(item.context_expr, bound)
                    if item.optional_vars is not None:
                        bound = self.target(item.optional_vars, bound)
                # A manager may swallow an exception half way through, so what the body binds is not certain after it.
                self.block(body, set(bound))
            case (
                ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final)
                | ast.TryStar(body=body, handlers=handlers, orelse=orelse, finalbody=final)
            ):
                after = self.block(orelse, self.block(body, set(bound)))
                for handler in handlers:
                    inside = set(bound)
                    if handler.type is not None:
                        inside = self.expression(handler.type, inside)
                    if handler.name:
                        inside.add(handler.name)
                    after &= self.block(handler.body, inside)
                self.block(final, set(bound))
                bound = after
            case ast.Match(subject=subject, cases=cases):
                bound = self.expression(subject, bound)
                for case in cases:
                    inside = bound | {
                        name for part in ast.walk(case.pattern) if (name := getattr(part, "name", None)) is not None
                    }
                    for part in ast.walk(case.pattern):
                        if isinstance(part, ast.expr):
                            self.expression(part, bound)
                    if case.guard is not None:
                        inside = self.expression(case.guard, inside)
                    self.block(case.body, inside)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                bound = bound | {(alias.asname or alias.name).split(".")[0] for alias in names}
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound = self.definition(node, bound)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.expression(target, bound, reading=True)
                    if isinstance(target, ast.Name):
                        bound = bound - {target.id}
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        bound = self.expression(child, bound)
        return bound

    def definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, bound: set[str]) -> set[str]:
        for part in node.decorator_list:
            bound = self.expression(part, bound)
        if isinstance(node, ast.ClassDef):
            for base in [*node.bases, *(keyword.value for keyword in node.keywords)]:
                bound = self.expression(base, bound)
        else:
            bound = self.signature(node.args, bound)
            if node.returns is not None:
                bound = self.expression(node.returns, bound)
        # Its own name first: a recursive function needs no earlier one.
        bound = bound | {node.name}
        self.needed |= _free(ast.unparse(node)) - bound
        return bound

    def signature(self, node: ast.arguments, bound: set[str]) -> set[str]:
        """Defaults and annotations, which are evaluated where the function is defined."""
        parts = [*node.posonlyargs, *node.args, *node.kwonlyargs, *(one for one in (node.vararg, node.kwarg) if one)]
        annotations = [part.annotation for part in parts if part.annotation is not None]
        for default in [*annotations, *node.defaults, *(one for one in node.kw_defaults if one is not None)]:
            bound = self.expression(default, bound)
        return bound

    def target(self, node: ast.expr, bound: set[str]) -> set[str]:
        if isinstance(node, ast.Name):
            return bound | {node.id}
        if isinstance(node, ast.Tuple | ast.List):
            for element in node.elts:
                bound = self.target(element, bound)
            return bound
        if isinstance(node, ast.Starred):
            return self.target(node.value, bound)
        return self.expression(node, bound)  # an attribute or an item: its owner is read

    def expression(self, node: ast.expr, bound: set[str], reading: bool = False) -> set[str]:
        if isinstance(node, ast.Name):
            if (reading or isinstance(node.ctx, ast.Load | ast.Del)) and node.id not in bound:
                self.needed.add(node.id)
            return bound
        if isinstance(node, ast.NamedExpr):
            return self.target(node.target, self.expression(node.value, bound))
        if isinstance(node, ast.Lambda):
            bound = self.signature(node.args, bound)
            self.needed |= _free(ast.unparse(node)) - bound
            return bound
        if isinstance(node, _COMPREHENSIONS):
            return self.comprehension(node, bound)
        if isinstance(node, ast.BoolOp | ast.IfExp):
            # Only the first part surely runs: what a later one binds is not certain afterwards.
            first, *rest = node.values if isinstance(node, ast.BoolOp) else (node.test, node.body, node.orelse)
            bound = self.expression(first, bound)
            for part in rest:
                self.expression(part, set(bound))
            return bound
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                bound = self.expression(child, bound)
            elif isinstance(child, ast.keyword):
                bound = self.expression(child.value, bound)
        return bound

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, bound: set[str]) -> set[str]:
        inside = set(bound)
        for generator in node.generators:
            inside = self.expression(generator.iter, inside)
            inside = self.target(generator.target, inside)
            for condition in generator.ifs:
                inside = self.expression(condition, inside)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.expression(part, set(inside))
        return bound


def _free(source: str) -> set[str]:
    """Names that a function, class or lambda takes from outside itself, by Python's own scoping rules."""

    def globals_of(table: symtable.SymbolTable) -> set[str]:
        names = {one.get_name() for one in table.get_symbols() if one.is_global() and one.is_referenced()}
        for child in table.get_children():
            names |= globals_of(child)
        return names

    top = symtable.symtable(source, "<block>", "exec")
    inner = {name for child in top.get_children() for name in globals_of(child)}
    return inner
