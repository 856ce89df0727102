"""The options of ``conformance run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Backend = Annotated[str, typer.Option(help="A device, as `bringup devices` lists it.")]
Level = Annotated[
    str,
    typer.Option(
        help="smoke, ops, fusion, runtime or exhaustive, each with those before it; or soak."
    ),
]
Seed = Annotated[int, typer.Option(help="Which cases to draw.")]
Only = Annotated[
    str, typer.Option(help="Cases of these levels, ops, kinds, dtypes or tags: 'add/f32,exp'.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=0,
        help="Worker processes: as many as cores, at most 4, by default; 0 for none.",
    ),
]
Fraction = Annotated[
    str, typer.Option(help="i/N: part i of N; all parts together are the whole run.")
]
TimeBudget = Annotated[
    float | None, typer.Option(min=0, help="Seconds after which no more is begun.")
]
Timeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds after which a case counts as hanging.")
]
ReportFolder = Annotated[
    Path | None, typer.Option(help="Folder for report.html, .json, junit.xml, failures.")
]
Corpus = Annotated[
    Path | None, typer.Option(help="Folder from which level soak goes on, and that it fills.")
]
Expect = Annotated[
    Path | None, typer.Option(help="TOML file of what is known to be missing or broken.")
]
Unclaimed = Annotated[
    bool, typer.Option("--unclaimed", help="Also try what the device does not declare.")
]
Certificate = Annotated[
    Path | None, typer.Option(help="New folder for a certificate, of a whole run.")
]
