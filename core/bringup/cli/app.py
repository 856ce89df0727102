"""The commands and their options; what they do stands in a module each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bringup.cli import shell
from bringup.cli.shell import Command, Version, device_names, examples, op_names

#: What ``bringup dump`` shows; fusion (why values are stored between kernels), loops, source and
#: assembly are long, and shown when asked for.
LEVELS = (
    "passes", "fusion", "program", "kernels", "loops", "schedule", "source", "asm", "cost",
)  # fmt: skip

Function = Annotated[
    str,
    typer.Argument(
        metavar="FUNCTION", help="file.py:function, module:function or file.bringup:entry."
    ),
]

app = shell.application("See devices, ops and compiled programs of bringup.")
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object, with the number of its format, and nothing else."
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help="embedded in the code, or external, in a file that is mapped into memory.",
        autocompletion=shell.one_of("embedded", "external"),
    ),
]
Functions = Annotated[
    list[str],
    typer.Argument(
        metavar="FUNCTION",
        help="file.py:function, module:function or file.bringup:entry.  Several have their"
        " types behind them, and may have other names in front: NAME=file.py:function(TYPES).",
    ),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="What else a program file shall tell: JSON or a text; may be repeated.",
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


@app.command(
    cls=Command,
    epilog=examples("bringup doctor", "bringup doctor --json", "bringup doctor mydevice"),
)
def doctor(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Say which places of this backend are still simulated.",
            autocompletion=device_names,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Say what is installed and what to fix.

    With a name, which places of that backend are still simulated, and whether its first device
    opens and has a function for each op that it claims.  Status 1 if there is something to do.
    """
    from bringup.cli import doctor as command

    raise typer.Exit(command.show(name, as_json=json))


@app.command(
    cls=Command,
    epilog=examples(
        'bringup new "Acme X1"',
        'bringup new "Acme X1" --language c',
        'bringup new "Acme X1" --depth kernels --path x1 --licence MIT --author "Acme Inc."',
    ),
)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the device, as people say it.")],
    depth: Annotated[
        str,
        typer.Option(
            metavar="DEPTH",
            help="What the device takes: ops, kernels, loops or programs; by default loops if there"
            " is a language, else ops.",
            autocompletion=shell.one_of("ops", "kernels", "loops", "programs"),
        ),
    ] = "",
    language: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What its compiler takes: own, or C that core renders, in the dialect c, opencl,"
            " cuda, hip or metal.",
            autocompletion=shell.languages,
        ),
    ] = "",
    path: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="To be made; named after the distribution if left out."
        ),
    ] = "",
    licence: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Apache-2.0, which is the default, BSD-3-Clause, MIT or LicenseRef-Proprietary.",
            autocompletion=shell.one_of(
                "Apache-2.0", "BSD-3-Clause", "MIT", "LicenseRef-Proprietary"
            ),
        ),
    ] = "",
    author: Annotated[str, typer.Option(metavar="NAME", help="Of package and licence.")] = "",
) -> None:
    """Make the package of a backend, to fill in with a driver.

    It has tests and passes the suite at once, on a simulated device.
    """
    from bringup.cli import new as command

    command.show(name, depth, language, path, licence, author)


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
        "bringup dump model.py:loss 'f32[4,8]' 'f32[8]' --html loss.html",
        "bringup dump graph.txt --target mydevice",
    ),
)
def dump(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION",
            help="file.py:function, module:function, file.bringup:entry, or a file of IR text.",
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
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all levels, with pictures, as a page for a browser."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a function becomes, pass by pass.

    The graph after each pass, the program, its kernels and their cost.  Status 1 if the function
    is wrong, or the target cannot run it.
    """
    from bringup.cli import dump as command

    command.show(subject, types or [], target, level or [], html, as_json=json)


@app.command(
    cls=Command, epilog=examples("bringup show model.bringup", "bringup show model.bringup --json")
)
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A program file.")],
    json: Json = False,
) -> None:
    """Show what a program file holds, and check it.

    Its functions, their types and what a device needs for them, its metadata, hash and weights.
    Status 1 if the file is damaged or too new.
    """
    from bringup.cli import show as command

    command.show(file, as_json=json)


@app.command(
    cls=Command,
    epilog=examples(
        "bringup tune model.py:loss 'f32[4,8]' 'f32[8]'",
        "bringup tune model.py:loss 'f32[4,8]' 'f32[8]' --device mydevice --seconds 300",
    ),
)
def tune(
    subject: Function,
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


@app.command(
    cls=Command,
    epilog=examples(
        "bringup build model.py:predict --args 'f32[1,784]' --target aarch64-linux-gnu",
        "bringup build model.py:predict --args 'f32[1,784]' --target wasm32 --kind shared --small",
        "bringup build model.py:predict --args 'f32[1,784]' --target c11 --weights external",
        "bringup build 'a.py:encode(f32[8])' 'a.py:decode(f32[4])' --name codec --target program",
    ),
)
def build(
    subjects: Functions,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Such as x86_64-linux-gnu, or backend:target; c11 or opencl-c for source, program"
            " for a program file.",
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPES",
            help="Types of the arguments, such as 'f32[4,8]', or numbers; may be repeated.",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Of the library; the function's if left out.")
    ] = "",
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Where the files go.")] = ".",
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="object, static or shared; of wasm32, shared is a module.",
            autocompletion=shell.one_of("object", "static", "shared"),
        ),
    ] = "object",
    weights: Weights = "embedded",
    small: Annotated[
        bool, typer.Option("--small", help="Little code counts for more than speed.")
    ] = False,
    threads: Annotated[int, typer.Option(metavar="N", help="The most workers of a call.")] = 1,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Make a library of functions, for programs without Python: an object or C source, headers."""
    from bringup.cli import build as command

    command.show(
        subjects,
        [word for text in args or [] for word in text.split()],
        target,
        name=name,
        folder=out,
        kind=kind,
        weights=weights,
        small=small,
        threads=threads,
        metadata=metadata or [],
        as_json=json,
    )
