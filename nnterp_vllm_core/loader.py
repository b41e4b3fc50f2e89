"""``model_type`` -> the one plugin that covers it, found through entry points.

Names are read without importing anything, so a broken or slow plugin costs nobody else. Only the plugin that a model
needs is imported, registered with pluggy and checked.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import importlib_metadata
import pluggy

from . import hookspecs
from .errors import BrokenPlugin, DuplicateFamily, UnsupportedFamily
from .family import Family

#: The entry-point group of family plugins; an entry's name is a ``model_type``, its value a module.
GROUP = "nnterp_vllm.families"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One advertised family, as its distribution's metadata tells it; nothing has been imported."""

    model_type: str
    module: str
    distribution: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A family and where it came from, for messages and for the comparison between driver and worker."""

    family: Family
    module: str
    distribution: str | None
    version: str | None

    def __str__(self) -> str:
        if self.distribution is None:
            return f"{self.module} (no distribution)"
        return f"{self.module} from {self.distribution} {self.version}"


def installed() -> list[Entry]:
    """Every advertised family, sorted by ``model_type``; imports none of them."""
    return sorted(_entries(), key=lambda entry: (entry.model_type, entry.distribution))


def _entries() -> Iterator[Entry]:
    for point in importlib_metadata.entry_points(group=GROUP):
        yield Entry(
            model_type=point.name,
            module=point.value,
            distribution=point.dist.name if point.dist is not None else "unknown",
            version=point.dist.version if point.dist is not None else "unknown",
        )


def find(model_type: str) -> Plugin:
    """The plugin that covers ``model_type``.

    Raises:
        UnsupportedFamily: None is installed.
        DuplicateFamily: Two distributions claim it.
        BrokenPlugin: It cannot be imported, misspells a hook, or does not declare what it advertises.
    """
    entries = installed()
    owners = {(entry.distribution, entry.module): entry for entry in entries if entry.model_type == model_type}
    if not owners:
        known = sorted({entry.model_type for entry in entries})
        raise UnsupportedFamily(
            f"No installed plugin covers model_type {model_type!r}; installed: {', '.join(known) or 'none'}. "
            f"Try `pip install nnterp-vllm-{model_type.replace('_', '-')}`, or pass family= with a declaration of your "
            f"own."
        )
    if len(owners) > 1:
        names = ", ".join(f"{entry.distribution} {entry.version}" for entry in owners.values())
        raise DuplicateFamily(
            f"model_type {model_type!r} is claimed by {len(owners)} installed distributions: {names}. Uninstall all but "
            f"one, or choose with family={next(iter(owners.values())).module!r}."
        )
    entry = next(iter(owners.values()))
    who = f"{entry.distribution} {entry.version}"
    families = declared(_import(entry.module, who), who)
    for family in families:
        if model_type in family.model_types:
            return Plugin(
                family=family.loaded_from(entry.module),
                module=entry.module,
                distribution=entry.distribution,
                version=entry.version,
            )
    listed = sorted(name for family in families for name in family.model_types)
    raise BrokenPlugin(
        f"{who} advertises model_type {model_type!r} in its entry points, but {entry.module} declares only {listed!r}. "
        f"Tell its author, or pass family=."
    )


def override(family: ModuleType | str | Family, model_type: str) -> Plugin:
    """The plugin behind ``family=``: a `Family`, a plugin module, or a module's dotted name.

    Raises:
        BrokenPlugin: The module cannot be imported or declares no family; or it declares several and none covers
            ``model_type``.
    """
    if isinstance(family, Family):
        return Plugin(family=family, module=family.__name__, distribution=None, version=None)
    module = _import(family, "family=") if isinstance(family, str) else family
    families = declared(module, "family=")
    covering = [one for one in families if model_type in one.model_types] or (families if len(families) == 1 else [])
    if not covering:
        listed = sorted(name for one in families for name in one.model_types)
        raise BrokenPlugin(
            f"family={module.__name__!r} declares {listed!r} and none of them is this checkpoint's model_type "
            f"{model_type!r}. Pass the Family object itself to use one all the same."
        )
    return Plugin(family=covering[0].loaded_from(module.__name__), module=module.__name__, distribution=None, version=None)


def declared(module: ModuleType, who: str) -> list[Family]:
    """The families that a plugin module declares, with the hook contract checked.

    Raises:
        BrokenPlugin: It implements no hook of ours, misspells one, or returns something else than families.
    """
    manager = pluggy.PluginManager("nnterp_vllm")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name=module.__name__)
        manager.check_pending()
        answers: list[Any] = manager.hook.nnterp_vllm_families()
    except pluggy.PluginValidationError as error:
        known = ", ".join(name for name in dir(hookspecs) if name.startswith("nnterp_vllm_"))
        raise BrokenPlugin(f"{who}: plugin {module.__name__} breaks the hook contract: {error}. Hooks: {known}.") from None
    families = [family for answer in answers for family in answer]
    if not families or not all(isinstance(family, Family) for family in families):
        raise BrokenPlugin(
            f"{who}: plugin {module.__name__} returned {families!r} from nnterp_vllm_families; expected a list of Family."
        )
    return families


def _import(name: str, who: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a plugin may fail in any way; its cause stays attached
        raise BrokenPlugin(
            f"{who}: plugin module {name!r} cannot be imported: {type(error).__name__}: {error}. "
            f"Reinstall or remove it, or pass family=."
        ) from error
