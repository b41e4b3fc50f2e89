"""docs/families.md: every family of this repository, as its declaration draws and declares it.

python scripts/families_page.py            # writes the page
python scripts/families_page.py --check    # exits with 1 where the page is not what the declarations say
"""

import argparse
import importlib
import inspect
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from nnterp_vllm_core.family import Family, FusedStream, Implementation, Missing
from nnterp_vllm_core.loader import declared

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "families.md"
RECORD = ROOT / "nnterp_vllm_core" / "validation.json"


def families() -> list[tuple[Any, list[Family], str]]:
    """``(module, its families, its distribution's version)``, by folder."""
    found = []
    for folder in sorted((ROOT / "nnterp_vllm_families").iterdir()):
        if (folder / "pyproject.toml").is_file():
            module = importlib.import_module(f"nnterp_vllm_families.{folder.name}")
            version = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
            found.append((module, declared(module, folder.name), version))
    return found


def measured() -> dict[str, set[str]]:
    """Model type -> ``engine vLLM-version device`` of every measurement in the validation record."""
    found: dict[str, set[str]] = {}
    for line in json.loads(RECORD.read_text()) if RECORD.is_file() else []:
        where = f"{line['engine']} {line['vllm']} on {'CPU' if line['device'] == 'CPU' else line['device']}"
        found.setdefault(line["model_type"], set()).add(where)
    return found


def implementation(name: str, one: Implementation) -> str:
    """A line on one implementation."""
    stream = "fused pair" if isinstance(one.stream, FusedStream) else "stream"
    missing = sorted(value for value, place in one.values.items() if isinstance(place, Missing))
    lacks = f"; unavailable: {', '.join(f'`{value}`' for value in missing)}" if missing else ""
    return f"- {name}: `{one.source}`, {' or '.join(f'`{block}`' for block in one.blocks)}, {stream}{lacks}"


def page() -> str:
    """The page's text."""
    tested = measured()
    parts = ["# Families", "", "Generated from the declarations by `scripts/families_page.py`.", ""]
    for module, found, version in families():
        name = module.__name__.rpartition(".")[2]
        types = [one for family in found for one in family.model_types]
        parts += [f"## {name}", "", f"`model_type`: {', '.join(f'`{one}`' for one in types)} · version {version}", ""]
        parts += ["```text", inspect.cleandoc(module.__doc__ or ""), "```", ""]
        for family in found:
            for one in family.native:
                parts.append(implementation("vLLM", one))
            if family.transformers is not None:
                parts.append(implementation("transformers, and vLLM's Transformers backend", family.transformers))
            parts += [f"- {note}" for note in family.notes]
        ranges = sorted({family.validated for family in found})
        parts.append(f"- validated for vLLM {', '.join(ranges)}")
        runs = sorted({run for one in types for run in tested.get(one, ())})
        parts += [f"- measured: {'; '.join(runs)}"] if runs else []
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    text = page()
    if parser.parse_args().check:
        if not PAGE.is_file() or PAGE.read_text() != text:
            sys.exit("docs/families.md is not what the declarations say; run scripts/families_page.py")
        return
    PAGE.write_text(text)
    print(f"{text.count(chr(10) + '## ')} families in {PAGE.name}")


if __name__ == "__main__":
    main()
