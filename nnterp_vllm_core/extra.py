"""A value that a plugin adds to a family: read-only, and served like the standard ones.

Data only, like a `Family`: nothing here imports torch, and the function that computes the value is named by a string.

An example, the activations of a dictionary that was trained on what the feed-forward part of block 12 adds::

    Extra(
        name="dictionary_features",
        host="mlp",
        axes=("batch", "seq", "features"),
        meaning="Activations of the dictionary trained on mlp_output.",
        of="mlp_output",
        compute="my_dictionaries.encode:features",
        layers=(12,),
    )

A block then reads ``model.layers[12].mlp.dictionary_features``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import DeclarationError
from .family import At
from .protocol import VALUES, Host, Value

#: Standard values that are no tensors, so nothing can be computed from them.
_NO_TENSOR = ("attention_mask", "input_size")


@dataclass(frozen=True, kw_only=True)
class Extra:
    """One value beside the standard ones. It is either read at a place or computed from a standard value.

    Attributes:
        name: The attribute that a block reads.
        host: The envoy that carries it: ``model``, ``layer``, ``attention`` or ``mlp``.
        axes: Axis words in order; words beyond the standard ones are the plugin's own.
        meaning: One sentence.
        at: Where it is read, as in a family's declaration.
        of: The standard value it is computed from. An edit of that value earlier in the block counts.
        compute: ``"module:function"``. Called where the model runs (on vLLM in the worker) as ``function(value, layer=i)``
            with a private copy of the value and the layer's index (``None`` on the model); returns a tensor.
        layers: The layers that have it; ``None`` for all.
    """

    name: str
    host: Host
    axes: tuple[str, ...]
    meaning: str
    at: At | None = None
    of: str | None = None
    compute: str | None = None
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name.startswith("_"):
            raise DeclarationError(f"Extra name {self.name!r}: a block reads it as an attribute; use a public identifier.")
        if self.name in VALUES:
            raise DeclarationError(f"Extra {self.name!r}: this is a standard value's name, which no plugin can redefine.")
        if not isinstance(self.axes, tuple) or not isinstance(self.layers, tuple | None):
            raise DeclarationError(
                f"Extra {self.name!r}: axes and layers are tuples; got {self.axes!r} and {self.layers!r}."
            )
        if not self.meaning.strip():
            raise DeclarationError(f"Extra {self.name!r}: meaning is empty; say in one sentence what it holds.")
        if (self.at is None) == (self.of is None):
            raise DeclarationError(f"Extra {self.name!r}: give either at= (a place) or of= (a standard value), not both.")
        if (self.of is None) != (self.compute is None):
            raise DeclarationError(f"Extra {self.name!r}: of= and compute= belong together; one of them is missing.")
        if self.host == "model" and self.layers is not None:
            raise DeclarationError(f"Extra {self.name!r}: layers={self.layers!r} means nothing on the model.")
        if self.of is not None:
            self._check_of(self.of, str(self.compute))

    def _check_of(self, of: str, compute: str) -> None:
        if of not in VALUES or of in _NO_TENSOR:
            known = sorted(set(VALUES) - set(_NO_TENSOR))
            raise DeclarationError(f"Extra {self.name!r}: of={of!r} is no standard tensor value; these are: {known!r}.")
        if (VALUES[of].host == "model") != (self.host == "model"):
            raise DeclarationError(
                f"Extra {self.name!r} on host {self.host!r} is computed from {of!r} on host {VALUES[of].host!r}; both must "
                f"stand on the model or both in a layer."
            )
        module, _, function = compute.partition(":")
        if not module or not function.isidentifier():
            raise DeclarationError(f"Extra {self.name!r}: compute={compute!r} is not of the form 'module:function'.")

    @property
    def value(self) -> Value:
        """This extra as a row of the table of values."""
        return Value(
            name=self.name,
            host=self.host,
            axes=self.axes,
            meaning=self.meaning,
            write="read-only",
            prefill_only=self.of is not None and VALUES[self.of].prefill_only,
        )
