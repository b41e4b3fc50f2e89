"""nnsight's record of what was saved, in an engine that shares the driver's thread.

``save()`` marks an object by its id in a set that the outermost trace clears when it ends; a per-thread depth tells which
trace is the outermost. A worker runs blocks without a trace and opens a depth of its own, for good. In an engine process
that is the only user of the set, this is right. With ``VLLM_ENABLE_V1_MULTIPROCESSING=0`` the thread is the driver's: after
one request without a trace no later trace would be the outermost, the set would keep ids of objects that are gone, and
other objects at the same addresses would be taken for saved.
"""

from __future__ import annotations

from typing import Any

from nnsight.tracing.tracer import _local, _saves


def engine_step(opens: bool) -> None:
    """Note that the worker's step on this thread opened the depth (nobody else had)."""
    if opens:
        _local.nnterp_vllm_left_open = True


def is_open() -> bool:
    """Whether a trace, or an engine's step, has opened the depth on this thread."""
    return bool(getattr(_local, "depth", 0))


def close_left_open() -> None:
    """Before a trace of the driver: forget what an engine's step left open on this thread."""
    local: Any = _local
    if getattr(local, "nnterp_vllm_left_open", False):
        local.nnterp_vllm_left_open = False
        local.depth = 0
        _saves().clear()
