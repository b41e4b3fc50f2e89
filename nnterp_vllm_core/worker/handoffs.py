"""nnsight's handoffs on the modules, there while something can want one and gone while nothing can.

nnsight puts a controller in place of every module's ``forward``, a thousand calls a step on a deep model. A step whose
requests carry no blocks, and for which nothing is collected, has no use for them. On other steps nearly all of these calls
pass modules where nobody waits, and those go straight to the module's own forward.
"""

from __future__ import annotations

from typing import Any

from nnsight.intervention.source import STATE, Controller


class Handoff(Controller):
    """nnsight's controller, with a short way past a module where nobody waits.

    Attributes:
        interleaver: The one interleaver that reaches the module.
        locations: Its names of the module's input, skip gate and output.
    """

    interleaver: Any
    locations: tuple[str, str, str]

    @classmethod
    def shorten(cls, controller: Controller, interleaver: Any) -> None:
        """Make nnsight's controller one of these, where ``interleaver`` alone reaches its module."""
        routes = controller.state.routes
        if len(routes) == 1 and routes[0][0]() is interleaver and "_hf_hook" not in vars(controller.module_ref()):
            controller.__class__ = cls
            controller.interleaver, controller.locations = interleaver, routes[0][2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward; hand over what somebody waits for."""
        interleaver = self.interleaver
        if not (interleaver.interleaving and interleaver.busy):
            return self.state.body(self.module_ref(), *args, **kwargs)
        entered, gate, left = self.locations
        counts, parked, gathers = interleaver.counts, interleaver.parked, interleaver.gathers
        if entered in parked or gate in parked or entered in gathers or interleaver.closely:
            return super().__call__(*args, **kwargs)
        # The visits of the input and of the gate count before the body runs, as they do on nnsight's way.
        counts[entered] = counts.get(entered, 0) + 1
        counts[gate] = counts.get(gate, 0) + 1
        output = self.state.body(self.module_ref(), *args, **kwargs)
        # Asked anew: a block that a module inside this one has served may wait here by now.
        if left in interleaver.parked or left in gathers:
            return interleaver.handle(left, output)
        counts[left] = counts.get(left, 0) + 1
        return output


class Handoffs:
    """The controllers of a model's modules.

    Args:
        model: The worker's tree, just built.
        permanent: Leave them where they are: with CUDA graphs they are part of what is recorded.
    """

    def __init__(self, model: Any, *, permanent: bool) -> None:
        self._on = True
        found: dict[int, tuple[dict[str, Any], Controller]] = {}
        for envoy in () if permanent else model.modules():
            own = vars(envoy._module)
            controller, state = own.get("forward"), own.get(STATE)
            # A module that came with a forward of its own keeps it under the controller alone.
            if type(controller) is Controller and state.original is type(envoy._module).forward:
                Handoff.shorten(controller, model.interleaver)
                found[id(envoy._module)] = own, controller
        self._controllers = list(found.values())

    def want(self, wanted: bool) -> None:
        """Have them there for the step that comes, or not."""
        if wanted is self._on:
            return
        self._on = wanted
        for own, controller in self._controllers:
            if wanted:
                own["forward"] = controller
            else:
                del own["forward"]
