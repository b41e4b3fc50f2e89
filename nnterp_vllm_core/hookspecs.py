"""Every hook that a plugin may implement, in the order in which the loader calls them. This module is the reference.

A plugin is a module named by an entry point: in the group ``nnterp_vllm.families`` (the entry's name is a
``model_type``) or in ``nnterp_vllm.plugins`` (any name). It marks its functions with `hookimpl`::

    from nnterp_vllm_core.hookspecs import hookimpl

    @hookimpl
    def nnterp_vllm_families():
        return [QWEN2]

An implementation may leave out arguments that it does not use, so hooks can gain arguments later. A function whose name
starts with ``nnterp_vllm_`` and is no hook is an error when the plugin is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .family import Family

hookspec = pluggy.HookspecMarker("nnterp_vllm")
hookimpl = pluggy.HookimplMarker("nnterp_vllm")


@hookspec
def nnterp_vllm_families() -> Sequence[Family]:  # type: ignore[empty-body]
    """Declare the families that this distribution provides.

    Called once per process, in the driver and in every engine worker, when one of the distribution's model types is
    loaded. It must not import torch, vLLM or nnsight.

    Returns:
        One `Family` for each implementation; together they cover the entry points' model types.
    """
