"""What a family's declaration alone says about support: no weights, no engine, not even an installed vLLM.

`StandardizedVLLM.support` reads the same off the tree of a loaded model, and knows more: a value that only some layers
have, and what this engine's options forbid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .extra import Extra
from .family import Implementation, Missing
from .protocol import VALUES, Value

#: Unavailable on vLLM whatever the family.
NO_PADDING = "a request is one unpadded sequence on vLLM; StandardizedTransformer has masks"


def declared_support(implementation: Implementation, extras: Sequence[Extra] = ()) -> Mapping[str, str]:
    """Value path to ``"served"`` with its limits, or ``"unavailable: ..."``, on the vLLM engine; ``extras`` come last."""
    standard = {value.path: _status(value, implementation) for value in VALUES.values()}
    return standard | {extra.value.path: _status_of_extra(extra, implementation) for extra in extras}


def _status_of_extra(extra: Extra, implementation: Implementation) -> str:
    source = "served" if extra.of is None else _status(VALUES[extra.of], implementation)
    if source.startswith("unavailable"):
        return f"unavailable: it is computed from {extra.of}, which is {source}"
    status = _status(extra.value, implementation)
    return status if extra.layers is None else status.replace("(", f"(layers {list(extra.layers)} alone; ")


def _status(value: Value, implementation: Implementation) -> str:
    if value.name == "attention_mask":
        return f"unavailable: {NO_PADDING}"
    place = implementation.place(value.name)
    if isinstance(place, Missing):
        return f"unavailable: {place.reason}"
    if value.host == "mlp" and "mlp" not in implementation.block_names:
        return "unavailable: this block has no such part"
    limits = [
        limit for limit, holds in (("read-only", value.write == "read-only"), ("prefill only", value.prefill_only)) if holds
    ]
    return "served" + (f" ({'; '.join(limits)})" if limits else "")
