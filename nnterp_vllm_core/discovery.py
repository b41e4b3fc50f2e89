"""What is installed, read from the metadata of distributions. Nothing of a plugin is imported here.

Two environment variables narrow it, in the driver and in every worker, which inherits them. Both hold names separated by
commas; a distribution may be spelled in any way that pip accepts.

``NNTERP_VLLM_BLOCK``
    Distributions and model types that are never used.
``NNTERP_VLLM_PLUGINS``
    When set, only these distributions are used.

They narrow what is *found*. A family that is passed as ``family=`` is not looked up, so neither applies to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import importlib_metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

#: The entry-point group of family plugins; an entry's name is a ``model_type``, its value a module.
FAMILIES = "nnterp_vllm.families"
#: The entry-point group of plugins that add values or watch loading; an entry's name is free, its value a module.
PLUGINS = "nnterp_vllm.plugins"

BLOCK = "NNTERP_VLLM_BLOCK"
ONLY = "NNTERP_VLLM_PLUGINS"

#: The core's own distribution, which every plugin requires in some range.
CORE = "nnterp-vllm"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a distribution's entry points.

    Attributes:
        name: The ``model_type`` of a family, or the free name of another plugin.
        module: The plugin's module.
        distribution: The distribution's name.
        version: The distribution's version.
        left_out: Why the environment leaves it out; empty when it is used.
    """

    name: str
    module: str
    distribution: str
    version: str
    left_out: str = ""
    requires: tuple[str, ...] = field(default=(), repr=False)

    @property
    def model_type(self) -> str:
        """A family's ``model_type``."""
        return self.name

    @property
    def who(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}"

    @property
    def core_range(self) -> SpecifierSet | None:
        """The versions of the core that the distribution asks for; ``None`` when it names none."""
        for line in self.requires:
            requirement = Requirement(line)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and canonicalize_name(requirement.name) == CORE:
                return requirement.specifier
        return None


def advertised(group: str = FAMILIES, name: str | None = None) -> list[Entry]:
    """Every entry of a group, sorted by name and distribution, with those that the environment leaves out marked.

    Args:
        group: The entry-point group.
        name: These entries alone. Reading what forty distributions say about themselves takes longer than all else here.
    """
    return sorted(_entries(group, name), key=lambda entry: (entry.name, entry.distribution, entry.module))


def installed(group: str = FAMILIES) -> list[Entry]:
    """The entries of a group that may be used."""
    return [entry for entry in advertised(group) if not entry.left_out]


def unknown_names() -> dict[str, list[str]]:
    """Names in the two variables that match nothing installed, by variable: most likely misspelled."""
    entries = [*advertised(FAMILIES), *advertised(PLUGINS)]
    distributions = {canonicalize_name(entry.distribution) for entry in entries}
    types = {entry.name for entry in advertised(FAMILIES)}
    strangers = {
        BLOCK: [name for name in _names(BLOCK) if canonicalize_name(name) not in distributions and name not in types],
        ONLY: [name for name in _names(ONLY) if canonicalize_name(name) not in distributions],
    }
    return {variable: names for variable, names in strangers.items() if names}


def _entries(group: str, wanted: str | None) -> Iterator[Entry]:
    blocked = _names(BLOCK)
    only = {canonicalize_name(name) for name in _names(ONLY)}
    chosen = {} if wanted is None else {"name": wanted}
    for point in importlib_metadata.entry_points(group=group, **chosen):
        dist = point.dist
        if dist is None:  # an entry point made by hand, outside any distribution's metadata
            continue
        name = canonicalize_name(dist.name)
        reason = ""
        if name in {canonicalize_name(one) for one in blocked} or (group == FAMILIES and point.name in blocked):
            reason = f"{BLOCK}={os.environ[BLOCK]!r} blocks it"
        elif os.environ.get(ONLY, "").strip() and name not in only:
            reason = f"{ONLY}={os.environ[ONLY]!r} does not name it"
        yield Entry(
            name=point.name,
            module=point.value,
            distribution=dist.name,
            version=dist.version,
            left_out=reason,
            requires=tuple(dist.requires or ()),
        )


def _names(variable: str) -> list[str]:
    return [name for name in (part.strip() for part in os.environ.get(variable, "").split(",")) if name]
