"""The console script ``conformance``.

Exit status: 0 if all is right, 1 if something failed, 2 if nothing could be run, 130 if someone
stopped it.
"""

from __future__ import annotations

import sys

import typer

from bringup.cli.output import problem
from bringup.errors import BringupError
from bringup_conformance.commands.compare import compare
from bringup_conformance.commands.explain import explain
from bringup_conformance.commands.list import list_command
from bringup_conformance.commands.replay import replay
from bringup_conformance.commands.run import run
from bringup_conformance.commands.selftest import selftest
from bringup_conformance.commands.shared import NOT_RUN
from bringup_conformance.commands.shrink import shrink
from bringup_conformance.commands.verify import verify

app = typer.Typer(
    help="Prove a device right.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command("list")(list_command)
app.command()(replay)
app.command()(compare)
app.command()(explain)
app.command()(shrink)
app.command()(verify)
app.command()(selftest)


def main() -> None:
    """Entry point of the console script; errors of ours end it with status 2 and their text."""
    try:
        app()
    except (BringupError, OSError) as error:
        problem(_told(error))
        sys.exit(NOT_RUN)


def _told(error: Exception) -> str:
    """An error in words; of the system, without its number."""
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(map(str, filter(None, (error.filename, error.strerror))))
    return str(error)
