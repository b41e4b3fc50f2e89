"""A folder of the shared memory for one test's large saves; other processes of the host put theirs in the usual place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nnterp_vllm_core.worker import shared_memory

#: Names the folder to a script, whose worker imports the script again and inherits the variable.
VARIABLE = "NNTERP_VLLM_TESTS_FOLDER"


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder, in the shared memory where this host has any; it goes with what was left in it."""
    usual = shared_memory.FOLDER
    with TemporaryDirectory(prefix="tests-of-nnterp-vllm-", dir=usual if usual.is_dir() else None) as folder:
        yield Path(folder)


def move_in() -> None:
    """Let this process put its large saves into the folder that the variable names, if it is set."""
    if folder := os.environ.get(VARIABLE):
        shared_memory.FOLDER = Path(folder)


def files() -> set[str]:
    """The names of what is there now."""
    return {path.name for path in shared_memory.FOLDER.iterdir()}
