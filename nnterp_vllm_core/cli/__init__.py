"""The command ``nnterp-vllm``: what is installed, what a checkpoint offers, what is wrong here, and plugins of one's own.

Nothing here needs a colour or a terminal. Results go to stdout, errors to stderr with exit status 1.
"""

from __future__ import annotations

import sys

import typer

from ..errors import NnterpVLLMError
from .agreement import agreement as agreement_command
from .check import check as check_command
from .doctor import doctor as doctor_command
from .families import families as families_command
from .new import new as new_command
from .support import support as support_command

app = typer.Typer(
    name="nnterp-vllm",
    help="Standardized reading and editing of language models' internals on vLLM; every model family is a plugin.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("families")(families_command)
app.command("support")(support_command)
app.command("doctor")(doctor_command)
app.command("new")(new_command)
app.command("check")(check_command)
app.command("agreement")(agreement_command)


def main() -> None:
    """Run the command; an error of ours is its message alone."""
    try:
        app()
    except NnterpVLLMError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)
