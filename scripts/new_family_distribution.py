"""Write the packaging of one family: pyproject.toml, README.md, CHANGELOG.md and py.typed.

    python scripts/new_family_distribution.py NAME "Human name" MODEL_TYPE [MODEL_TYPE ...]
    python scripts/new_family_distribution.py gpt2 "GPT-2" gpt2

The family's folder is its Python package, nnterp_vllm_families/NAME. Running the script again gives the same files: the
version in an existing pyproject.toml is kept, an existing CHANGELOG.md is never touched, and the other files are
written anew from the templates below. The family's extra is added to the root pyproject.toml.
"""

import argparse
import re
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = re.compile(r"(?<=# families: begin\n)(?P<lines>.*?)(?=# families: end\n)", re.DOTALL)

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "{version}"
description = "{human} for nnterp-vllm"
readme = "README.md"
license = "MIT"
authors = [{{ name = "the nnterp-vllm authors" }}]
requires-python = ">=3.11"
dependencies = ["nnterp-vllm>=0.1,<0.2"]

[project.entry-points."nnterp_vllm.families"]
{entries}

# This folder is the package nnterp_vllm_families.{name}; the namespace above it belongs to no distribution.
[tool.hatch.build]
dev-mode-dirs = ["../.."]

[tool.hatch.build.targets.wheel]
include = ["*.py", "/py.typed"]

[tool.hatch.build.targets.wheel.sources]
"" = "nnterp_vllm_families/{name}"
"""

README = """\
# {distribution}

{human} for nnterp-vllm: checkpoints whose `model_type` is {types} load in `StandardizedVLLM` under the
standardized names.

```
pip install "nnterp-vllm[{extra}]"
```

There is nothing to import or register. The core finds this package through its entry point, in your process and in
vLLM's worker; `nnterp-vllm families` lists it with every other family that is installed.
"""

CHANGELOG = """\
# Changes in {distribution}

## 0.1.0

The first release. Checkpoints whose `model_type` is {types} load in `StandardizedVLLM`, and trace code written with
the standardized names reads and edits them. `model.support()` lists the values that this architecture does not have.
"""


def prose(words: list[str]) -> str:
    """`a`, `b` or `c`"""
    *most, last = [f"`{word}`" for word in words]
    return f"{', '.join(most)} or {last}" if most else last


def fill(text: str) -> str:
    """Wrap the paragraphs, so that a family with many model types reads like the others."""
    parts = text.strip().split("\n\n")
    wrapped = [part if part.startswith("```") else textwrap.fill(part, 120, break_on_hyphens=False) for part in parts]
    return "\n\n".join(wrapped) + "\n"


def write_family(name: str, human: str, model_types: list[str]) -> list[Path]:
    """Write the family's files; return those whose content changed."""
    folder = ROOT / "nnterp_vllm_families" / name
    extra = name.replace("_", "-")
    pyproject = folder / "pyproject.toml"
    version = tomllib.loads(pyproject.read_text())["project"]["version"] if pyproject.exists() else "0.1.0"
    fields = {
        "name": name,
        "human": human,
        "extra": extra,
        "distribution": f"nnterp-vllm-{extra}",
        "version": version,
        "types": prose(model_types),
        "entries": "\n".join(f'{model_type} = "nnterp_vllm_families.{name}"' for model_type in model_types),
    }
    files = {
        pyproject: PYPROJECT.format(**fields),
        folder / "README.md": fill(README.format(**fields)),
        folder / "CHANGELOG.md": fill(CHANGELOG.format(**fields)),
        folder / "py.typed": "",
        ROOT / "pyproject.toml": with_extra((ROOT / "pyproject.toml").read_text(), extra),
    }
    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for path, text in files.items():
        if path.exists() and (path.name == "CHANGELOG.md" or path.read_text() == text):
            continue
        path.write_text(text)
        changed.append(path)
    return changed


def with_extra(text: str, extra: str) -> str:
    """The root pyproject.toml with this family's extra in its sorted list."""
    found = EXTRAS.search(text)
    if found is None:
        raise SystemExit("pyproject.toml: the lines '# families: begin' and '# families: end' are gone; put them back")
    lines = {*found["lines"].splitlines(keepends=True), f'{extra} = ["nnterp-vllm-{extra}>=0.1"]\n'}
    return text[: found.start()] + "".join(sorted(lines)) + text[found.end() :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="the folder and module name, as in nnterp_vllm_families.NAME")
    parser.add_argument("human", metavar="HUMAN", help="the name in prose")
    parser.add_argument("model_types", metavar="MODEL_TYPE", nargs="+", help="what a checkpoint's config.json says")
    args = parser.parse_args()
    if not args.name.isidentifier():
        parser.error(f"NAME: {args.name!r}; expected a Python identifier, because it becomes a module's name")
    for path in write_family(args.name, args.human, args.model_types):
        print("wrote", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
