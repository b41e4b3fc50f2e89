"""Load a model whose plugin changes between the driver and its spawned worker; print what the driver says, as JSON lines.

    python mismatch_program.py CHECKPOINT SITE

Each scenario builds the model while everything is installed, changes what is on disk (as a package manager does beside an
open notebook), and starts the engine: the driver goes on with what it imported, the worker finds what is there now.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installs import Site, family

VALUES = """
from nnterp_vllm_core.extra import Extra
from nnterp_vllm_core.hookspecs import hookimpl

@hookimpl
def nnterp_vllm_values():
    return [Extra(name="doubled", host="mlp", axes=("batch", "seq", "hidden"), meaning="Twice the output.",
                  of="mlp_output", compute="doubling:twice")]

def twice(value, layer):
    return value * 2
"""


def install(site: Site, version: str = "1.0", module: str = "toy_llama") -> None:
    site.install("toy-llama", version=version, module=module, source=family("llama"), families=("llama",))


@contextmanager
def installed(site: Site) -> Iterator[None]:
    install(site)
    importlib.invalidate_caches()
    yield
    for path in site.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove(site: Site, name: str) -> None:
    (info,) = site.folder.glob(f"{name}-*.dist-info")
    shutil.rmtree(info)


def attempt(name: str, model: object) -> None:
    from nnterp_vllm_core import NnterpVLLMError

    try:
        model.dispatch()  # type: ignore[attr-defined]
    except NnterpVLLMError as error:
        cause = type(error.__cause__).__name__
        print(json.dumps({"scenario": name, "error": type(error).__name__, "text": str(error), "cause": cause}), flush=True)
    else:
        print(json.dumps({"scenario": name, "error": None}), flush=True)


def main() -> None:
    from nnterp_vllm_core import StandardizedVLLM

    checkpoint, site = sys.argv[1], Site(Path(sys.argv[2]))

    def load(**options: object) -> object:
        return StandardizedVLLM(checkpoint, dtype="float32", max_model_len=128, **options)

    with installed(site):
        model = load()
        remove(site, "toy_llama")
        attempt("missing", model)
    with installed(site):
        model = load()
        remove(site, "toy_llama")
        install(site, version="2.0")
        attempt("version", model)
    with installed(site):
        model = load()
        remove(site, "toy_llama")
        install(site, module="toy_llama_moved")
        attempt("module", model)
    with installed(site):
        site.install("doubling", source=VALUES, plugin=True)
        importlib.invalidate_caches()
        model = load()
        remove(site, "doubling")
        attempt("other plugin", model)
    here = types.ModuleType("only_in_the_driver")
    exec(family("llama"), here.__dict__)
    sys.modules["only_in_the_driver"] = here
    attempt("family=", load(family=here))


if __name__ == "__main__":
    main()
