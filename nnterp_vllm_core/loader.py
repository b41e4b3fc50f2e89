"""``model_type`` -> the one plugin that covers it, imported and checked.

Only the plugin that a model needs is imported, so a broken or slow one costs nobody else.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pluggy
from packaging.utils import canonicalize_name

from . import hookspecs
from ._version import __version__
from .discovery import CORE, Entry, advertised, installed
from .engine import outside
from .errors import BrokenPlugin, DuplicateFamily, UnsupportedFamily, UnvalidatedEngine
from .family import Family

__all__ = ["Entry", "Plugin", "declared", "find", "installed", "load", "override", "register", "warn_outside"]


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A family and where it came from, for messages and for the comparison between driver and worker.

    Attributes:
        family: The family.
        module: The module that declares it.
        distribution: The distribution it was found in; ``None`` for ``family=``.
        version: That distribution's version.
        source: The imported module, whose other hooks take part in the load; ``None`` for a bare `Family`.
    """

    family: Family
    module: str
    distribution: str | None
    version: str | None
    source: ModuleType | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        if self.distribution is None:
            return f"{self.module} (no distribution)"
        return f"{self.module} from {self.distribution} {self.version}"


def find(model_type: str) -> Plugin:
    """The plugin that covers ``model_type``.

    Raises:
        UnsupportedFamily: None is installed, or the environment leaves it out.
        DuplicateFamily: Two distributions claim it.
        BrokenPlugin: It wants another core, cannot be imported, misspells a hook, or does not declare what it advertises.
    """
    claims = advertised(name=model_type)
    owners = list({(entry.distribution, entry.module): entry for entry in claims if not entry.left_out}.values())
    if not owners:
        raise UnsupportedFamily(_nobody(model_type, claims))
    if len(owners) > 1:
        names = ", ".join(entry.who for entry in owners)
        raise DuplicateFamily(
            f"model_type {model_type!r} is claimed by {len(owners)} installed distributions: {names}. Uninstall all but "
            f"one, or choose with family={owners[0].module!r}."
        )
    entry = owners[0]
    family = covering(entry)
    return Plugin(
        family=family,
        module=entry.module,
        distribution=entry.distribution,
        version=entry.version,
        source=sys.modules[entry.module],
    )


def covering(entry: Entry) -> Family:
    """The family that an entry advertises.

    Raises:
        BrokenPlugin: As for `find`.
    """
    families = declared(load(entry), entry.who)
    for family in families:
        if entry.name in family.model_types:
            return family.loaded_from(entry.module)
    listed = sorted(name for family in families for name in family.model_types)
    raise BrokenPlugin(
        f"{entry.who} advertises model_type {entry.name!r} in its entry points, but {entry.module} declares only "
        f"{listed!r}. Tell its author, or pass family=."
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
    fitting = [one for one in families if model_type in one.model_types] or (families if len(families) == 1 else [])
    if not fitting:
        listed = sorted(name for one in families for name in one.model_types)
        raise BrokenPlugin(
            f"family={module.__name__!r} declares {listed!r} and none of them is this checkpoint's model_type "
            f"{model_type!r}. Pass the Family object itself to use one all the same."
        )
    found = fitting[0].loaded_from(module.__name__)
    return Plugin(family=found, module=module.__name__, distribution=None, version=None, source=module)


def load(entry: Entry) -> ModuleType:
    """Import the module of an entry, unless its distribution wants another core.

    Raises:
        BrokenPlugin: The distribution's range of the core excludes this one, or the import fails.
    """
    accepted = entry.core_range
    if accepted is not None and not accepted.contains(__version__, prereleases=True):
        raise BrokenPlugin(
            f"{entry.who} needs {CORE}{accepted}, and {CORE} {__version__} is installed. Upgrade the one that is behind: "
            f"`pip install --upgrade {CORE} {canonicalize_name(entry.distribution)}`."
        )
    return _import(entry.module, entry.who)


def declared(module: ModuleType, who: str) -> list[Family]:
    """The families that a plugin module declares, with the hook contract checked.

    Raises:
        BrokenPlugin: It implements no hook of ours, misspells one, or returns something else than families.
    """
    answers: list[Any] = register(module, who).nnterp_vllm_families()
    families = [family for answer in answers for family in answer]
    if not families or not all(isinstance(family, Family) for family in families):
        raise BrokenPlugin(
            f"{who}: plugin {module.__name__} returned {families!r} from nnterp_vllm_families; expected a list of Family."
        )
    return families


def register(module: ModuleType, who: str) -> pluggy.HookRelay:
    """The hooks of one plugin module, checked against the hook specifications.

    Each module has a manager of its own, so an answer or an error belongs to one plugin by construction.

    Raises:
        BrokenPlugin: A function is named like a hook and is none, or takes an argument that its hook does not give.
    """
    manager = pluggy.PluginManager("nnterp_vllm")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name=module.__name__)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        known = ", ".join(name for name in dir(hookspecs) if name.startswith("nnterp_vllm_"))
        raise BrokenPlugin(f"{who}: plugin {module.__name__} breaks the hook contract: {error}. Hooks: {known}.") from None
    return manager.hook


def warn_outside(plugin: Plugin, version: str | None) -> None:
    """Warn with `UnvalidatedEngine` when the installed vLLM is outside the family's validated range."""
    if version is not None and outside(plugin.family.validated, version):
        warnings.warn(
            f"Family {plugin} was validated on vLLM {plugin.family.validated} and vLLM {version} is installed: values may "
            f"be wrong or missing. Update the family, or check it here with `nnterp-vllm check "
            f"{plugin.distribution or plugin.module}`.",
            UnvalidatedEngine,
            stacklevel=2,
        )


def _nobody(model_type: str, claims: list[Entry]) -> str:
    if claims:
        excluded = "; ".join(f"{entry.who}: {entry.left_out}" for entry in claims)
        return (
            f"No usable plugin covers model_type {model_type!r}: it is left out by the environment ({excluded}). Change the "
            f"variable, or pass family={claims[0].module!r}."
        )
    known = sorted({entry.name for entry in installed()})
    return (
        f"No installed plugin covers model_type {model_type!r}; installed: {', '.join(known) or 'none'}. "
        f"Try `pip install nnterp-vllm-{model_type.replace('_', '-')}`, or pass family= with a declaration of your own."
    )


def _import(name: str, who: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a plugin may fail in any way; its cause stays attached
        raise BrokenPlugin(
            f"{who}: plugin module {name!r} cannot be imported: {type(error).__name__}: {error}. "
            f"Reinstall or remove it, or pass family=."
        ) from error
