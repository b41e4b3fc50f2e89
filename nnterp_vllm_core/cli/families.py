"""``nnterp-vllm families``: every installed family and whether it can be used."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from ..discovery import Entry, advertised
from ..engine import engine_version, outside
from ..errors import NnterpVLLMError
from ..loader import covering
from .measured import Measured, measured
from .table import table


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plugin module as the command shows it.

    Attributes:
        family: The plugin's module.
        distribution, version: Where it was found.
        model_types: What it advertises.
        validated: The vLLM versions it was tested with; empty when it cannot be imported.
        status: ``ok``, ``unvalidated`` (the installed vLLM is outside the range), ``duplicate``, ``left out`` or ``broken``.
        cause: Why the status is not ``ok``.
        measured: What the conformance suite measured of its model types, from the validation record.
    """

    family: str
    distribution: str
    version: str
    model_types: tuple[str, ...]
    validated: str
    status: str
    cause: str
    measured: tuple[Measured, ...]


def rows() -> list[Row]:
    """Every advertised family. Each is imported on its own, so a broken one is a row like the others."""
    entries = advertised()
    owners: dict[str, set[str]] = {}
    for entry in entries:
        if not entry.left_out:
            owners.setdefault(entry.name, set()).add(entry.distribution)
    grouped: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        grouped.setdefault((entry.distribution, entry.module), []).append(entry)
    return [_row(group, owners) for group in grouped.values()]


def _row(group: list[Entry], owners: dict[str, set[str]]) -> Row:
    validated, status, cause = "", "ok", ""
    used = [entry for entry in group if not entry.left_out]
    try:
        for entry in used:
            validated = covering(entry).validated
    except NnterpVLLMError as error:
        status, cause = "broken", str(error)
    shared = {name: sorted(owners[name]) for name in (entry.name for entry in used) if len(owners[name]) > 1}
    version = engine_version()
    if not used:
        status, cause = "left out", group[0].left_out
    elif status == "ok" and shared:
        status, cause = "duplicate", "; ".join(f"{name} is claimed by {', '.join(who)}" for name, who in shared.items())
    elif status == "ok" and version is not None and outside(validated, version):
        status, cause = "unvalidated", f"vLLM {version} is installed"
    return Row(
        family=group[0].module,
        distribution=group[0].distribution,
        version=group[0].version,
        model_types=tuple(sorted(entry.name for entry in group)),
        validated=validated,
        status=status,
        cause=cause,
        measured=tuple(one for entry in group for one in measured().get(entry.name, ())),
    )


def families(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, causes included.")] = False,
    causes: Annotated[bool, typer.Option("--causes", help="Say why a family is not ok.")] = False,
    gaps: Annotated[
        bool, typer.Option("--measured", help="Show what was measured instead, and the largest gap to transformers.")
    ] = False,
) -> None:
    """List the installed families: module, distribution, version, model types, validated vLLM versions, status."""
    found = rows()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in found], indent=2))
        return
    if not found:
        typer.echo("No family is installed. Try `pip install nnterp-vllm[llama]`.")
        return
    if gaps:
        typer.echo(table(Measured.HEADS, [one.cells() for row in found for one in row.measured]))
        return
    heads = ("family", "distribution", "version", "model types", "vLLM", "status")
    lines = [
        (row.family, row.distribution, row.version, ", ".join(row.model_types), row.validated or "-", row.status)
        for row in found
    ]
    typer.echo(table(heads, lines))
    troubled = [row for row in found if row.cause]
    if causes:
        for row in troubled:
            typer.echo(f"\n{row.distribution} {row.version}, {row.status}: {row.cause}")
    elif troubled:
        typer.echo(f"\n{len(troubled)} not ok; `nnterp-vllm families --causes` says why.")
