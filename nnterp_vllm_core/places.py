"""Where things are in a loaded model: modules by native path, envoys by standard or native name, declared places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from .errors import DeclarationError
from .family import Arg, At, Implementation


def first_block(module: Any, implementation: Implementation) -> Any:
    """The model's first block under the declared path, or ``None`` when there is no such path."""
    layers = module_at(module, implementation.names["layers"])
    return layers[0] if layers is not None and len(layers) else None


def module_at(module: Any, path: str) -> Any:
    """The module at a native path, or ``None`` when there is none."""
    for name in path.split("."):
        module = getattr(module, name, None)
        if module is None:
            return None
    return module


def child_of(block: Any, native: str | None) -> Any:
    """A block's child envoy by native name, or ``None`` where this block has none."""
    return None if native is None else block._child_map.get(native)


@dataclass(frozen=True, kw_only=True)
class Located:
    """A declared place, found in the tree: what `TensorView` and its like need of it."""

    location: str
    select: int | Arg | None
    times: Callable[[], Any] | None
    plus: Callable[[], Any] | None


def located(name: str, declared: At | tuple[At, ...], block: Any, implementation: Implementation) -> Located:
    """The first of the declared places whose module ``block`` (or the model) has.

    Raises:
        DeclarationError: It has none of them.
    """
    for at in declared if isinstance(declared, tuple) else (declared,):
        place, _, side = at.path.rpartition(".")
        envoy = envoy_at(block, implementation, place)
        if envoy is not None:
            times, plus = (None if it is None else partial(_constant, block, it) for it in (at.times, at.plus))
            return Located(location=f"{envoy.path}.{side}", select=at.select, times=times, plus=plus)
    raise DeclarationError(
        f"{implementation.source}: {name} is declared at {declared!r}, but {block.path} has no such module; its children "
        f"are {sorted(block._child_map)}."
    )


def envoy_at(block: Any, implementation: Implementation, path: str) -> Any:
    """The envoy at a path from a block, or from the model if it starts with a dot; ``None`` if there is none.

    The first component may be a standard name.
    """
    if path.startswith("."):
        envoy = block.root
        names = implementation.names.get(path[1:], path[1:]).split(".")
    else:
        envoy = block
        first, *rest = path.split(".")
        names = [implementation.block_names.get(first, first), *rest]
    for name in names:
        if envoy is None:
            return None
        envoy = envoy._child_map.get(name)
    return envoy


def _constant(block: Any, declared: float | str) -> Any:
    """A factor or an addend: a number as it stands, or an attribute of the block's module or of the model's."""
    if not isinstance(declared, str):
        return declared
    owner = block.root if declared.startswith(".") else block
    return attrgetter(declared.removeprefix("."))(owner._module)
