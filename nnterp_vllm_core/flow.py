"""How a forward treats its values, as far as its source tells: what it returns, what a call of a part yields, and
whether an argument is read before it is assigned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal

from .sources import TENSOR, Function, Shape


def returned(forward: Function) -> set[Shape]:
    """What the function returns, one shape for each ``return``; nested functions are left out."""
    shapes: set[Shape] = set()
    for node in _own(forward):
        if isinstance(node, ast.Return) and node.value is not None:
            shapes.add(_shape(node.value, forward))
    if None in shapes and forward.returns is not None:
        noted = _noted(forward.returns)
        shapes = {noted if shape is None else shape for shape in shapes}
    return shapes


def yielded(forward: Function, part: str) -> Shape:
    """What calls of ``self.part(...)`` yield, judged by how the function takes them apart."""
    for node in _own(forward):
        if isinstance(node, ast.Assign) and _calls(node.value, part):
            target = node.targets[0]
            if isinstance(target, ast.Tuple):
                return len(target.elts)
        if isinstance(node, ast.Subscript) and _calls(node.value, part) and isinstance(node.slice, ast.Constant):
            return int(str(node.slice.value)) + 1
        if isinstance(node, ast.BinOp) and (_calls(node.left, part) or _calls(node.right, part)):
            return TENSOR
    return None


def first_use(forward: Function, name: str) -> Literal["read", "assigned"] | None:
    """Whether an argument is read or assigned first, in the order of execution."""
    for node in forward.body:
        for use in _uses(node, name):
            return use
    return None


def _own(function: Function) -> Iterator[ast.AST]:
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            todo[:0] = list(ast.iter_child_nodes(node))


def _shape(value: ast.expr, function: Function) -> Shape:
    if isinstance(value, ast.Tuple):
        return len(value.elts)
    if isinstance(value, ast.BinOp):
        left, right = _shape(value.left, function), _shape(value.right, function)
        if isinstance(left, int) and isinstance(right, int):
            return left + right
        return TENSOR
    if isinstance(value, ast.Name):
        return _shape_of_name(value.id, function)
    return None


def _shape_of_name(name: str, function: Function) -> Shape:
    """By every assignment of the name: one that builds a tuple decides, else one that can only give a tensor."""
    shape: Shape = None
    for node in _own(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            added = _shape(node.value, function) if not isinstance(node.value, ast.Name) else None
            if isinstance(added, int):
                return (shape if isinstance(shape, int) else 0) + added
            shape = TENSOR
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id == name:
                if isinstance(node.value, ast.Tuple):
                    shape = len(node.value.elts)
                elif isinstance(node.value, ast.BinOp) and not isinstance(shape, int):
                    shape = TENSOR
            elif isinstance(target, ast.Tuple) and any(isinstance(one, ast.Name) and one.id == name for one in target.elts):
                shape = shape if isinstance(shape, int) else TENSOR
    return shape


def _noted(annotation: ast.expr) -> Shape:
    text = ast.unparse(annotation)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).lower().endswith("tuple"):
        parts = annotation.slice
        if isinstance(parts, ast.Tuple) and not any(isinstance(one, ast.Constant) for one in parts.elts):
            return len(parts.elts)
        return None
    return TENSOR if text in ("torch.Tensor", "Tensor", "torch.FloatTensor") else None


def _calls(value: ast.AST, part: str) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == f"self.{part}"


def _uses(node: ast.AST, name: str) -> Iterator[Literal["read", "assigned"]]:
    if isinstance(node, ast.Name) and node.id == name:
        yield "assigned" if isinstance(node.ctx, ast.Store) else "read"
        return
    if isinstance(node, ast.AugAssign):
        if isinstance(node.target, ast.Name) and node.target.id == name:
            yield "read"
        order: list[ast.AST] = [node.value, node.target]
    elif isinstance(node, ast.Assign):
        order = [node.value, *node.targets]
    else:
        order = list(ast.iter_child_nodes(node))
    for child in order:
        yield from _uses(child, name)
