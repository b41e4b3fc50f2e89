"""What the pages say about plugins is what the code does."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import nnterp_vllm_core
from nnterp_vllm_core import hookspecs
from nnterp_vllm_core.contributions import Extra

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPTS = DOCS.parent / "scripts"
PAGES = ("plugins.md", "write-a-family.md", "contributing.md")


def page(name: str) -> str:
    """A page's text."""
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The code blocks of a page, without the hooks' signatures."""
    found = re.findall(rf"```{language}\n(.*?)```", page(name), re.DOTALL)
    return [block for block in found if not block.startswith("def nnterp_vllm_")]


def test_the_hook_reference_is_what_the_specifications_say() -> None:
    spec = importlib.util.spec_from_file_location("hook_reference", SCRIPTS / "hook_reference.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (written,) = script.PART.findall(page("plugins.md"))
    assert written == script.render(), "run scripts/hook_reference.py"


def test_every_hook_is_documented_with_its_arguments() -> None:
    hooks = {name: hook for name, hook in vars(hookspecs).items() if name.startswith("nnterp_vllm_")}
    assert len(hooks) == 3
    for hook in hooks.values():
        text = hook.__doc__ or ""
        assert all(f"\n        {argument}: " in text for argument in inspect.signature(hook).parameters)


def test_the_examples_of_extra_values_run() -> None:
    (source,) = blocks("plugins.md", "python")
    found: dict[str, Any] = {}
    exec(source, found)
    assert [extra.name for extra in found["nnterp_vllm_values"]("llama", "")] == ["dictionary_features", "gate"]
    assert all(isinstance(extra, Extra) for extra in (found["FEATURES"], found["GATE"]))


def test_the_family_on_the_page_is_the_one_that_is_installed() -> None:
    from nnterp_vllm_families.gpt2 import GPT2

    (source,) = blocks("write-a-family.md", "python")
    found: dict[str, Any] = {}
    exec(source, found)
    assert dataclasses.replace(found["GPT2"], notes=GPT2.notes) == GPT2


@pytest.mark.parametrize("name", PAGES)
def test_every_error_and_linked_page_exists(name: str) -> None:
    text = page(name)
    for word in re.findall(r"`([A-Z]\w+(?:Family|Plugin|Mismatch|Vetoed|Engine|Value|Error))`", text):
        assert hasattr(nnterp_vllm_core, word), word
    for target in re.findall(r"\]\(([\w-]+\.md)", text):
        assert (DOCS / target).is_file(), target


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_script_exists(name: str) -> None:
    from nnterp_vllm_core.cli import app

    commands = {command.name for command in app.registered_commands}
    assert set(re.findall(r"(?:^|`)nnterp-vllm (\w+)", page(name), re.MULTILINE)) <= commands
    for script in re.findall(r"scripts/\w+\.py", page(name)):
        assert (DOCS.parent / script).is_file()
