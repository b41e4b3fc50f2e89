"""What the driver does while the engine's processes start, instead of waiting for them."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any


def in_processes() -> bool:
    """Whether vLLM will run the engine in processes of its own."""
    return os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0"


@contextlib.contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Build an engine in this context; ``work`` runs once, when vLLM has started the processes and turns to waiting.

    They import vLLM and torch first, for seconds, so they do not wait for ``work`` in their turn. Where vLLM comes to no
    such point, ``work`` runs at the end. An error of it ends the engine's start and passes through.
    """
    from vllm.v1.engine import utils

    todo = [work]
    wait: Callable[..., Any] | None = getattr(utils, "wait_for_engine_startup", None)

    def run() -> None:
        while todo:
            todo.pop()()

    if wait is None:
        yield
    else:

        def waiting(*args: Any, **kwargs: Any) -> Any:
            run()
            return wait(*args, **kwargs)

        utils.wait_for_engine_startup = waiting
        try:
            yield
        finally:
            utils.wait_for_engine_startup = wait
    run()


@contextlib.contextmanager
def spared_garbage() -> Iterator[None]:
    """Keep what exists out of the collections in this context.

    vLLM's loader collects garbage twice, to free what loading weights left. Over a process that has imported vLLM that is
    half a second, and without weights it frees nothing.
    """
    if gc.get_freeze_count():
        yield  # the program has frozen objects of its own, and thawing knows no difference
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
