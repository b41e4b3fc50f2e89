"""What a family says about one model: where each standard value lives. Data only, checked where it is written.

A plugin's module builds these objects at import. Nothing here imports torch, vLLM or nnsight, and classes are named by
strings, so that listing families takes milliseconds on a machine that has none of them.

An example, a block that takes and returns the residual stream and whose attention returns a pair::

    Implementation(
        source="transformers.models.gpt2.modeling_gpt2",
        block="GPT2Block",
        names=GPT2_NAMES,
        block_names=GPT2_BLOCK_NAMES,
        stream=Stream(),
        values={"attention_output": At("self_attn.output", 0), "mlp_output": At("mlp.output")},
    )
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from .errors import DeclarationError
from .protocol import VALUES

#: Standard names of the tree, as Llama spells them: the default of every implementation.
LLAMA_NAMES: Mapping[str, str] = {
    "embed_tokens": "model.embed_tokens",
    "layers": "model.layers",
    "norm": "model.norm",
    "lm_head": "lm_head",
}
#: Standard names inside a block, as Llama spells them.
LLAMA_BLOCK_NAMES: Mapping[str, str] = {
    "self_attn": "self_attn",
    "mlp": "mlp",
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
}
#: Llama's names where the head is the embedding and has no module of its own.
TIED_NAMES: Mapping[str, str] = {name: path for name, path in LLAMA_NAMES.items() if name != "lm_head"}
#: A text model inside vLLM's multimodal wrappers, and inside transformers' own.
VLLM_WRAPPED: Mapping[str, str] = {name: f"language_model.{path}" for name, path in LLAMA_NAMES.items()}
HF_WRAPPED: Mapping[str, str] = {name: path.replace("model.", "model.language_model.") for name, path in LLAMA_NAMES.items()}
#: GPT-2's spelling of the same, shared by several families.
GPT2_NAMES: Mapping[str, str] = {
    "embed_tokens": "transformer.wte",
    "layers": "transformer.h",
    "norm": "transformer.ln_f",
    "lm_head": "lm_head",
}
GPT2_BLOCK_NAMES: Mapping[str, str] = {
    "self_attn": "attn",
    "mlp": "mlp",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
}


@dataclass(frozen=True)
class Arg:
    """One argument of a forward, by position and by name: a caller may pass it either way."""

    index: int
    name: str


@dataclass(frozen=True)
class At:
    """A place: a path that starts at the block and ends in ``input`` or ``output``, and which element of it.

    Attributes:
        path: ``"self_attn.output"``. The first component may be a standard name of the block. A path that starts with a
            dot, ``".embed_tokens.output"``, starts at the model.
        select: The element of a tuple that is returned (an int), or the argument of a call (an `Arg`); ``None`` means
            the value is a bare tensor (``output``) or the first argument (``input``).
        times: A number, or an attribute of the block (``"residual_multiplier"``, ``"self_attn.scaling"``) or of the model
            (``".model.normalizer"``, with a leading dot), that multiplies what is read there before it is the standard
            value. Writes are divided by it.
        plus: An attribute, named like ``times``'s, that the model adds to what is read there later on: a bias that it
            keeps apart. ``None`` there means nothing to add. Writes are lessened by it.
    """

    path: str
    select: int | Arg | None = None
    times: float | str | None = None
    plus: str | None = None

    def __post_init__(self) -> None:
        end = self.path.rsplit(".", 1)[-1]
        if end not in ("input", "output"):
            raise DeclarationError(f"At({self.path!r}): a place ends in 'input' or 'output', not {end!r}.")
        if end == "input" and isinstance(self.select, int):
            raise DeclarationError(
                f"At({self.path!r}, {self.select}): an argument is named by Arg(index, name), not by a number."
            )
        if end == "output" and isinstance(self.select, Arg):
            raise DeclarationError(f"At({self.path!r}, {self.select}): an output has no arguments; give an index.")


@dataclass(frozen=True)
class Missing:
    """A standard value that this model cannot serve, and the reason a user needs."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise DeclarationError("Missing(''): say why the value cannot be served.")


#: Where a value is: one place, several (the first whose module exists), or nowhere.
Place: TypeAlias = At | Missing | tuple[At, ...]


@dataclass(frozen=True)
class Stream:
    """The block takes the residual stream and returns it.

    Attributes:
        enters: The forward's argument that holds the stream.
        leaves: Which element of the returned tuple is the stream; ``None`` for a bare tensor. 0 is also right where some
            versions return the tensor alone.
    """

    enters: Arg = Arg(0, "hidden_states")
    leaves: int | None = None


@dataclass(frozen=True)
class FusedStream:
    """The block takes and returns ``(hidden_states, residual)``; the stream is their sum.

    The first block is called with ``residual=None``. A write puts the new stream in ``hidden_states`` and zeros in
    ``residual``, so the next block computes exactly what was written.
    """

    hidden: Arg = Arg(1, "hidden_states")
    residual: Arg = Arg(2, "residual")


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One code base's version of a model: vLLM's own, or transformers' (which vLLM's Transformers backend runs too).

    Attributes:
        source: The module that defines the block, for checks and for readers.
        block: The block's class name; the loaded model's blocks decide which implementation applies.
        names: Standard name to path from the model, for ``embed_tokens``, ``layers``, ``norm`` and ``lm_head``
            (left out where the head is tied and has no module).
        block_names: Standard name to child name inside a block.
        stream: How the residual stream enters and leaves the block.
        values: Where the two contributions are read, and places or `Missing` for values that differ from the default.
            Several places mean the first whose module this block has, for a part that only some checkpoints have.
        before_head: What the last block's stream passes before the head: standard names or paths from the model, in
            order. One that a checkpoint does not have is left out.
        head: What transformers does to the head's output, in order: ``("times", key)``, ``("divided", key)`` or
            ``("softcap", key)`` with the config's key; one that a config lacks is left out. vLLM does this itself.
        attention: The path, from the block, of vLLM's attention layer. Unused for transformers, whose interior is
            reached through its attention registry.
    """

    source: str
    block: str | tuple[str, ...]
    stream: Stream | FusedStream
    names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    block_names: Mapping[str, str] = field(default_factory=lambda: LLAMA_BLOCK_NAMES)
    values: Mapping[str, Place] = field(default_factory=dict)
    before_head: tuple[str, ...] = ("norm",)
    head: tuple[tuple[str, str], ...] = (
        ("times", "logit_scale"),
        ("divided", "logits_scaling"),
        ("softcap", "final_logit_softcapping"),
    )
    attention: str = "self_attn.attn"

    def __post_init__(self) -> None:
        unknown = sorted(set(self.values) - set(VALUES))
        if unknown:
            raise DeclarationError(f"{self.source}: {unknown!r} are no standard values; these are: {sorted(VALUES)}.")
        for required in ("embed_tokens", "layers", "norm"):
            if required not in self.names:
                raise DeclarationError(f"{self.source}: names lacks {required!r}, which every model needs.")
        if "self_attn" not in self.block_names:
            raise DeclarationError(f"{self.source}: block_names lacks 'self_attn'.")

    @property
    def blocks(self) -> tuple[str, ...]:
        """The block's class names, always as a tuple."""
        return (self.block,) if isinstance(self.block, str) else self.block

    def place(self, value: str) -> Place | None:
        """Where ``value`` is declared to be; ``None`` for a value the core finds without help."""
        if value in self.values:
            return self.values[value]
        return _CONTRIBUTIONS.get(value)


_CONTRIBUTIONS: Mapping[str, At] = {
    "attention_output": At("self_attn.output"),
    "mlp_output": At("mlp.output"),
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family: the ``model_type`` names it covers and where its standard values live on each engine.

    Attributes:
        model_types: The ``model_type`` values of config.json that it covers.
        vllm: vLLM's own implementation, or ``None`` where vLLM has none (its Transformers backend then runs the other).
            Several, where vLLM's versions or configurations differ in the block class.
        transformers: transformers' implementation.
        sizes: Standard size name to the config keys that hold it, tried in order, where the config spells it
            differently; ``"4 * hidden_size"`` is a product, and ``"1 if multi_query"`` holds where that key is true.
        validated: The range of vLLM versions that the family was tested with; outside it a load warns.
        notes: What a user of this family should know, one sentence each.
        module: The plugin's module name, set when the plugin is loaded.
    """

    model_types: tuple[str, ...]
    vllm: Implementation | tuple[Implementation, ...] | None = None
    transformers: Implementation | None = None
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    validated: str = ">=0.26,<0.33"
    notes: tuple[str, ...] = ()
    module: str = ""

    def __post_init__(self) -> None:
        if not self.model_types:
            raise DeclarationError("A Family needs at least one model_type.")
        if self.vllm is None and self.transformers is None:
            raise DeclarationError(f"Family {self.model_types!r} declares neither vllm= nor transformers=.")

    @property
    def __name__(self) -> str:
        """The plugin module's name, such as ``nnterp_vllm_families.qwen2``."""
        return self.module or f"<family {self.model_types[0]}>"

    @property
    def native(self) -> tuple[Implementation, ...]:
        """vLLM's own implementations, none or more."""
        if self.vllm is None:
            return ()
        return self.vllm if isinstance(self.vllm, tuple) else (self.vllm,)

    def loaded_from(self, module: str) -> Family:
        """This family, knowing the plugin module it came from."""
        return replace(self, module=module)

    def size(self, name: str, config: Any) -> int:
        """One size of a checkpoint, such as ``num_kv_heads``, from its (text) config.

        Raises:
            DeclarationError: The config has none of the keys that could hold it.
        """
        for key in self.sizes.get(name, ()) + _SIZE_KEYS[name]:
            number = _read_size(key, config)
            if number is not None:
                return number
        raise DeclarationError(
            f"Family {self.__name__}: {name} is under none of {self.sizes.get(name, ()) + _SIZE_KEYS[name]} in this "
            f"checkpoint's config. Name its key in Family(sizes=...)."
        )


#: Standard sizes and the config keys that usually hold them, in the order they are tried.
_SIZE_KEYS: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "vocab_size": ("vocab_size",),
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads", "num_attention_heads"),
    "head_dim": ("head_dim", "hidden_size / num_attention_heads"),
    "intermediate_size": ("intermediate_size",),
}
SIZES: tuple[str, ...] = tuple(_SIZE_KEYS)


def _read_size(key: str, config: Any) -> int | None:
    key, _, condition = key.partition(" if ")
    if condition and not getattr(config, condition, None):
        return None
    if key.isdigit():
        return int(key)
    for sign in (" * ", " / "):
        if sign in key:
            left, right = (part if part.isdigit() else _read_size(part, config) for part in key.split(sign))
            if left is None or right is None:
                return None
            return int(left) * int(right) if sign == " * " else int(left) // int(right)
    number = getattr(config, key, None)
    return None if number is None else int(number)
