"""One block at work: what it ships, what it holds at the place where the model is paused, and when edits land.

nnsight runs each block as a `Mediator`: a greenlet that parks on a location until the model reaches it. Three things are
added here, by a subclass and without touching nnsight.

A request ships the block's source and the values of the names that it needs (`names`), nothing else; envoys travel as
ids. The far side compiles each source once, however many requests bring it.

A read hands out a *private copy* of the live rows. While the model stays paused at that visit, the mediator remembers
every copy it handed out, together with the copy's edit counter. When the block moves on, the copies that were edited are
written into the live rows, and only those: a plain read leaves the forward as it was, to the bit.

A copy outlives the visit as the user's own tensor. Editing it later reaches nothing, so all that the visit remembered is
forgotten once the model runs on: the live memory may hold something else by then.
"""

from __future__ import annotations

import ast
import linecache
from types import CodeType
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent
from nnsight.intervention.interleaver import Mediator
from nnsight.tracing.tracer import _saves

from .errors import NnterpVLLMError
from .names import needed

if TYPE_CHECKING:
    import torch

    from .views import View

#: Compiled blocks by source. A trace over many prompts sends the same few lines with each request.
_COMPILED: dict[str, CodeType] = {}
_COMPILED_LIMIT = 512


class Held:
    """A private copy that the block holds at the current visit."""

    __slots__ = ("base", "raw", "served", "version")

    def __init__(self, served: torch.Tensor, base: torch.Tensor, raw: Any) -> None:
        self.served = served
        self.base = base
        self.raw = raw
        self.version = base._version

    @property
    def edited(self) -> bool:
        """Whether the copy was changed in place since it was handed out or last written back."""
        return self.base._version != self.version


class StandardMediator(Mediator):
    """A block that reads and writes standard values.

    Attributes:
        held: The private copies handed out at the current visit, by view.
        visit: ``(location, occurrence)`` of the current visit, or ``None``.
        raw: What the model served at the current visit: views of this request's live rows.
        swapped: The batcher's count of native assignments when ``raw`` was served; a later count means that the model
            goes on with other tensors.
        step: Which step of its request this is; 0 is the prefill.
        cached: Tokens of the prompt that an engine's prefix cache kept from being computed.
    """

    held: dict[View, Held]
    visit: tuple[str, int] | None
    raw: Any
    swapped: int
    step: int
    cached: int

    def start(self, interleaver: Any = None) -> None:
        """Begin the block; see nnsight's ``Mediator.start``."""
        self.held = {}
        self.visit = None
        self.raw = None
        self.swapped = 0
        super().start(interleaver)

    @classmethod
    def running(cls, path: str) -> StandardMediator:
        """The block that runs now.

        Raises:
            ValueError: No block runs: the value was asked for outside a trace.
        """
        reference = getattr(getcurrent(), "mediator", None)
        mediator = None if reference is None else reference()
        if mediator is None:
            raise ValueError(f"{path} can be read and written only inside a `with model.trace(...)` block.")
        if not isinstance(mediator, cls):
            raise NnterpVLLMError(f"{path}: this block runs on an nnsight mediator that serves no standard values.")
        return mediator

    def flush(self) -> None:
        """Write the edited copies back; called whenever the block is about to move on, and at its end."""
        if self.held:
            self.settle()
        if self.transform is not None:
            super().flush()

    def settle(self) -> None:
        """Write every edited copy of this visit into the model's live rows."""
        landed = False
        for view, held in list(self.held.items()):
            if held.edited:
                held.version = held.base._version
                view.land(self, held)
                landed = True
        if landed:
            for view in [view for view in self.held if view.derived]:
                del self.held[view]  # computed from rows that have just changed

    def handle(self, provider: str, value: Any) -> Any:
        """Serve a visit; see nnsight's ``Mediator.handle``. What the block held there ends with the visit."""
        try:
            return super().handle(provider, value)
        finally:
            self.held.clear()
            self.visit = self.raw = None

    def __getstate__(self) -> dict[str, Any]:
        source, names = _reduced(self.node)
        known: dict[str, Any] = {}
        borrowed: dict[str, Any] = {}
        for name in names:
            if name in self.lcls:
                known[name] = self.lcls[name]
                continue
            try:
                borrowed[name] = self.glbls[name]
            except KeyError:
                continue  # a builtin, or a name the block will miss with Python's own NameError
        saved = _saves()
        self.presaved = {name for name, value in known.items() if id(value) in saved}
        return {"source": source, "locals": known, "globals": borrowed, "presaved": self.presaved, "copy": self.copy}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(  # type: ignore[misc]  # nnsight's mediators are rebuilt through their constructor
            _compiled(state["source"]), state["globals"], state["locals"], copy=state["copy"]
        )
        self.presaved = state["presaved"]
        self.step = 0
        self.cached = 0


def _reduced(node: Any) -> tuple[str, list[str]]:
    """A block's source, on its original line numbers, and the names it needs. Kept on the node: invokes share it."""
    reduced: tuple[str, list[str]] | None = getattr(node, "_nnterp_vllm_reduced", None)
    if reduced is None:
        source = "\n" * (node.body[0].lineno - 1) + ast.unparse(ast.Module(body=node.body, type_ignores=[]))
        reduced = source, sorted(needed(node.body))
        node._nnterp_vllm_reduced = reduced
    return reduced


def _compiled(source: str) -> CodeType:
    code = _COMPILED.get(source)
    if code is None:
        if len(_COMPILED) >= _COMPILED_LIMIT:
            _COMPILED.clear()
        filename = f"<trace block {hash(source) & 0xFFFFFFFF:08x}>"
        # Tracebacks, and nnsight's own capture of a nested `with`, read the lines from here.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        code = _COMPILED[source] = compile(source, filename, "exec")
    return code
