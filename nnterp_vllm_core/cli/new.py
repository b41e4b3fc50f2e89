"""``nnterp-vllm new``: a plugin distribution of one's own that builds, installs and can be checked."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from .._version import __version__
from ..errors import NnterpVLLMError
from ..scaffold import outline
from ..sources import Sources

#: Template file -> where it goes, with the placeholders of the template.
_FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "CHANGELOG.md.txt": "CHANGELOG.md",
    "family.py.txt": "$package/__init__.py",
    "conformance.py.txt": "$package/conformance.py",
    "tests.py.txt": "tests/test_${name}.py",
}
#: What the conformance test says where transformers does not know the model type.
_INSTEAD = """
    # transformers does not know {model_type} here, so the declaration is tested on the model that it describes.
    family = "{package}"
"""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The family's name, such as 'toy'.")],
    model_type: Annotated[str, typer.Option("--model-type", help="As config.json spells it; NAME by default.")] = "",
    folder: Annotated[str, typer.Option("--folder", help="Where to write; ./NAME by default.")] = "",
) -> None:
    """Write a complete plugin distribution: the declaration, its conformance test, packaging, README and CHANGELOG."""
    target = Path(folder or name)
    written, notes = write(name, model_type or name.replace("-", "_"), target)
    for path in written:
        typer.echo(f"wrote {path}")
    for note in notes:
        typer.echo(f"note: {note}")
    typer.echo(f"Next: edit {target}/{_package(name)}/__init__.py, `pip install -e {target}`, `nnterp-vllm check {name}`.")


def write(name: str, model_type: str, folder: Path) -> tuple[list[Path], tuple[str, ...]]:
    """Write the distribution ``nnterp-vllm-NAME``; returns the files and what the sources did not tell.

    Raises:
        NnterpVLLMError: ``name`` cannot name a package, or ``folder`` holds something already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        raise NnterpVLLMError(f"NAME {name!r}: write lower case letters, digits and single dashes, such as 'my-model'.")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", model_type):
        raise NnterpVLLMError(f"--model-type {model_type!r}: write it as config.json does, such as 'qwen2_moe'.")
    if folder.exists() and any(folder.iterdir()):
        raise NnterpVLLMError(f"{str(folder)!r} exists and is not empty. Choose another name or --folder.")
    drawn = outline(model_type, Sources())
    major, minor = __version__.split(".")[:2]
    fields = {
        "name": name.replace("-", "_"),
        "distribution": f"nnterp-vllm-{name.replace('_', '-')}",
        "package": _package(name),
        "model_type": model_type,
        "constant": re.sub(r"\W", "_", name).upper(),
        "test": "Test" + "".join(part.title() for part in re.split(r"[_-]", name)),
        "tested": model_type if drawn.known else "llama",
        "instead": "" if drawn.known else _INSTEAD.format(model_type=model_type, package=_package(name)),
        "imports": ", ".join(drawn.imports),
        "body": drawn.body,
        "core": f">={major}.{minor},<{major}.{int(minor) + 1}",
    }
    templates = files("nnterp_vllm_core") / "template"
    written = []
    for source, place in _FILES.items():
        path = folder / Template(place).substitute(fields)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = Template((templates / source).read_text(encoding="utf-8")).substitute(fields)
        path.write_text(text.rstrip() + "\n", encoding="utf-8")
        written.append(path)
    marker = folder / fields["package"] / "py.typed"
    marker.touch()
    return [*written, marker], drawn.notes


def _package(name: str) -> str:
    return f"nnterp_vllm_{name.replace('-', '_')}"
