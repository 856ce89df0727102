"""The commands and their options; what they do stands in a module each."""

from __future__ import annotations

from typing import Annotated

import typer

from bringup.cli import shell
from bringup.cli.shell import Command, Version, device_names, examples, op_names

#: What ``bringup dump`` shows; fusion (why values are stored between kernels), loops, source and
#: assembly are long, and shown when asked for.
LEVELS = (
    "passes", "fusion", "program", "kernels", "loops", "schedule", "source", "asm", "cost",
)  # fmt: skip

app = shell.application("See devices, ops and compiled programs of bringup.")
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object, with the number of its format, and nothing else."
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Argument(metavar="TYPE", help="Types of the arguments, such as 'f32[4,8]', or numbers."),
]


def run() -> None:
    """Run the command line."""
    shell.run(app, "bringup")


@app.callback()
def options(version: Version = False) -> None:
    """See devices, ops and compiled programs of bringup."""


@app.command(cls=Command, epilog=examples("bringup devices", "bringup devices --json"))
def devices(json: Json = False) -> None:
    """List the devices, or why a backend has none."""
    from bringup.cli import devices as command

    command.show(as_json=json)


@app.command(cls=Command, epilog=examples("bringup doctor", "bringup doctor --json"))
def doctor(json: Json = False) -> None:
    """Say what is installed and what to fix.

    Status 1 if something needs a fix.
    """
    from bringup.cli import doctor as command

    raise typer.Exit(command.show(as_json=json))


@app.command(
    cls=Command,
    epilog=examples(
        "bringup ops", "bringup ops softmax", "bringup ops --coverage --backend mydevice"
    ),
)
def ops(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Show everything about this op.", autocompletion=op_names
        ),
    ] = "",
    coverage: Annotated[
        bool,
        typer.Option(
            "--coverage",
            help="What is there for each dtype: reference, device, gradient, conformance cases.",
        ),
    ] = False,
    backend: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The device of --coverage; the default one if left out.",
            autocompletion=device_names,
        ),
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


@app.command(
    cls=Command,
    epilog=examples(
        "bringup dump model.py:loss 'f32[4,8]' 'f32[8]'",
        "bringup dump model.py:loss 'f32[4,8]' 'f32[8]' --level kernels --level asm",
        "bringup dump graph.txt --target mydevice",
    ),
)
def dump(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION", help="file.py:function, module:function, or a file of IR text."
        ),
    ],
    types: Types = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A backend, or backend:architecture; needs no hardware.",
            autocompletion=device_names,
        ),
    ] = "",
    level: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL",
            help="passes, fusion, program, kernels, loops, schedule, source, asm or cost; may be"
            " repeated.  All but fusion, loops, schedule, source and asm by default.",
            autocompletion=shell.one_of(*LEVELS),
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a function becomes, pass by pass.

    The graph after each pass, the program, its kernels and their cost.  Status 1 if the function
    is wrong, or the target cannot run it.
    """
    from bringup.cli import dump as command

    command.show(subject, types or [], target, level or [], as_json=json)


@app.command(
    cls=Command,
    epilog=examples(
        "bringup tune model.py:loss 'f32[4,8]' 'f32[8]'",
        "bringup tune model.py:loss 'f32[4,8]' 'f32[8]' --device mydevice --seconds 300",
    ),
)
def tune(
    subject: Annotated[
        str, typer.Argument(metavar="FUNCTION", help="file.py:function or module:function.")
    ],
    types: Types = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The device to measure on; the default one if left out.",
            autocompletion=device_names,
        ),
    ] = "",
    seconds: Annotated[float, typer.Option(metavar="N", help="How long to search.")] = 60,
    keep: Annotated[
        bool, typer.Option(help="Whether later programs on this machine use what is found.")
    ] = True,
    ship: Annotated[
        bool,
        typer.Option(
            "--ship",
            help="Write what is found into the table that the backend ships for machines of this"
            " class, in place of the user's.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Search for faster schedules of a function's kernels, by measuring.

    A schedule that is kept is used wherever a program has an equal kernel.  Results keep their
    bits.
    """
    from bringup.cli import tune as command

    command.show(subject, types or [], device, seconds, keep=keep, ship=ship, as_json=json)
