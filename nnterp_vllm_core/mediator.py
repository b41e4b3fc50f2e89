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
import pickle
import warnings
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent
from nnsight.intervention.interleaver import Event, Mediator, OutOfOrderError, Pending
from nnsight.tracing.tracer import _saves

from .errors import NnterpVLLMError, UnsupportedEngine
from .names import changed, needed
from .visit import Held, Visit

if TYPE_CHECKING:
    from .views import View

#: What a view's request carries where a native read carries nothing: it wants the `Visit`, not narrowed rows.
WHOLE = object()

#: What torch says where a gradient is asked for and there is none.
_NO_GRADIENT = ("does not require grad", "requires_grad=True", "inference tensor", "Inference tensors cannot be saved")

#: Compiled blocks by source. A trace over many prompts sends the same few lines with each request.
_COMPILED: dict[str, CodeType] = {}
_COMPILED_LIMIT = 512


class StandardMediator(Mediator):
    """A block that reads and writes standard values.

    Attributes:
        held: The private copies handed out at the current visit, by view.
        visit: The current visit, or ``None`` while the block has asked for no standard value there.
        native: How many native requests the block has made; an earlier visit is stale.
        wrote: Whether anything that the block wrote has reached the model, or may have: it was given live rows.
        reached: The last step that `tracer.iter` named and the model got to.
        began: How many forwards the engine had done when the block began.
        step: Which step of its request this is; 0 is the prefill.
        cached: Tokens of the prompt that an engine's prefix cache kept from being computed.
    """

    held: dict[View, Held]
    pending: Pending | None
    iteration: int | None
    visit: Any
    native: int
    wrote: bool
    reached: int
    began: int
    step: int
    _seen: Callable[[Mediator, str], int]
    cached: int

    def start(self, interleaver: Any = None) -> None:
        """Begin the block; see nnsight's ``Mediator.start``."""
        self.held = {}
        self.visit = None
        self.native = 0
        self.wrote = False
        self.reached = 0
        counts = getattr(interleaver, "counts", None)
        self.began = getattr(counts, "forwards", 0)
        self._seen = getattr(counts, "seen_by", Mediator.occurrence)
        super().start(interleaver)

    def occurrence(self, location: str) -> int:
        """How many times the model came by a place since the block began; see nnsight's ``Mediator.occurrence``."""
        return self._seen(self, location)

    def _run(self) -> None:
        try:
            super()._run()
        except RuntimeError as error:
            # vLLM's forward runs in inference mode, so whatever a block does for gradients ends in one of torch's own.
            if any(said in str(error) for said in _NO_GRADIENT) and hasattr(self.interleaver, "taps"):
                raise UnsupportedEngine(
                    f"This block asks for gradients, and a vLLM engine computes none: its forward runs in inference mode "
                    f"({error}). Run the block on StandardizedTransformer, which does."
                ) from error
            raise
        except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
            # These are no `Exception`: they would end the engine's step, and with it everybody's requests.
            raise RuntimeError(f"the block raised {type(error).__name__}({error})") from error

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

    def due(self, location: str, path: str) -> int:
        """Which visit of a location a read made now means: the step that `tracer.iter` is at, else the first one.

        Raises:
            OutOfOrderError: The model has passed it on this step, and the next visit is another step's.
        """
        passed = self._seen(self, location)
        step = self.reached if self.iteration is None else self.iteration
        if passed > step:
            raise OutOfOrderError(
                f"{path} was asked for at step {step}, and the model had already passed it there. A block asks for values "
                f"in the order in which the model computes them: read this one before those of later layers, or on a later "
                f"step of `tracer.iter`."
            )
        return step

    def ask(self, location: str, occurrence: int) -> Visit:
        """Park until the model is at that visit."""
        if self.held or self.transform is not None:
            self.flush()
        visit: Visit = getcurrent().parent.switch(Pending(Event.VALUE, location, occurrence, WHOLE))
        self.visit = visit
        return visit

    def flush(self) -> None:
        """Write the edited copies back; called whenever the block is about to move on, and at its end."""
        if self.held:
            self.settle()
        if self.transform is not None:
            super().flush()

    def settle(self) -> None:
        """Write every edited copy of this visit into the model's live rows."""
        for held in self.held.values():
            if held.base._version != held.version:
                break
        else:
            return  # the usual case, thousands of times a forward
        landed = False
        for view, held in list(self.held.items()):
            if held.edited:
                held.version = held.base._version
                view.land(held)
                landed = True
        if landed:
            for view in [view for view in self.held if view.derived]:
                del self.held[view]  # computed from rows that have just changed

    def handle(self, provider: str, value: Any) -> Any:
        """Serve a visit until the block parks elsewhere; see nnsight's ``Mediator.handle``.

        A view is given the `Visit`, a native read its own rows. What the block held here ends with the visit.
        """
        pending = self.pending
        if pending is None or pending.provider != provider:
            return value
        interleaver = self.interleaver
        batcher = interleaver.batcher
        shared = getattr(interleaver, "shared", None)
        # A worker's interleaver calls the blocks that wait for this visit, and no others.
        occurrence = self.occurrence(provider) if shared is None else pending.iteration
        if shared is not None and not shared.first_of(self.batch_group):
            shared = None
        try:
            while pending is not None and pending.provider == provider and pending.iteration == occurrence:
                if self.iteration:  # a step named by `tracer.iter` is reached: what follows goes with the model
                    self.reached, self.iteration = self.iteration, None
                reply: tuple[Any, ...] = ()
                if pending.event is Event.VALUE:
                    if pending.value is WHOLE:
                        reply = (Visit(provider, occurrence, value, self, shared),)
                    else:
                        self.native += 1
                        # Live rows of a module: what is written into them leaves no trace.
                        self.wrote = self.wrote or provider.endswith((".input", ".output"))
                        reply = (value if batcher is None else batcher.narrow(value, self.batch_group),)
                elif pending.event is Event.SWAP:
                    self.wrote = True
                    value = pending.value if batcher is None else batcher.widen(value, self.batch_group, pending.value)
                else:
                    self.wrote = True
                    value = pending.value if batcher is None else batcher.gather_skip(value, self.batch_group, pending.value)
                shared = None
                self.pending = pending = self.switch(*reply)
        finally:
            self.held.clear()
            self.visit = None
        return value

    def __getstate__(self) -> tuple[Any, ...]:
        source, names, changes = _reduced(self.node)
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
        for name in changes:
            held = known.get(name, borrowed.get(name))
            if isinstance(held, list | dict | set) and id(held) not in saved:
                warnings.warn(
                    f"The block changes {name!r}, a {type(held).__name__} from outside it, and what it puts there stays in "
                    f"the engine's process. Save it: `{name} = nnsight.save({type(held).__name__}())`.",
                    stacklevel=2,
                )
        # nnsight's pickler asks about every object, so what is not a value is one of bytes.
        header = pickle.dumps(
            (source, tuple(known), tuple(borrowed), tuple(self.presaved), self.copy), pickle.HIGHEST_PROTOCOL
        )
        return (header, *known.values(), *borrowed.values())

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        source, known, borrowed, presaved, copy = pickle.loads(state[0])
        values = iter(state[1:])
        local, outer = dict(zip(known, values, strict=False)), dict(zip(borrowed, values, strict=True))
        self.__init__(_compiled(source), outer, local, copy=copy)  # type: ignore[misc]  # as nnsight rebuilds its own
        self.presaved = set(presaved)
        self.step = 0
        self.cached = 0


def _reduced(node: Any) -> tuple[str, list[str], list[str]]:
    """A block's source, on its original line numbers, the names it needs, and those of them that it changes in place.

    Kept on the node: invokes share it.
    """
    reduced: tuple[str, list[str], list[str]] | None = getattr(node, "_nnterp_vllm_reduced", None)
    if reduced is None:
        source = "\n" * (node.body[0].lineno - 1) + ast.unparse(ast.Module(body=node.body, type_ignores=[]))
        names = needed(node.body)
        reduced = source, sorted(names), sorted(names & changed(node.body))
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
