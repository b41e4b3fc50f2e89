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

from .block_check import BlockCheck
from .engine import engine_version, outside, source_folder
from .family import Family, Implementation
from .sources import Sources


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
            findings += [
                Finding(level="error", where=_where(implementation, block), text=text)
                for block, text in BlockCheck(implementation, sources).run()
            ]
        else:
            findings.append(_not_there(implementation, package, found, sources))
    return findings


def _where(implementation: Implementation, block: str = "") -> str:
    return f"{implementation.source}.{block or implementation.blocks[0]}"


def _not_there(implementation: Implementation, package: str, found: list[Implementation], sources: Sources) -> Finding:
    """What it means that a declared block is not in the installed sources."""
    module = sources.tree(implementation.source) is not None
    homes = [home for home in _homes(implementation) if home != implementation.source]
    if module:
        names = ", ".join(one.name for one in sources.classes(implementation.source))
        text = f"the module has no class {' or '.join(implementation.blocks)}; its classes are {names}."
    else:
        text = "there is no such module here."
    if homes:
        text += f" A class of that name is in {', '.join(homes)}."
    another = [one for one in found if one.source.startswith("vllm.")]
    moved = not module and not homes and found  # vLLM runs the model through its Transformers backend, or an older one did
    if package == "vllm" and (another or moved):
        # A family serves several versions of vLLM, and this declaration is for another one.
        return Finding(
            level="note", where=_where(implementation), text=f"{text} Another declaration of the family applies here."
        )
    return Finding(level="error", where=_where(implementation), text=text)


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
