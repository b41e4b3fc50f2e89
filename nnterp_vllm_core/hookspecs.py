"""Every hook that a plugin may implement, in the order in which a load calls them. This module is the reference.

A plugin is a module named by an entry point: in the group ``nnterp_vllm.families`` (the entry's name is a
``model_type``) or in ``nnterp_vllm.plugins`` (any name). It marks its functions with `hookimpl`::

    from nnterp_vllm_core.hookspecs import hookimpl

    @hookimpl
    def nnterp_vllm_families():
        return [QWEN2]

Of the family plugins only the one that covers the model is imported. The others are imported whenever a model is loaded,
and one that cannot be imported stops the load: a value or a veto that someone installed must not go missing silently.

An implementation may leave out arguments that it does not use, so hooks can gain arguments later. A function whose name
starts with ``nnterp_vllm_`` and is no hook is an error when the plugin is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from .extra import Extra
    from .family import Family

hookspec = pluggy.HookspecMarker("nnterp_vllm")
hookimpl = pluggy.HookimplMarker("nnterp_vllm")


@hookspec
def nnterp_vllm_families() -> Sequence[Family]:  # type: ignore[empty-body]
    """Declare the families that this distribution provides.

    Called in the driver and in every engine worker, when one of the distribution's model types is loaded. It must not
    import torch, vLLM or nnsight.

    Returns:
        One `Family` or more; together they cover the model types that the entry points name.
    """


@hookspec
def nnterp_vllm_values(family: Family, model_type: str, repo_id: str) -> Sequence[Extra]:  # type: ignore[empty-body]
    """Add values to a model of some family.

    Called in the driver and in every engine worker, on the family's own plugin and on every plugin of the group
    ``nnterp_vllm.plugins``. Both sides must get the same answer, so decide by the arguments alone.

    Args:
        family: The family that the model is loaded with.
        model_type: What the checkpoint's config says.
        repo_id: What the user passed to the model: a repo id or a path.

    Returns:
        An `Extra` for each value; an empty list for a model that it has nothing for.
    """


@hookspec
def nnterp_vllm_loading(family: Family, model_type: str, repo_id: str, options: Mapping[str, Any]) -> None:
    """Look at a load before the engine starts: warn about it, or veto it by raising.

    Called in the driver alone, on the same plugins as ``nnterp_vllm_values``. What is raised reaches the user as the
    cause of a `LoadVetoed`; a warning (``warnings.warn``) lets the load go on.

    Args:
        family: The family that the model is loaded with.
        model_type: What the checkpoint's config says.
        repo_id: What the user passed to the model.
        options: The model's other arguments, such as ``dtype``; read-only.
    """
