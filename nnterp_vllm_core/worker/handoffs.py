"""nnsight's handoffs on the modules, there where something can want one.

nnsight puts a controller in place of every module's ``forward``, a thousand calls a step on a deep model. A step whose
requests carry no blocks, and for which nothing is collected, has no use for any of them. On other steps a block waits at
one place at a time, so, once the way of the forward is known (`itinerary`), the module of that place and those around it
are enough: those are the ones that may still be running when the block goes on to its next read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from nnsight.intervention.source import NO_SKIP, STATE, Controller

from .itinerary import Itinerary, Visits

_POINTS = ".source."


@cache
def _telling(kind: type) -> type:
    """An envoy class that tells the handoffs before nnsight opens its module."""

    class Telling(kind):
        @property
        def source(self) -> Any:
            self.interleaver.handoffs.open(self.path)
            return super().source

    Telling.__name__, Telling.__qualname__, Telling.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    return Telling


class Handoffs:
    """The controllers of a model's modules.

    Args:
        model: The worker's tree, just built.
        permanent: Leave them where they are: with CUDA graphs they are part of what is recorded.
    """

    def __init__(self, model: Any, *, permanent: bool) -> None:
        self._visits: Visits = model.interleaver.counts
        self._root: str = model.path
        self._permanent = permanent
        self._controllers: dict[str, tuple[dict[str, Any], Controller]] = {}
        for envoy in () if permanent else model.modules():
            own = vars(envoy._module)
            controller, state = own.get("forward"), own.get(STATE)
            # A module that came with a forward of its own keeps it under the controller alone.
            if type(controller) is Controller and state.original is type(envoy._module).forward:
                self._controllers[state.routes[-1][1]] = own, controller
            kind: Any = type(envoy)
            object.__setattr__(envoy, "__class__", _telling(kind))
        self._there = set(self._controllers)
        self._way: Itinerary | None = None
        self._known: set[bool] = set()
        self._irregular = False
        self._few = False
        self._always: set[str] = set()
        self._opened: set[str] = set()
        self._chains: dict[str, set[str]] = {}
        self._recording: list[str] | None = None
        self._ended = 0
        self._decodes = False

    def begin(self, wanted: bool, decodes: bool, running: list[Any]) -> None:
        """Have those there that the step which comes needs, whoever waits.

        Args:
            wanted: Whether the step has blocks or something is collected.
            decodes: Whether every request of it computes one token.
            running: The blocks that have begun.
        """
        if self._permanent:
            return
        self._learn()
        if self._visits.lost is not None:
            self._irregular = True
        self._few = wanted and not self._irregular and decodes in self._known
        if not wanted:
            self._have(set())
        elif self._few:
            if self._visits.way is None and self._way is not None:
                self._visits.learn(self._way)
            self._have(self._always)
        else:
            self._visits.forget(running)
            self._have(set(self._controllers))
            if not self._irregular:
                self._recording, self._ended, self._decodes = [], 0, decodes

    def watch(self, places: Iterable[str]) -> None:
        """Have those there that somebody at these places needs, now or when going on."""
        for place in places:
            path, opened, _ = place.partition(_POINTS)
            if self._few:
                self._put(self._chain(path if opened else path.rpartition(".")[0]))

    def open(self, path: str) -> None:
        """A block looks inside a module, whose points run and count from now on, on every step."""
        self._opened.add(path)
        self._settle()
        self._put(self._always if self._few else {path} & self._controllers.keys())

    def came_by(self, place: str, value: Any) -> None:
        """Something has come by a place, with this value."""
        if self._recording is not None:
            if place.endswith(".skip") and value is not NO_SKIP:
                self._recording = None  # what is inside is left out this time
            elif _POINTS not in place:
                self._recording.append(place)
        if place == f"{self._root}.output":
            self._visits.end()
            self._ended = 0 if self._recording is None else len(self._recording)

    def _learn(self) -> None:
        """Take what the last step was recorded for."""
        recorded, self._recording = self._recording, None
        if not recorded or not self._ended:
            return  # nobody's forward: what blocks there are had ended, or their requests were not in the step
        way = Itinerary.of(recorded[: self._ended], recorded[self._ended :])
        if way is None or (self._way is not None and way != self._way):
            self._irregular = True
            return
        self._way = way
        self._known.add(self._decodes)
        self._settle()

    def _settle(self) -> None:
        """Note which have to be there on every step."""
        if self._way is None:
            return
        way = self._way
        self._chains.clear()
        # The first of the way and the whole model tell where a forward begins and ends; the rest is counted.
        self._always = {self._root, way.places[0].rpartition(".")[0]}
        self._always.update(path for path in self._controllers if f"{path}.output" not in way.once)
        for path in self._opened:
            # Points inside a module are counted too, and what runs there says how far it has come.
            self._always |= {path, *way.around.get(path, ())}
            self._always.update(inner for inner, outer in way.around.items() if path in outer)
        self._always &= self._controllers.keys()

    def _chain(self, path: str) -> set[str]:
        """A module and those around it."""
        chain = self._chains.get(path)
        if chain is None:
            around = set() if self._way is None else self._way.around.get(path, set())
            chain = self._chains[path] = {path, *around} & self._controllers.keys()
        return chain

    def _have(self, paths: set[str]) -> None:
        """These and no others."""
        for path in self._there - paths:
            del self._controllers[path][0]["forward"]
        self._there &= paths
        self._put(paths)

    def _put(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path not in self._there:
                own, controller = self._controllers[path]
                own["forward"] = controller
                self._there.add(path)
