"""One implementation's declaration against the source of its block: arguments, parts, places, what is returned.

What the source does not tell (a class chosen at run time, a tuple built by a loop) is left out, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator

from .family import Arg, At, FusedStream, Implementation, Missing
from .flow import first_use, returned, yielded
from .sources import TENSOR, ClassSource, Shape, Sources


class BlockCheck:
    """One implementation against one source file.

    Attributes:
        it: The implementation.
        sources: The installed sources.
    """

    def __init__(self, implementation: Implementation, sources: Sources) -> None:
        self.it = implementation
        self.sources = sources

    def run(self) -> Iterator[tuple[str, str]]:
        """What the source contradicts: the block's class name (empty for the whole file) and what is wrong."""
        for name in self.it.blocks:
            block = self.sources.find(self.it.source, name)
            if block is None:
                continue  # one class of several that the declaration covers; another version of the engine has it
            for text in (*self._stream(block), *self._parts(block), *self._values(block)):
                yield name, text
        for text in self._names():
            yield "", text

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
            # Some blocks return more behind the pair (Hunyuan's keys and values).
            if not _may_hold(shapes, 1):
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
        # What transformers' blocks return first or alone differs between its versions, and is served either way.
        either = stream.leaves == 0 and self.it.source.startswith("transformers.") and TENSOR in shapes
        if stream.leaves is not None and not either and not _may_hold(shapes, stream.leaves):
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
        if isinstance(at.select, int) and not _may_hold(shapes, at.select):
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


def _may_hold(shapes: set[Shape], index: int) -> bool:
    """Whether what is returned may be a tuple that has this element."""
    return not shapes or None in shapes or any(isinstance(shape, int) and shape > index for shape in shapes)


def _worded(shapes: set[Shape]) -> str:
    words = [f"a tuple of {shape}" if isinstance(shape, int) else "a tensor" for shape in sorted(shapes, key=str)]
    return " or ".join(words)
