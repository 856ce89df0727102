"""What both commands have in common: how they are set up, completed, and end after an error.

Exit status: 0 if all is right, 1 if something was found to be wrong, 2 for a command that could not
run as it was typed, 130 for one that was interrupted.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from bringup.cli.output import line, problem
from bringup.errors import BringupError

FOUND_WRONG = 1
NOT_RUN = 2
INTERRUPTED = 130

_TYPER = os.path.dirname(os.path.abspath(typer.__file__))
# Typer brings a copy of click, or depends on it, by version; this class of either is public.
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")


class Command(TyperCommand):
    """A command whose help has words for its arguments, and not their types in Python as well."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what is given, then the options."""
        for kind in ("argument", "option"):
            rows = []
            for param in self.get_params(ctx):
                record = param.get_help_record(ctx) if param.param_type_name == kind else None
                if record is not None:
                    words = record[0] if kind == "option" else record[0].partition(" <")[0]
                    rows.append((words, record[1]))
            if rows:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)


class Imported(TyperGroup):
    """Commands that stand in modules of their own.

    A module is imported when its command is used or asked for help.  The list of all commands
    needs none of them.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command itself, which the callback that `declare` registered imports."""
        declared = self.commands.get(cmd_name)
        return None if declared is None else declared.callback()  # type: ignore[misc]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of all."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, c.short_help or "") for name, c in self.commands.items()])


def declare(app: typer.Typer, target: str, about: str, *shown: str) -> None:
    """Add a command to an application of `Imported` ones.

    target: ``module:function``; the command has the name of the function, without ``_command``.
    about: a line for the list.  shown: examples.
    """
    module, _, function = target.partition(":")
    name = function.removesuffix("_command")

    def load() -> Any:
        single_app = typer.Typer(add_completion=False, rich_markup_mode=None)
        command = getattr(import_module(module), function)
        single_app.command(name, cls=Command, short_help=about, epilog=examples(*shown))(command)
        return typer.main.get_command(single_app)

    app.command(name, short_help=about)(load)


def application(about: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """The set-up of a command line."""
    return typer.Typer(
        cls=cls,
        help=about,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def _show_version(show: bool) -> None:
    if show:
        line(f"bringup {installed_version('bringup')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", "-V", callback=_show_version, is_eager=True, help="Print the version."
    ),
]


def examples(*commands: str) -> str:
    """The end of a help text, each command on a line of its own."""
    return "\n\n".join(("Examples:", "\b\n" + "\n".join(f"  {command}" for command in commands)))


def run(app: Callable[..., Any], command: str) -> None:
    """Run a command line and end the process; errors say what is wrong and what to do.

    With --json an error is one JSON object on standard output, beside the text for people.
    """
    try:
        status = app(prog_name=command, standalone_mode=False)
    except typer.Abort:
        status = INTERRUPTED
    except _UsageError as error:
        status = NOT_RUN
        _report_usage(error, command)
    except BringupError as error:
        status = getattr(error, "status", NOT_RUN)
        if error.location is not None and error.location.file.startswith(_TYPER):
            error.location = None  # nobody's line called the command
        fail(str(error), None, what=error.what, inner=error.fix)
    except OSError as error:
        status = NOT_RUN
        message = ": ".join(map(str, filter(None, (error.filename, error.strerror or error))))
        missing = isinstance(error, FileNotFoundError)
        fail(message, "name a file or folder that exists" if missing else None)
    sys.exit(status if isinstance(status, int) else 0)


def fail(text: str, fix: str | None, *, what: str | None = None, inner: str | None = None) -> None:
    """Report an error: as text on standard error, and as JSON on standard output if that was asked.

    what, inner: the sentence and the fix that a longer text holds already.
    """
    problem(text if fix is None else f"{text}\n  fix: {fix}")
    if "--json" in sys.argv[1:]:
        error = {"what": text if what is None else what, "fix": inner if fix is None else fix}
        line(json.dumps({"error": error}, ensure_ascii=False))


def found_wrong(error: BringupError) -> BringupError:
    """The error, with the exit status of something found to be wrong, not of a wrong command."""
    error.status = FOUND_WRONG  # type: ignore[attr-defined]
    return error


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A fix for a wrong name: the close ones, else all."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    shown = [*known[:12], "…"] if len(known) > 12 else known
    return f"use one of {', '.join(shown)}"


def _report_usage(error: Any, command: str) -> None:
    """Report a wrong use, worded by click, as our own errors are reported."""
    context = getattr(error, "ctx", None)
    path = command if context is None else context.command_path
    text: str = error.format_message()
    if text.startswith("Usage:"):  # of a command without arguments the message is its help
        typer.echo(text, err=True)
        return
    message, *guess = re.split(r"\.? Did you mean | \(Possible options: ", text.rstrip("?)"))
    fix = f"did you mean {guess[0]}?" if guess else f"`{path} --help` tells what there is"
    fail(message[:1].lower() + message[1:].rstrip("."), fix)


def device_names(incomplete: str) -> list[str]:
    """Devices that may be meant, for completion; no plugin is imported for it."""
    from bringup.backend.registry import list_backends

    return [s.name for s in list_backends(probe=False) if s.name.startswith(incomplete)]


def op_names(incomplete: str) -> list[str]:
    """Ops that may be meant, for completion."""
    from bringup.ops.catalogue import MODULE_OF

    return [name for name in MODULE_OF if name.startswith(incomplete)]


def languages(incomplete: str) -> list[str]:
    """Languages of a new backend that may be meant, for completion."""
    from bringup.cli import new

    return [name for name in (new.OWN, *new.languages()) if name.startswith(incomplete)]


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Completion among a few names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete
