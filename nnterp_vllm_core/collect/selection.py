"""What a collection takes: values by name, and positions of each prompt. Everything that can be refused is refused here.

A name is a path such as ``layers.3.self_attn.attention_head_outputs``; each part may hold ``*`` and a layer may be counted
from the end. Driver and worker resolve names over the same tree, so a path means the same view in both.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..envoys import SLOT
from ..errors import Unavailable
from ..views import MissingView, SizeView, View

#: Modes of ``positions=``; ``EACH`` means that every prompt brings its own list.
LAST, ALL, GENERATED, EACH = "last", "all", "generated", "each"

_PARTS = ("self_attn", "mlp")


def every_view(model: Any) -> dict[str, View]:
    """Each value's view by concrete path, in the model's order."""
    found: dict[str, View] = dict(model.__dict__.get(SLOT, {}))
    for index, block in enumerate(model.layers):
        hosts = [("", block), *((f"{part}.", block.__dict__.get(part)) for part in _PARTS)]
        for prefix, host in hosts:
            for name, view in ({} if host is None else host.__dict__.get(SLOT, {})).items():
                found[f"layers.{index}.{prefix}{name}"] = view
    return found


def select(model: Any, values: str | Iterable[str]) -> dict[str, View]:
    """The views that ``values`` names, by concrete path, in the order in which they are named.

    Raises:
        ValueError: A name matches nothing; the message has the nearest names. Or nothing is named, or it is no tensor.
        IndexError: A layer does not exist.
        Unavailable: A named value is not served, or not tapped on an engine that replays graphs.
    """
    known = every_view(model)
    chosen: dict[str, View] = {}
    for pattern in (values,) if isinstance(values, str) else values:
        chosen.update(_matches(pattern, known, model.num_layers))
    if not chosen:
        raise ValueError("values=[] names nothing to collect; name at least one, such as 'layers.*.layer_output'.")
    taps = getattr(model, "taps", ())
    for path, view in chosen.items():
        if isinstance(view, MissingView):
            raise Unavailable(f"{path} is unavailable: {view.reason}")
        if isinstance(view, SizeView):
            raise ValueError(f"{path} is no tensor, so there is nothing to collect. Every prompt's length is kept anyway.")
        if taps and view.location not in taps and view.location.endswith((".input", ".output")):
            raise Unavailable(
                f"{path} is not tapped on this engine, so a replayed CUDA graph never stops there. Add {view.tap!r} (or "
                f"'standard') to taps=[...] when the model is built, or leave taps out."
            )
    return chosen


def _matches(pattern: str, known: dict[str, View], layers: int) -> dict[str, View]:
    if not isinstance(pattern, str):
        raise TypeError(f"A value is named by a string such as 'layers.*.layer_output', not by {pattern!r}.")
    parts = pattern.split(".")
    if len(parts) > 1 and parts[0] == "layers" and parts[1].lstrip("-").isdigit():
        index = int(parts[1])
        if not -layers <= index < layers:
            raise IndexError(f"{pattern!r}: layer {index} does not exist; this model has {layers}.")
        parts[1] = str(index % layers)
    found = {
        path: view
        for path, view in known.items()
        if len(names := path.split(".")) == len(parts) and all(map(fnmatchcase, names, parts))
    }
    if not found:
        general = {".".join("*" if part.isdigit() else part for part in path.split(".")): None for path in known}
        asked = ".".join("*" if part.isdigit() else part for part in parts)
        near = difflib.get_close_matches(asked, general, n=3, cutoff=0.5) or list(general)
        raise ValueError(f"{pattern!r} names no value of this model; the nearest are {near!r}.")
    return found


@dataclass(frozen=True, kw_only=True)
class Positions:
    """``positions=`` of a call.

    Attributes:
        mode: ``last``, ``all``, ``generated``, ``each``, or ``chosen`` for one list for all prompts.
        chosen: The list of mode ``chosen``, as given.
        masks: The masks of mode ``each``, one for each prompt, not yet read.
    """

    mode: str
    chosen: tuple[int, ...] = ()
    masks: Iterator[Any] | None = None

    @classmethod
    def of(cls, given: Any) -> Positions:
        """Read ``positions=``.

        Raises:
            ValueError: An unknown word, or an empty list.
            TypeError: Anything else than a word, integers or masks.
        """
        if isinstance(given, str):
            if given not in (LAST, ALL, GENERATED):
                raise ValueError(f"positions={given!r} is none of 'last', 'all' and 'generated'.")
            return cls(mode=given)
        if isinstance(given, int) and not isinstance(given, bool):
            return cls(mode="chosen", chosen=(given,))
        if isinstance(given, Sequence):
            if not given:
                raise ValueError("positions=[] chooses nothing; name at least one position.")
            if all(isinstance(one, int) and not isinstance(one, bool) for one in given):
                return cls(mode="chosen", chosen=tuple(given))
        if isinstance(given, Iterable):
            return cls(mode=EACH, masks=iter(given))
        raise TypeError(
            f"positions={given!r}: give 'last', 'all', 'generated', an integer, a list of integers, or one mask for "
            f"each prompt."
        )

    @property
    def described(self) -> Any:
        """What a folder remembers of it."""
        return list(self.chosen) if self.mode == "chosen" else self.mode

    def mask(self, number: int, raw: Any = None) -> list[bool]:
        """The next prompt's mask.

        Raises:
            ValueError: There are fewer masks than prompts.
        """
        assert self.masks is not None
        try:
            row = next(self.masks)
        except StopIteration:
            raise ValueError(f"positions= has {number} masks and there are more prompts; give one for each.") from None
        return [bool(one) for one in (row.tolist() if hasattr(row, "tolist") else row)]

    def count(self, number: int, tokens: int, mask: list[bool] | None) -> tuple[int, list[int] | None]:
        """How many rows a prompt gives, and its own list of positions in mode ``each``.

        Raises:
            ValueError, IndexError: A mask's length or a position does not fit the prompt.
        """
        if self.mode in (LAST, GENERATED):
            return 1, None
        if self.mode == ALL:
            return tokens, None
        if mask is not None:
            if len(mask) != tokens:
                raise ValueError(f"Prompt {number} has {tokens} tokens and its mask has {len(mask)} entries.")
            own = [position for position, wanted in enumerate(mask) if wanted]
            return len(own), own
        for position in self.chosen:
            if not -tokens <= position < tokens:
                raise IndexError(f"Position {position} is outside prompt {number}, which has {tokens} tokens.")
        return len(self.chosen), None


def check_places(views: dict[str, View], positions: Positions) -> None:
    """Refuse values that do not exist at the positions.

    Raises:
        Unavailable: A value of the last position alone at other positions, or one of the prefill alone at generated ones.
    """
    for path, view in views.items():
        if position_axis(view) is None and positions.mode not in (LAST, GENERATED):
            raise Unavailable(
                f"{path} exists at a prompt's last position only and positions={positions.described!r} asks for others. "
                f"Collect it on its own with positions='last'."
            )
        if view.prefill_only and positions.mode == GENERATED:
            raise Unavailable(f"{path} is there on the prefill only, not at generated positions.")


def position_axis(view: View) -> int | None:
    """Which axis of a value counts positions; ``None`` where it has one row for each request."""
    for word in ("seq", "query"):
        if word in view.value.axes:
            return view.value.axes.index(word)
    return None
