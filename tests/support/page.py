"""The code blocks of a documentation page, and the outputs that the page shows for them."""

from __future__ import annotations

import functools
import io
import linecache
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
        name: File name and line, for tracebacks.
        source: Its code, less the shown output.
        shown: The lines that the page says it prints, the comments at its end.
    """

    name: str
    source: str
    shown: list[str]

    def run(self, namespace: dict[str, Any], replace: dict[str, str]) -> list[str]:
        """Execute it in ``namespace`` after the page's replacements; the lines that it prints."""
        source = self.source
        for old, new in replace.items():
            source = source.replace(old, new)
        # nnsight reads a block's source from where tracebacks do.
        linecache.cache[self.name] = (len(source), None, source.splitlines(keepends=True), self.name)
        printed = io.StringIO()
        # The block's own prints alone: an engine of this process logs to stdout too.
        namespace["print"] = functools.partial(print, file=printed)
        exec(compile(source, self.name, "exec"), namespace)
        return printed.getvalue().splitlines()


def blocks(page: Path) -> list[Block]:
    """A page's Python blocks, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        lines = match[1].splitlines()
        end = len(lines)
        while end and lines[end - 1].startswith("# "):
            end -= 1
        name = f"{page.name}:{text[: match.start()].count(chr(10)) + 2}"
        found.append(Block(name, "\n".join(lines[:end]) + "\n", [line[2:] for line in lines[end:]]))
    return found
