"""nnsight's handoffs on the modules, there while something can want one and gone while nothing can.

nnsight puts a controller in place of every module's ``forward``, a thousand calls a step on a deep model. A step whose
requests carry no blocks, and for which nothing is collected, has no use for them.
"""

from __future__ import annotations

from typing import Any

from nnsight.intervention.source import STATE, Controller


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
