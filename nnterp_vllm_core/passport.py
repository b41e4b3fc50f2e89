"""What the driver tells the engine's workers about the family, and the comparison they make before they serve.

It travels in vLLM's ``additional_config``, which must survive JSON. Each worker looks the plugin up again by
``model_type`` and refuses to start when it would describe the model differently from the driver.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import loader
from ._version import __version__
from .contributions import Contributions
from .errors import NnterpVLLMError, PluginMismatch
from .family import Family
from .refusal import REFUSAL

#: The key in ``additional_config``.
KEY = "nnterp_vllm"


@dataclass(frozen=True, kw_only=True)
class Passport:
    """The driver's side of the comparison.

    Attributes:
        contributions: The family's plugin and the others that take part in the load.
        override: What the user passed as ``family=``, or ``None``.
        rename: The user's own ``rename=``.
        envoys: The user's own ``envoys=``.
        model: The driver's model class where it is a subclass of `StandardizedVLLM`: a block may call what it adds.
    """

    contributions: Contributions
    override: ModuleType | str | Family | None
    rename: Any
    envoys: Any
    model: Any = None

    def stamp(self, refusal: str | None = None) -> dict[str, Any]:
        """This passport as JSON.

        Args:
            refusal: The file in which a worker that refuses leaves its reason.

        Raises:
            PluginMismatch: ``family=``, ``rename=`` or ``envoys=`` holds something that cannot travel.
        """
        override = self.override.__name__ if isinstance(self.override, ModuleType) else self.override
        plugin = self.contributions.plugin
        return {
            "core": __version__,
            "model_type": self.contributions.model_type,
            "repo_id": self.contributions.repo_id,
            "module": plugin.module,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "others": _others(self.contributions),
            REFUSAL: refusal,
            "override": None if override is None else _pack("family", override),
            "rename": None if not self.rename else _pack("rename", self.rename),
            "envoys": None if not self.envoys else _pack("envoys", self.envoys),
            "model": None if self.model is None else _pack("model", self.model),
        }


def admit(stamp: dict[str, Any]) -> Passport:
    """The worker's side: find the plugin here and compare.

    Raises:
        PluginMismatch: The plugin is missing here, cannot be imported here, or differs in module, distribution or
            version from the driver's; or the cores differ. Both sides are named.
    """
    if stamp["core"] != __version__:
        raise PluginMismatch(
            f"The driver runs nnterp-vllm {stamp['core']} and this engine worker {__version__}. Install the same version "
            f"in both environments."
        )
    model_type = stamp["model_type"]
    theirs = f"{stamp['module']} from {stamp['distribution'] or 'no distribution'} {stamp['version'] or ''}".strip()
    try:
        override = None if stamp["override"] is None else _unpack("family", stamp["override"])
        plugin = loader.find(model_type) if override is None else loader.override(override, model_type)
        contributions = Contributions.to(plugin, model_type, stamp["repo_id"])
    except NnterpVLLMError as error:
        raise PluginMismatch(
            f"The driver serves model_type {model_type!r} with {theirs}; this engine worker cannot: {error}"
        ) from error
    ours = (plugin.module, plugin.distribution, plugin.version)
    if ours != (stamp["module"], stamp["distribution"], stamp["version"]):
        raise PluginMismatch(
            f"The driver serves model_type {model_type!r} with {theirs} and this engine worker with {plugin}. Install the "
            f"same version in both environments."
        )
    if _others(contributions) != stamp["others"]:
        raise PluginMismatch(
            f"The driver loads the plugins {', '.join(stamp['others']) or 'none'} beside the family and this engine worker "
            f"{', '.join(_others(contributions)) or 'none'}. Install the same ones in both environments."
        )
    return Passport(
        contributions=contributions,
        override=override,
        rename=None if stamp["rename"] is None else _unpack("rename", stamp["rename"]),
        envoys=None if stamp["envoys"] is None else _unpack("envoys", stamp["envoys"]),
        model=None if stamp["model"] is None else _unpack("model", stamp["model"]),
    )


def _others(contributions: Contributions) -> list[str]:
    return [
        f"{one.module} from {one.who}" for one in contributions.contributors if one.module != contributions.plugin.module
    ]


def _pack(what: str, thing: Any) -> str:
    import cloudpickle

    try:
        return base64.b64encode(cloudpickle.dumps(thing)).decode("ascii")
    except Exception as error:
        raise PluginMismatch(
            f"{what}={thing!r} cannot travel to the engine's worker: {type(error).__name__}: {error}. Define it in a "
            f"module that the worker can import."
        ) from error


def _unpack(what: str, packed: str) -> Any:
    import pickle

    try:
        return pickle.loads(base64.b64decode(packed))
    except Exception as error:
        raise PluginMismatch(
            f"The {what}= that the driver passed cannot be rebuilt in this engine worker: {type(error).__name__}: "
            f"{error}. Install its module in the worker's environment."
        ) from error
