"""The way that a step's forward takes through the model, learned once, so that nobody has to count on every step.

nnsight counts each visit of each place, because a block's next read may be of any of them: has the model passed it on this
step, and which step is it? Counting takes a call of Python around every module of every step. But a model's forward comes
by the same places in the same order each time. Here one step is counted and written down; from then on the place where a
block runs says which places the model has passed. The first step that only decodes is counted and compared as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedEngine

_SIDES = (".input", ".skip", ".output")


@dataclass
class Itinerary:
    """The places of one forward.

    Attributes:
        places: nnsight's names of them as they came.
        numbers: A place -> where it stands among them, as often as it came.
        once: The same for the places of modules that run once in a step.
        around: A module's path -> the paths of the modules that it ran inside of.
    """

    places: list[str]
    numbers: dict[str, list[int]]
    once: dict[str, int]
    around: dict[str, set[str]]

    @classmethod
    def of(cls, forward: list[str], later: list[str]) -> Itinerary | None:
        """What was learned from a step; ``None`` if its modules did not run one inside another.

        Args:
            forward: The places of the forward, in order.
            later: Those that came after it in the same step: their modules run outside the forward, perhaps as well.
        """
        numbers: dict[str, list[int]] = {}
        around: dict[str, set[str]] = {}
        running: list[str] = []
        for number, place in enumerate(forward):
            path, _, side = place.rpartition(".")
            numbers.setdefault(place, []).append(number)
            if side == "input":
                around.setdefault(path, set()).update(running)
                running.append(path)
            elif not running or running[-1] != path:
                return None
            elif side == "output":
                running.pop()
        if running or not forward:
            return None
        outside = {place.rpartition(".")[0] for place in later}
        once: dict[str, int] = {}
        for path in around.keys() - outside:
            found = {path + side: numbers.get(path + side, []) for side in _SIDES}
            if all(len(several) == 1 for several in found.values()):
                once.update((place, several[0]) for place, several in found.items())
        return cls(forward, numbers, once, around)

    @property
    def entry(self) -> str:
        """Where the whole model begins; what runs before it prepares its input."""
        return self.places[-1].removesuffix("output") + "input"


class Visits(dict[str, int]):
    """How many times the model came by each place: counted, or known from how many forwards there were.

    Attributes:
        forwards: Forwards that have ended.
        way: The itinerary; ``None`` while everything is counted.
        here: The number of the place where the forward is, or of the first that it has not passed; -1 between forwards.
        lost: A place that this forward came by where the itinerary does not have it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0
        self.way: Itinerary | None = None
        self.here = -1
        self.lost: str | None = None

    def passed(self, place: str) -> int | None:
        """The visits of a place that are over; ``None`` where they are counted."""
        number = None if self.way is None else self.way.once.get(place)
        return None if number is None else self.forwards + (number < self.here)

    def seen_by(self, mediator: Any, place: str) -> int:
        """The visits of a place since a block began.

        Raises:
            UnsupportedEngine: The forward is not on its usual way, so that is not known.
        """
        number = None if self.way is None else self.way.once.get(place)
        if number is None:
            return self.get(place, 0) - int(mediator.counts_at_start.get(place, 0))
        if self.lost is not None and self.here not in (-1, number):
            raise UnsupportedEngine(
                f"On this step the model came by {self.lost} in another order than on the steps before, so whether it has "
                f"passed {place} is not known. Run the block again: from the next step on this engine counts every visit, "
                f"which is slower."
            )
        return self.forwards + (number < self.here) - int(mediator.began)

    def arrive(self, place: str) -> None:
        """The forward is at a place, or something outside of any forward is."""
        if self.way is None:
            return
        numbers = self.way.numbers.get(place)
        if self.here < 0:
            if numbers and (numbers[0] == 0 or place == self.way.entry):
                self.here = numbers[0]
        elif numbers is not None:
            # A module that is left out takes its inner ones with it, so visits are told apart by where they stand.
            ahead = [number for number in numbers if number >= self.here]
            if not ahead:
                self.lost = self.lost or place
            self.here = ahead[0] if ahead else numbers[-1]
        elif place.endswith(_SIDES) and ".source." not in place:
            self.lost = self.lost or place

    def leave(self, place: str) -> None:
        """What waited at a place has been served."""
        if self.way is not None and self.here >= 0 and self.way.places[self.here] == place:
            self.here += 1

    def end(self) -> None:
        """The forward is over."""
        self.forwards += 1
        self.here = -1

    def learn(self, way: Itinerary) -> None:
        """From now on, know rather than count. Between forwards."""
        self.way = way
        for place in way.once:
            self.pop(place, None)

    def forget(self, running: list[Any]) -> None:
        """Count again. Between forwards.

        Args:
            running: The blocks that have begun.
        """
        way, self.way, self.lost = self.way, None, None
        for place in () if way is None else way.once:
            self[place] = self.forwards
            for mediator in running:
                mediator.counts_at_start[place] = mediator.began
