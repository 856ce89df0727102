"""The commands and their options; what they do stands in a module each."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from bringup.cli.output import line, problem
from bringup.errors import BringupError

app = typer.Typer(
    help="See devices, ops and compiled programs of bringup.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def run() -> None:
    """Run the command line; errors of ours end it with status 1 and their text."""
    try:
        app()
    except BringupError as error:
        problem(str(error))
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        line(f"bringup {installed_version('bringup')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
]


@app.callback()
def options(version: Version = False) -> None:
    """See devices, ops and compiled programs of bringup."""


@app.command()
def devices(json: Json = False) -> None:
    """List the devices, or why a backend has none."""
    from bringup.cli import devices as command

    command.show(as_json=json)


@app.command()
def doctor(json: Json = False) -> None:
    """Say what is installed and what to fix.

    Status 1 if something needs a fix.
    """
    from bringup.cli import doctor as command

    raise typer.Exit(command.show(as_json=json))


@app.command()
def ops(
    name: Annotated[str, typer.Argument(help="Show everything about this op.")] = "",
    coverage: Annotated[
        bool,
        typer.Option(
            "--coverage",
            help="What is there for each dtype: reference, device, gradient, conformance cases.",
        ),
    ] = False,
    backend: Annotated[
        str, typer.Option(help="The device of --coverage; the default one if left out.")
    ] = "",
    json: Json = False,
) -> None:
    """List the ops, or show all about one."""
    from bringup.cli import coverage as table
    from bringup.cli import ops as command

    if coverage:
        command.row_of(name)
        table.show(backend, name, as_json=json)
    else:
        command.show(name, as_json=json)


@app.command()
def dump(
    subject: Annotated[
        str, typer.Argument(help="file.py:function, module:function, or a file of IR text.")
    ],
    types: Annotated[
        list[str] | None, typer.Argument(help="Types of the arguments, such as 'f32[4,8]'.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="A backend, or backend:architecture; needs no hardware.")
    ] = "",
    level: Annotated[
        list[str] | None,
        typer.Option(
            help="passes, program, kernels, source, asm or cost; may be repeated.  All but source"
            " and asm by default."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a function becomes, pass by pass.

    The graph after each pass, the program, its kernels and their cost.
    """
    from bringup.cli import dump as command

    command.show(subject, types or [], target, level or [], as_json=json)
