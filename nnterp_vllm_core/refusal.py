"""What a worker refuses to load, carried to the driver.

An engine in a process of its own tells the driver only that it failed to start; the reason stays in the worker's log. So
the driver names a file in the stamp it sends, the worker leaves its refusal there, and the driver raises it as its own.
On a worker of another host the file does not exist for the driver, and the engine's own error stands.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import errors
from .errors import NnterpVLLMError

#: The key in the stamp that holds the file's path.
REFUSAL = "refusal"


@contextlib.contextmanager
def left_for_driver(path: str | None) -> Iterator[None]:
    """In the worker: leave an error of ours at ``path`` on its way out."""
    try:
        yield
    except NnterpVLLMError as error:
        if path is not None and os.path.isdir(os.path.dirname(path)):
            whole = Path(f"{path}.{os.getpid()}")  # several ranks may refuse at once; each file is written whole
            whole.write_text(json.dumps({"error": type(error).__name__, "text": str(error)}), encoding="utf-8")
            whole.replace(path)
        raise


@contextlib.contextmanager
def raised_by_driver() -> Iterator[str]:
    """In the driver: the path for the stamp. When the engine fails to start over a refusal, the refusal is raised.

    Raises:
        NnterpVLLMError: Of the class that the worker raised, from the engine's own error.
    """
    with tempfile.TemporaryDirectory(prefix="nnterp-vllm-") as folder:
        path = Path(folder, "refusal.json")
        try:
            yield str(path)
        except NnterpVLLMError:
            raise  # the engine runs in this process
        except Exception as error:  # whatever the engine raises; it goes on as the cause
            if not path.is_file():
                raise
            told = json.loads(path.read_text(encoding="utf-8"))
            raise getattr(errors, told["error"], NnterpVLLMError)(told["text"]) from error
