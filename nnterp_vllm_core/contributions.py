"""What plugins add to a load: values beside the standard ones, warnings and vetoes.

The family's own plugin is asked first, then every plugin of the group ``nnterp_vllm.plugins`` in the order of its
distributions' names. Driver and worker both ask, so a contribution is the same on both sides or the load is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pluggy

from .discovery import PLUGINS, Entry, installed
from .errors import BrokenPlugin, LoadVetoed
from .extra import Extra
from .loader import Plugin, load, register


@dataclass(frozen=True, kw_only=True)
class Contributor:
    """A plugin that takes part in a load.

    Attributes:
        who: Its distribution and version, for messages.
        module: Its module.
        hooks: Its hooks, checked.
    """

    who: str
    module: str
    hooks: pluggy.HookRelay


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """Every plugin that takes part in loading one model.

    Attributes:
        plugin: The family.
        model_type: What the checkpoint's config says.
        repo_id: What the user passed to the model.
        contributors: In the order in which they are asked.
    """

    plugin: Plugin
    model_type: str
    repo_id: str
    contributors: tuple[Contributor, ...]

    @classmethod
    def to(cls, plugin: Plugin, model_type: str, repo_id: str) -> Contributions:
        """Import and check every plugin that is asked about this model.

        Raises:
            BrokenPlugin: One of the group ``nnterp_vllm.plugins`` cannot be used; the message says how to leave it out.
        """
        found = []
        if plugin.source is not None:
            found.append(Contributor(who=str(plugin), module=plugin.module, hooks=register(plugin.source, str(plugin))))
        for entry in sorted(installed(PLUGINS), key=lambda entry: (entry.distribution, entry.module)):
            if entry.module in {one.module for one in found}:
                continue
            found.append(asked(entry))
        return cls(plugin=plugin, model_type=model_type, repo_id=repo_id, contributors=tuple(found))

    def extras(self) -> tuple[Extra, ...]:
        """The values that plugins add to this model.

        Raises:
            BrokenPlugin: A plugin fails, returns something else, or adds a name that another has added.
        """
        owner: dict[str, str] = {}
        extras: list[Extra] = []
        for one in self.contributors:
            for extra in self._asked(one):
                if extra.name in owner:
                    raise BrokenPlugin(
                        f"The value {extra.name!r} is added by {owner[extra.name]} and by {one.who}. Block one of them with "
                        f"NNTERP_VLLM_BLOCK."
                    )
                owner[extra.name] = one.who
                extras.append(extra)
        return tuple(extras)

    def loading(self, options: Mapping[str, Any]) -> None:
        """Let every plugin look at the load.

        Raises:
            LoadVetoed: One raised.
        """
        for one in self.contributors:
            try:
                one.hooks.nnterp_vllm_loading(options=MappingProxyType(dict(options)), **self._subject)
            except Exception as error:  # whatever a plugin raises is its veto, and stays attached
                raise LoadVetoed(
                    f"{one.who} refuses to load {self.repo_id!r} (model_type {self.model_type!r}): "
                    f"{type(error).__name__}: {error}"
                ) from error

    @property
    def _subject(self) -> dict[str, Any]:
        return {"family": self.plugin.family, "model_type": self.model_type, "repo_id": self.repo_id}

    def _asked(self, one: Contributor) -> list[Extra]:
        try:
            answers: list[Any] = one.hooks.nnterp_vllm_values(**self._subject)
        except Exception as error:  # a plugin may fail in any way; its cause stays attached
            raise BrokenPlugin(
                f"{one.who}: nnterp_vllm_values failed: {type(error).__name__}: {error}. Tell its author."
            ) from error
        extras = [extra for answer in answers for extra in answer]
        if not all(isinstance(extra, Extra) for extra in extras):
            raise BrokenPlugin(f"{one.who}: nnterp_vllm_values returned {extras!r}; expected a list of Extra.")
        return extras


def asked(entry: Entry) -> Contributor:
    """The plugin behind an entry of the group ``nnterp_vllm.plugins``.

    Raises:
        BrokenPlugin: It cannot be used; the message says how to leave it out.
    """
    try:
        hooks = register(load(entry), entry.who)
    except BrokenPlugin as error:
        raise BrokenPlugin(
            f"{error} It takes part in every load; NNTERP_VLLM_BLOCK={entry.distribution} leaves it out."
        ) from error
    return Contributor(who=entry.who, module=entry.module, hooks=hooks)


def function_of(extra: Extra) -> Any:
    """The function that computes an extra.

    Raises:
        BrokenPlugin: It cannot be imported, or is no function.
    """
    module, _, name = str(extra.compute).partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # a plugin may fail in any way; its cause stays attached
        raise BrokenPlugin(
            f"The value {extra.name!r} is computed by {extra.compute!r}, which cannot be had here: "
            f"{type(error).__name__}: {error}. Install its module in this environment."
        ) from error
    if not callable(function):
        raise BrokenPlugin(f"The value {extra.name!r}: {extra.compute!r} is a {type(function).__name__}, not a function.")
    return function
