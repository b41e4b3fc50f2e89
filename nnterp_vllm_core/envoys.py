"""The envoys that carry standard values, and the attribute that serves one.

An attribute knows only its name. What it does on this model is a `View`, put on each envoy when the tree is built; an
envoy without one (a user's own class over a module that the family does not describe) says so.
"""

from __future__ import annotations

import difflib
from typing import Any

from nnsight.intervention.envoy import Envoy

from .errors import Unavailable
from .protocol import VALUES, Value
from .views import View

#: Where an envoy keeps its views, by value name.
SLOT = "_standard_views"


class StandardValue(property):
    """One standard value as an attribute of an envoy.

    A ``property`` because nnsight's envoys fall back to the wrapped module for a name they lack, and only a data
    descriptor of the class comes before that.
    """

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value
        writes = "in-place edits and assignments reach the model" if value.write == "writable" else "read-only"
        when = "; on the prefill only" if value.prefill_only else ""
        self.__doc__ = f"{value.meaning}\n\nAxes ``[{', '.join(value.axes)}]``; {writes}{when}."

    def view(self, envoy: Any) -> View:
        """The view that serves this value on ``envoy``.

        Raises:
            Unavailable: The family says nothing about this module.
        """
        views: dict[str, View] = envoy.__dict__.get(SLOT, {})
        found = views.get(self.value.name)
        if found is None:
            raise Unavailable(
                f"{envoy.path}.{self.value.name} is not served: the family describes no such value on this module "
                f"({type(envoy._module).__name__}). `model.support()` lists what is."
            )
        return found

    def __get__(self, envoy: Any, owner: type | None = None) -> Any:
        if envoy is None:
            return self
        try:
            view = envoy.__dict__[SLOT][self.value.name]
        except KeyError:
            view = self.view(envoy)  # says why there is none
        return view.get()

    def __set__(self, envoy: Any, new: Any) -> None:
        self.view(envoy).set(new)


class Carrier:
    """What every envoy with standard values does with a name that it lacks: say which value comes nearest."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]  # nnsight's, which asks the wrapped module
        except AttributeError as error:
            mine = [value for value in VALUES if isinstance(getattr(type(self), value, None), StandardValue)]
            near = difflib.get_close_matches(name, mine, n=1)
            if not near:
                raise
            raise AttributeError(f"{error}. Did you mean {near[0]!r}?") from None


class BlockEnvoy(Carrier, Envoy):
    """A transformer block: carries the residual stream that enters and leaves it."""

    layer_input = StandardValue(VALUES["layer_input"])
    layer_output = StandardValue(VALUES["layer_output"])


class AttentionEnvoy(Carrier, Envoy):
    """A block's attention: carries its contribution to the stream and the interior of its kernel."""

    attention_queries = StandardValue(VALUES["attention_queries"])
    attention_keys = StandardValue(VALUES["attention_keys"])
    attention_values = StandardValue(VALUES["attention_values"])
    attention_scores = StandardValue(VALUES["attention_scores"])
    attention_probabilities = StandardValue(VALUES["attention_probabilities"])
    attention_head_outputs = StandardValue(VALUES["attention_head_outputs"])
    attention_output = StandardValue(VALUES["attention_output"])


class MlpEnvoy(Carrier, Envoy):
    """A block's feed-forward part: carries its contribution to the stream."""

    mlp_output = StandardValue(VALUES["mlp_output"])


class ModelValues(Carrier):
    """The values that the model itself carries; a mixin of every engine's model class."""

    input_ids = StandardValue(VALUES["input_ids"])
    input_size = StandardValue(VALUES["input_size"])
    attention_mask = StandardValue(VALUES["attention_mask"])
    token_embeddings = StandardValue(VALUES["token_embeddings"])
    next_token_probs = StandardValue(VALUES["next_token_probs"])
