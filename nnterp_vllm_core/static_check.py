"""A declaration held against the sources of the installed vLLM and transformers; nothing of either is imported.

It finds what reading the model's code would find: a class that is gone, an argument that stands elsewhere, a part under
another name, a tuple where a tensor is declared, a stream of the other convention. What it cannot tell, it leaves to the
conformance suite, which runs the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .engine import engine_version, outside, source_folder
from .family import Arg, At, Family, FusedStream, Implementation, Missing
from .flow import first_use, returned, yielded
from .sources import TENSOR, ClassSource, Shape, Sources


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check found.

    Attributes:
        level: ``error`` (values would be wrong or the load would fail), ``warning``, or ``note``.
        where: What was checked.
        text: What was observed, what was expected, and a way out.
    """

    level: Literal["error", "warning", "note"]
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.text}"


def check_family(family: Family, sources: Sources | None = None) -> list[Finding]:
    """Everything that the installed sources contradict in one family's declaration."""
    sources = sources or Sources()
    findings: list[Finding] = []
    version = engine_version()
    if version is not None and outside(family.validated, version):
        text = f"vLLM {version} is installed; the family was validated on {family.validated}."
        findings.append(Finding(level="warning", where="validated", text=text))
    engines = [("vllm", one) for one in family.native]
    engines += [] if family.transformers is None else [("transformers", family.transformers)]
    present = {package for package in ("vllm", "transformers") if source_folder(package) is not None}
    for package in sorted({package for package, _ in engines} - present):
        text = f"{package} is not installed, so the declaration for it was not checked."
        findings.append(Finding(level="warning", where=package, text=text))
    found = [one for package, one in engines if package in present and sources.defines(one.source, one.blocks)]
    for package, implementation in engines:
        if package not in present:
            continue
        if implementation in found:
            findings += list(_Check(implementation, sources).run())
        elif package == "vllm" and found:
            # A declaration for another version of vLLM: this one builds a block that another declaration describes.
            text = f"{_absent(implementation, sources)} Another declaration of the family applies here."
            findings.append(Finding(level="note", where=_where(implementation), text=text))
        else:
            findings.append(Finding(level="error", where=_where(implementation), text=_absent(implementation, sources)))
    return findings


def _where(implementation: Implementation, block: str = "") -> str:
    return f"{implementation.source}.{block or implementation.blocks[0]}"


def _absent(implementation: Implementation, sources: Sources) -> str:
    if sources.tree(implementation.source) is None:
        text = "there is no such module here."
    else:
        names = [one.name for one in sources.classes(implementation.source)]
        text = f"the module has no class {' or '.join(implementation.blocks)}; its classes are {', '.join(names)}."
    elsewhere = [module for module in _homes(implementation) if module != implementation.source]
    return text + (f" A class of that name is in {', '.join(elsewhere)}." if elsewhere else "")


def _homes(implementation: Implementation) -> Iterator[str]:
    """The model modules of the same package that define a class of the declared name."""
    package = implementation.source.split(".")[0]
    root = source_folder(package)
    if root is None:
        return
    line = re.compile(rf"^class ({'|'.join(implementation.blocks)})\b", re.MULTILINE)
    for file in sorted(root.glob("model_executor/models/*.py" if package == "vllm" else "models/*/modeling_*.py")):
        if line.search(file.read_text(encoding="utf-8")):
            yield ".".join([package, *file.relative_to(root).with_suffix("").parts])


class _Check:
    """One implementation against one source file."""

    def __init__(self, implementation: Implementation, sources: Sources) -> None:
        self.it = implementation
        self.sources = sources

    def run(self) -> Iterator[Finding]:
        for name in self.it.blocks:
            block = self.sources.find(self.it.source, name)
            if block is None:
                yield self._finding("note", name, f"{self.it.source} has no class of that name.")
                continue
            for text in (*self._stream(block), *self._parts(block), *self._values(block)):
                yield self._finding("error", name, text)
        for text in self._names():
            yield self._finding("error", "", text)

    def _finding(self, level: Literal["error", "warning", "note"], block: str, text: str) -> Finding:
        return Finding(level=level, where=_where(self.it, block), text=text)

    def _stream(self, block: ClassSource) -> Iterator[str]:
        forward = block.method("forward")
        if forward is None:
            return
        shapes = returned(forward)
        stream = self.it.stream
        if isinstance(stream, FusedStream):
            yield from self._argument(block, stream.hidden, "FusedStream.hidden")
            yield from self._argument(block, stream.residual, "FusedStream.residual")
            if first_use(forward, stream.residual.name) == "assigned":
                yield (
                    f"FusedStream is declared, but forward assigns {stream.residual.name!r} before it reads it, so the "
                    f"stream is {stream.hidden.name!r} alone. Declare Stream(enters=..., leaves=...)."
                )
            if shapes and None not in shapes and 2 not in shapes:
                yield f"FusedStream is declared, but forward returns {_worded(shapes)}, not a pair. Declare Stream."
            return
        yield from self._argument(block, stream.enters, "Stream.enters")
        arguments = block.arguments()
        if arguments is not None and "residual" in arguments[0] and first_use(forward, "residual") == "read":
            yield (
                "Stream is declared, but forward takes 'residual' and reads it before it assigns it, so the stream is the "
                "sum of both. Declare FusedStream."
            )
        if stream.leaves is None and shapes and None not in shapes and TENSOR not in shapes:
            yield f"Stream(leaves=None) is declared, but forward returns {_worded(shapes)}. Give leaves= the stream's index."
        if stream.leaves is not None and shapes and None not in shapes:
            if not any(isinstance(shape, int) and shape > stream.leaves for shape in shapes):
                yield f"Stream(leaves={stream.leaves}) is declared, but forward returns {_worded(shapes)}."

    def _argument(self, owner: ClassSource, arg: Arg, what: str) -> Iterator[str]:
        arguments = owner.arguments()
        if arguments is None:
            return
        positional, named, open_ended = arguments
        if arg.name in positional:
            index = positional.index(arg.name)
            if index != arg.index:
                yield f"{what} is {arg}, but {owner.name}.forward takes {arg.name!r} as argument {index}."
        elif arg.name not in named and not (open_ended and arg.index >= len(positional)):
            yield f"{what} is {arg}, but {owner.name}.forward takes {', '.join((*positional, *named)) or 'nothing'}."

    def _parts(self, block: ClassSource) -> Iterator[str]:
        for standard, native in self.it.block_names.items():
            if native not in block.attributes:
                yield (
                    f"block_names[{standard!r}] is {native!r}, which {block.name} never assigns; it assigns "
                    f"{', '.join(sorted(block.attributes)) or 'nothing'}."
                )

    def _values(self, block: ClassSource) -> Iterator[str]:
        for value in dict.fromkeys(("attention_output", "mlp_output", *self.it.values)):
            declared = self.it.place(value)
            if declared is None or isinstance(declared, Missing):
                continue
            if value == "mlp_output" and "mlp" not in self.it.block_names and value not in self.it.values:
                continue
            places = declared if isinstance(declared, tuple) else (declared,)
            faults = [list(self._place(block, value, at)) for at in places]
            if all(faults):  # of several places, one that this source has is enough
                yield from faults[0]
        if self.it.source.startswith("vllm."):
            yield from self._path(block, "attention", self.it.attention)

    def _place(self, block: ClassSource, value: str, at: At) -> Iterator[str]:
        place, _, side = at.path.rpartition(".")
        if not place or place.startswith("."):
            return
        missing = list(self._path(block, value, place))
        if missing:
            yield from missing
            return
        native, *rest = self._native(place)
        owners = block.children(native)
        for step in rest:
            owners = [child for owner in owners for child in owner.children(step)]
        what = f"{value} at {at.path!r}"
        if side == "input":
            if isinstance(at.select, Arg) and owners:
                faults = [list(self._argument(owner, at.select, what)) for owner in owners]
                if all(faults):
                    yield from faults[0]
            return
        shapes = self._output(block, native if not rest else "", owners)
        if shapes and None not in shapes and at.select is None and TENSOR not in shapes:
            yield f"{what} is declared to be a tensor, but the sources show {_worded(shapes)}. Give the element's index."
        if shapes and None not in shapes and isinstance(at.select, int):
            if not any(isinstance(shape, int) and shape > at.select for shape in shapes):
                yield f"{what} is declared to be element {at.select}, but the sources show {_worded(shapes)}."

    def _output(self, block: ClassSource, child: str, owners: list[ClassSource]) -> set[Shape]:
        """What a part returns: how the block takes the call apart decides, then the part's own ``return``."""
        forward = block.method("forward")
        seen = yielded(forward, child) if child and forward is not None else None
        if seen is not None:
            return {seen}
        methods = [owner.method("forward") for owner in owners]
        return {shape for method in methods if method is not None for shape in returned(method)}

    def _native(self, path: str) -> list[str]:
        first, *rest = path.split(".")
        return [self.it.block_names.get(first, first), *rest]

    def _path(self, block: ClassSource, what: str, path: str) -> Iterator[str]:
        owners = [block]
        for step in self._native(path):
            if not owners:
                return  # the sources do not tell the class, so the rest of the path cannot be checked
            if not any(step in owner.attributes for owner in owners):
                known = sorted({name for owner in owners for name in owner.attributes})
                names = " or ".join(owner.name for owner in owners)
                yield f"{what} is declared at {path!r}, but {names} never assigns {step!r}; it assigns {', '.join(known)}."
                return
            owners = [child for owner in owners for child in owner.children(step)]

    def _names(self) -> Iterator[str]:
        """Paths from the model. Which class is the root depends on the checkpoint, so each step is looked for anywhere.

        What is outside ``language_model`` belongs to a multimodal model's own file and is left out.
        """
        known: set[str] = set()
        for one in self.sources.classes(self.it.source):
            known |= set(one.attributes)
        for standard, path in self.it.names.items():
            steps = path.split(".")
            for step in steps[steps.index("language_model") + 1 if "language_model" in steps else 0 :]:
                if known and step not in known:
                    yield f"names[{standard!r}] is {path!r}, but no class of {self.it.source} assigns {step!r}."
                    break


def _worded(shapes: set[Shape]) -> str:
    words = [f"a tuple of {shape}" if isinstance(shape, int) else "a tensor" for shape in sorted(shapes, key=str)]
    return " or ".join(words)
