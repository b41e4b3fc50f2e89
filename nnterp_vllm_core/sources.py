"""Classes of installed packages, read from their source files and never imported.

Importing a model file of vLLM takes seconds and may need a device; parsing it takes milliseconds and works for a package
that could not even be imported here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .engine import source_folder

#: What a function returns or a call yields: a tuple of this many, ``"tensor"`` for anything else that is one value, or
#: ``None`` where the source does not tell.
Shape = int | str | None
TENSOR = "tensor"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Sources:
    """Modules by name, parsed once."""

    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    def file(self, module: str) -> Path | None:
        """Where a module's source is; ``None`` when there is none."""
        top, *rest = module.split(".")
        folder = source_folder(top)
        if folder is None:
            return None
        path = folder.joinpath(*rest)
        for candidate in (path.with_suffix(".py") if rest else path / "__init__.py", path / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None

    def tree(self, module: str) -> ast.Module | None:
        """A module's syntax tree; ``None`` when there is no such module."""
        if module not in self._trees:
            file = self.file(module)
            self._trees[module] = None if file is None else ast.parse(file.read_text(encoding="utf-8"))
        return self._trees[module]

    def defines(self, module: str, names: Iterable[str]) -> bool:
        """Whether a module defines or imports one of these classes."""
        return any(self.find(module, name) is not None for name in names)

    def classes(self, module: str) -> list[ClassSource]:
        """The classes that a module defines itself, in order."""
        tree = self.tree(module)
        return (
            [] if tree is None else [ClassSource(self, module, node) for node in tree.body if isinstance(node, ast.ClassDef)]
        )

    def find(self, module: str, name: str, depth: int = 8) -> ClassSource | None:
        """The class that ``name`` means in ``module``, through imports; ``None`` when the sources do not tell."""
        tree = self.tree(module)
        if tree is None or depth == 0:
            return None
        for node in _toplevel(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return ClassSource(self, module, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(self.absolute(module, node), alias.name, depth - 1)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and _names(node.targets, name):
                return self.find(module, node.value.id, depth - 1)
        return None

    def absolute(self, module: str, node: ast.ImportFrom) -> str:
        """The module that a ``from`` import names, relative ones resolved."""
        if node.level == 0:
            return str(node.module)
        file = self.file(module)
        inside = file is not None and file.name == "__init__.py"
        parts = module.split(".")
        base = parts[: len(parts) - node.level + (1 if inside else 0)]
        return ".".join([*base, *([node.module] if node.module else [])])


@dataclass
class ClassSource:
    """One class of a source file.

    Attributes:
        sources: Where its bases and children are looked up.
        module: The module that defines it.
        node: Its syntax tree.
    """

    sources: Sources
    module: str
    node: ast.ClassDef

    @property
    def name(self) -> str:
        """The class's name."""
        return self.node.name

    @cached_property
    def lineage(self) -> list[ClassSource]:
        """This class and those of its bases whose sources are found, nearest first."""
        found = [self]
        for base in self.node.bases:
            if isinstance(base, ast.Name) and base.id != self.name:
                parent = self.sources.find(self.module, base.id)
                found += [] if parent is None else parent.lineage
        return found

    def method(self, name: str) -> Function | None:
        """The method that an instance has, inherited ones included."""
        for one in self.lineage:
            for node in one.node.body:
                if isinstance(node, Function) and node.name == name:
                    return node
        return None

    @cached_property
    def attributes(self) -> dict[str, list[tuple[ClassSource, Function, ast.expr | None]]]:
        """What is assigned to ``self`` in any method: name -> where, in which method, and the expression."""
        found: dict[str, list[tuple[ClassSource, Function, ast.expr | None]]] = {}
        for one in self.lineage:
            for method in one.node.body:
                if isinstance(method, Function):
                    for name, value in _assigned(method):
                        found.setdefault(name, []).append((one, method, value))
        return found

    def children(self, name: str) -> list[ClassSource]:
        """The classes that an attribute may be an instance of; empty when the sources do not tell."""
        found = []
        for owner, method, value in self.attributes.get(name, []):
            if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
                continue
            called = _default(method, value.func.id) or value.func.id
            child = self.sources.find(owner.module, called)
            if child is not None:
                found.append(child)
        return found

    def arguments(self) -> tuple[list[str], list[str], bool] | None:
        """``forward``'s positional and keyword-only arguments, and whether it takes any others by name."""
        forward = self.method("forward")
        if forward is None:
            return None
        args = forward.args
        names = [one.arg for one in (*args.posonlyargs, *args.args)][1:]
        return names, [one.arg for one in args.kwonlyargs], args.kwarg is not None or args.vararg is not None


def _toplevel(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from node.body
            yield from node.orelse


def _names(targets: Iterable[ast.expr], name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _assigned(method: Function) -> Iterator[tuple[str, ast.expr | None]]:
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                for part in parts:
                    if (name := _of_self(part)) is not None:
                        yield name, node.value if part is target else None
        elif isinstance(node, ast.AnnAssign) and (name := _of_self(node.target)) is not None:
            yield name, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_module":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant):
                yield str(first.value), node.args[1] if len(node.args) > 1 else None


def _of_self(node: ast.expr) -> str | None:
    """``X`` of ``self.X``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


def _default(method: Function, name: str) -> str | None:
    """The class that an argument names by default: ``attn_layer_type=LlamaAttention``."""
    args = [*method.args.posonlyargs, *method.args.args]
    pairs = zip(args[len(args) - len(method.args.defaults) :], method.args.defaults, strict=True)
    for arg, default in (*pairs, *zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)):
        if arg.arg == name and isinstance(default, ast.Name):
            return default.id
    return None
