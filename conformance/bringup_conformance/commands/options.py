"""Options and helpers that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bringup.cli.shell import device_names, one_of, op_names

Backend = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A device, as `bringup devices` lists it.",
        autocompletion=device_names,
    ),
]
Level = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        autocompletion=one_of("smoke", "ops", "fusion", "runtime", "exhaustive", "soak"),
        help="smoke, ops, fusion, runtime or exhaustive, each with those before it; or soak.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Which cases to draw.")]
Only = Annotated[
    str,
    typer.Option(
        metavar="WORDS",
        autocompletion=op_names,
        help="Cases of these levels, ops, kinds, dtypes or tags, as `conformance list` names them:"
        " 'fusion', 'add/f32,exp', 'special/f32'; or of a name that a run told.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=0,
        metavar="N",
        help="Worker processes: as many as cores, at most 4, by default; 0 for none.",
    ),
]
Fraction = Annotated[
    str, typer.Option(metavar="I/N", help="Part I of N; all parts together are the whole run.")
]
TimeBudget = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="Seconds for all of it, reducing and reports too."),
]
RunTimeout = Annotated[
    float,
    typer.Option(
        min=0.1,
        metavar="SECONDS",
        help="A case hangs after so long without a call of its device, if it waits or used as much"
        " processor time; ten times as long in any case, and in level exhaustive.",
    ),
]
ReportFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for report.html, .json, junit.xml, failures; one in the cache by default,"
        " which keeps the last 10.",
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        metavar="REPORT_DIR",
        help="An earlier report that this run is compared with: status 1 if it is worse.",
    ),
]
Corpus = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder from which level soak goes on, and that it fills."),
]
Expect = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML file of what is known to be missing or broken."),
]
FewKernels = Annotated[
    bool | None,
    typer.Option(
        "--few-kernels/--many-kernels",
        help="Cases of few kernels, for a device that compiles slowly; by default the first cases"
        " tell.",
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="REPORT_DIR",
        help="Go on with the run whose report this folder holds: with what is not whole of it.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Tables of all ops, however many they are.")
]
Unclaimed = Annotated[
    bool, typer.Option("--unclaimed", help="Also try what the device does not declare.")
]
Certificate = Annotated[
    Path | None, typer.Option(metavar="DIR", help="New folder for a certificate, of a whole run.")
]
FailureFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file of a failure that a run wrote.")
]
OtherBackend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="Another device than the file's.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        metavar="SECONDS",
        help="Without a sign of life, before a case hangs; by default as of a failure's own run.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def progress(console: Console) -> Progress:
    """A bar of what is done of how much, which terminals alone show."""
    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
