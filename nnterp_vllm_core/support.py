"""``support()``: every standard value, as served or with the reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .envoys import SLOT
from .protocol import VALUES, Value
from .views import MissingView, View


class Support(Mapping[str, str]):
    """Value path (``layers.*.self_attn.attention_scores``) to ``"served"``, with its limits, or ``"unavailable: ..."``.

    Printing it gives a table. A value that only some layers serve says which.
    """

    def __init__(self, lines: dict[str, str]) -> None:
        self._lines = lines

    @classmethod
    def of(cls, model: Any) -> Support:
        """Read the answer off the views of a standardized model's tree."""
        values = (*VALUES.values(), *(extra.value for extra in getattr(model, "_extras", ())))
        return cls({value.path: _status(value, _views(model, value)) for value in values})

    def __getitem__(self, path: str) -> str:
        return self._lines[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def served(self) -> list[str]:
        """Paths of the values that can be read, in the order of a forward pass."""
        return [path for path, status in self._lines.items() if status.startswith("served")]

    @property
    def unavailable(self) -> dict[str, str]:
        """Paths of the values that cannot be read, with their reasons."""
        return {path: status for path, status in self._lines.items() if not status.startswith("served")}

    def __str__(self) -> str:
        width = max(len(path) for path in self._lines)
        return "\n".join(f"{path:<{width}}  {status}" for path, status in self._lines.items())

    __repr__ = __str__


def _views(model: Any, value: Value) -> list[View | None]:
    if value.host == "model":
        return [model.__dict__[SLOT].get(value.name)]
    hosts = [block if value.host == "layer" else _child(block, value.host) for block in model.layers]
    return [None if host is None else host.__dict__.get(SLOT, {}).get(value.name) for host in hosts]


def _child(block: Any, host: str) -> Any:
    return block.__dict__.get("self_attn" if host == "attention" else "mlp")


def _status(value: Value, views: list[View | None]) -> str:
    missing = {
        index: (view.reason if isinstance(view, MissingView) else "this block has no such part")
        for index, view in enumerate(views)
        if view is None or isinstance(view, MissingView)
    }
    if len(missing) == len(views):
        return f"unavailable: {next(iter(missing.values()))}"
    seen = [view for view in views if view is not None and not isinstance(view, MissingView)]
    limits = []
    if not all(view.writable for view in seen):
        limits.append("read-only")
    if any(view.prefill_only for view in seen):
        limits.append("prefill only")
    if missing:
        limits.append(f"not in layers {sorted(missing)}: {next(iter(missing.values()))}")
    return "served" + (f" ({'; '.join(limits)})" if limits else "")
