"""A first declaration for ``nnterp-vllm new``, read off the installed sources of vLLM and transformers.

What the sources tell is written down: the block classes, their arguments, the stream's convention, the parts' names. What
they do not tell takes Llama's form and is for the author to correct; ``nnterp-vllm check`` and the conformance suite say
where.
"""

from __future__ import annotations

from dataclasses import dataclass

from .family import GPT2_BLOCK_NAMES, LLAMA_BLOCK_NAMES, LLAMA_NAMES
from .flow import first_use, returned, yielded
from .sources import ClassSource, Sources

_BLOCK_ENDINGS = ("DecoderLayer", "Block", "Layer")
#: The spelling of a block's parts, in the order in which they are looked for.
_SPELLINGS = {"self_attn": ("self_attn", "attn", "attention", "self_attention"), "mlp": ("mlp", "feed_forward", "ffn")}


@dataclass(frozen=True, kw_only=True)
class Outline:
    """The pieces of a declaration, as source text.

    Attributes:
        imports: Names to import from `nnterp_vllm_core.family`.
        body: The ``vllm=`` and ``transformers=`` lines of the `Family`.
        known: Whether transformers here knows the model type.
        notes: What could not be told from the sources.
    """

    imports: tuple[str, ...]
    body: str
    known: bool
    notes: tuple[str, ...]


def outline(model_type: str, sources: Sources) -> Outline:
    """A declaration for ``model_type``; Llama's own where transformers here does not know it."""
    theirs = f"transformers.models.{model_type}.modeling_{model_type}"
    ours = f"vllm.model_executor.models.{model_type}"
    notes = []
    known = block_of(theirs, sources) is not None
    if not known:
        notes.append(f"transformers here has no block of model_type {model_type!r}; the declaration describes Llama's.")
        theirs, ours = "transformers.models.llama.modeling_llama", "vllm.model_executor.models.llama"
    imports = {"Family", "Implementation"}
    lines: list[str] = []
    for keyword, module in (("vllm", ours), ("transformers", theirs)):
        block = block_of(module, sources)
        if block is None:
            notes.append(
                f"there is no block in {module}. If {keyword} has this model in another file, declare that as {keyword}=."
            )
            continue
        text, used = _implementation(module, block)
        imports |= used
        lines += [f"    {keyword}={text},"]
    return Outline(imports=tuple(sorted(imports, key=_import_order)), body="\n".join(lines), known=known, notes=tuple(notes))


def block_of(module: str, sources: Sources) -> ClassSource | None:
    """The class in ``module`` that looks like the model's block: named like one, with a forward and an attention."""
    candidates = [
        one
        for ending in _BLOCK_ENDINGS
        for one in sources.classes(module)
        if one.name.endswith(ending) and one.method("forward") is not None and _part("self_attn", one) is not None
    ]
    return candidates[0] if candidates else None


def _import_order(name: str) -> tuple[bool, str]:
    return not name.isupper() and "_" not in name, name


def _part(standard: str, block: ClassSource) -> str | None:
    return next((name for name in _SPELLINGS[standard] if name in block.attributes), None)


def _implementation(module: str, block: ClassSource) -> tuple[str, set[str]]:
    used: set[str] = set()
    lines = [f'source="{module}",', f'block="{block.name}",']
    forward = block.method("forward")
    assert forward is not None
    positional = (block.arguments() or ([], [], False))[0]
    stream = _stream(positional, first_use(forward, "residual") == "read", returned(forward), used)
    lines.append(f"stream={stream},")
    names = {attribute for one in block.sources.classes(module) for attribute in one.attributes}
    if "wte" in names and "embed_tokens" not in names:
        used.add("GPT2_NAMES")
        lines.append("names=GPT2_NAMES,")
    elif "lm_head" not in names:  # the head is tied to the embedding and has no module
        headless = {name: path for name, path in LLAMA_NAMES.items() if name != "lm_head"}
        lines.append(f"names={headless!r},".replace("'", '"'))
    lines += _block_names(block, used)
    attention = _part("self_attn", block)
    assert attention is not None
    pair = yielded(forward, attention)
    if isinstance(pair, int) and pair > 1:
        used.add("At")
        lines.append('values={"attention_output": At("self_attn.output", 0)},')
    inner = [child for child in block.children(attention) if "attn" in child.attributes]
    if module.startswith("vllm.") and block.children(attention) and not inner:
        lines.append('attention="self_attn.attn",  # not found in the source: name the path of vLLM\'s Attention here')
    inside = "\n".join(f"        {line}" for line in lines)
    return f"Implementation(\n{inside}\n    )", used


def _stream(positional: list[str], fused: bool, shapes: set[int | str | None], used: set[str]) -> str:
    hidden = "hidden_states" if "hidden_states" in positional else (positional or ["hidden_states"])[0]
    index = positional.index(hidden) if hidden in positional else 0
    if fused:
        used.add("FusedStream")
        residual = positional.index("residual")
        if (index, hidden, residual) == (1, "hidden_states", 2):
            return "FusedStream()"
        used.add("Arg")
        return f'FusedStream(hidden=Arg({index}, "{hidden}"), residual=Arg({residual}, "residual"))'
    used.add("Stream")
    options = []
    if (index, hidden) != (0, "hidden_states"):
        used.add("Arg")
        options.append(f'enters=Arg({index}, "{hidden}")')
    if shapes and all(isinstance(shape, int) for shape in shapes):
        options.append("leaves=0")
    return f"Stream({', '.join(options)})"


def _block_names(block: ClassSource, used: set[str]) -> list[str]:
    if all(name in block.attributes for name in LLAMA_BLOCK_NAMES.values()):
        return []
    if all(name in block.attributes for name in GPT2_BLOCK_NAMES.values()):
        used.add("GPT2_BLOCK_NAMES")
        return ["block_names=GPT2_BLOCK_NAMES,"]
    found = {standard: name for standard in _SPELLINGS if (name := _part(standard, block)) is not None}
    found |= {name: name for name in block.attributes if "norm" in name or name.startswith("ln_")}
    return ["block_names={", *(f'    "{standard}": "{name}",' for standard, name in found.items()), "},"]
