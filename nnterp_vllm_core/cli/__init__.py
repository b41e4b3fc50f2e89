"""The command ``nnterp-vllm``: what is installed, what a checkpoint offers, what is wrong here, and plugins of one's own.

Nothing here needs a colour or a terminal. Results go to stdout, errors to stderr with exit status 1.
"""

from __future__ import annotations

import sys

import typer

from ..errors import NnterpVLLMError
from . import check, doctor, families, new, support

app = typer.Typer(
    name="nnterp-vllm",
    help="Standardized reading and editing of language models' internals on vLLM; every model family is a plugin.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("families")(families.families)
app.command("support")(support.support)
app.command("doctor")(doctor.doctor)
app.command("new")(new.new)
app.command("check")(check.check)


def main() -> None:
    """Run the command; an error of ours is its message alone."""
    try:
        app()
    except NnterpVLLMError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)
