"""``nnterp-vllm support``: what a checkpoint offers, from its config and its family's declaration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ..checkpoint import raw_config
from ..contributions import Contributions
from ..declared import declared_support
from ..engine import engine_version
from ..errors import UnsupportedFamily
from ..family import Family, Implementation
from ..loader import find
from ..sources import Sources
from .table import table


def support(
    checkpoint: Annotated[str, typer.Argument(metavar="REPO_OR_PATH", help="A repo id or a checkpoint folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which standard values a checkpoint's model serves. Reads its config alone and starts no engine."""
    config = raw_config(checkpoint)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnsupportedFamily(f"{checkpoint!r}: its config.json names no model_type, so no family can be looked up.")
    plugin = find(model_type)
    extras = Contributions.to(plugin, model_type, checkpoint).extras()
    answers = {title: declared_support(one, extras) for title, one in _applying(plugin.family)}
    if as_json:
        typer.echo(json.dumps(_as_json(model_type, plugin, answers), indent=2))
        return
    typer.echo(f"{checkpoint}: model_type {model_type}, family {plugin}")
    for title, lines in answers.items():
        typer.echo(f"\n{title}")
        typer.echo(table(("value", "status"), list(lines.items())))
    for note in plugin.family.notes:
        typer.echo(f"\nNote: {note}")


def _applying(family: Family) -> list[tuple[str, Implementation]]:
    """The declarations that the installed vLLM may use; every one of them when no vLLM is installed."""
    version = engine_version()
    sources = Sources()
    native = [one for one in family.native if version is None or sources.defines(one.source, one.blocks)]
    found = [(f"on vLLM's own {', '.join(one.blocks)}", one) for one in native]
    if family.transformers is not None and (version is None or not native):
        blocks = ", ".join(family.transformers.blocks)
        found.append((f"on vLLM's Transformers backend, {blocks}", family.transformers))
    if not found:
        raise UnsupportedFamily(
            f"Family {family.__name__} describes no block that vLLM {version} has: it declares "
            f"{', '.join(name for one in family.native for name in one.blocks)} and no transformers implementation. Update "
            f"the family, or install a vLLM in its validated range {family.validated!r}."
        )
    return found


def _as_json(model_type: str, plugin: Any, answers: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "family": plugin.module,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "support": {title: dict(lines) for title, lines in answers.items()},
        "notes": list(plugin.family.notes),
    }
