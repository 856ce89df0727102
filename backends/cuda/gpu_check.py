"""Prove and measure bringup on an NVIDIA GPU: one command, at most eight minutes, no network.

    python backends/cuda/gpu_check.py pack FOLDER [--python 3.12] [--without numpy]
    python backends/cuda/gpu_check.py run [--packed FOLDER] [--device cuda] [--only PART,PART]
    python backends/cuda/gpu_check.py table docs/results/gpu-NAME.json
    python backends/cuda/gpu_check.py pycuda

`pack` fills a folder where there is a network; take it and this checkout to the machine.  `run`
installs from it what the machine lacks, then runs the parts, each for as long as its budget.  A
part that fails is recorded, and the rest goes on.  What is found is written as it comes to
``docs/results/gpu-NAME.json``, and at the end as a table beside it.  Of peers, torch and jax are
used if the machine has them.

Budgets are shares of ``--minutes``: ``--only ops,fusion --minutes 9`` runs many more cases.

`pycuda` is for any user: it compiles and installs pycuda where ``pip install pycuda`` finds no
headers, as without a toolkit.

``run --device cuda-emulated --quick`` goes through every part without a GPU, on small sizes; times
mean nothing there, and no bar is judged.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from pathlib import Path

from gpu_checks import installing, parts, running, tables
from gpu_checks.packing import MANIFEST, ROOT, SITE, pack

RESULTS = ROOT / "docs" / "results"


def main(words: list[str] | None = None) -> int:
    """Run one command; 1 if a part failed or a bar was missed."""
    options = _parser().parse_args(words)
    if options.command == "pack":
        return _pack(options)
    if options.command == "pycuda":
        installing.install_pycuda()
        return 0
    if options.command == "table":
        sys.stdout.write(tables.table(json.loads(options.file.read_text())))
        return 0
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="fill a folder, where there is a network")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--python", default="3.12", help="of the machine with the GPU")
    packing.add_argument("--machine", default=platform.machine(), help="as `uname -m` says there")
    packing.add_argument("--without", default="", help="distributions it has, with commas between")
    run = commands.add_parser("run", help="install, prove, measure")
    run.add_argument("--packed", type=Path, help="the folder; without it nothing is installed")
    run.add_argument(
        "--site", type=Path, help="where to install; kept. A temporary folder if not given"
    )
    run.add_argument("--device", default="cuda")
    run.add_argument("--quick", action="store_true", help="small sizes, few cases")
    run.add_argument("--only", default="", help=f"of: {', '.join(parts.names())}")
    run.add_argument("--minutes", type=float, default=8.0, help="for everything together")
    run.add_argument("--results", type=Path, default=RESULTS, help="the folder of the results")
    commands.add_parser("pycuda", help="compile and install pycuda, without a toolkit if need be")
    showing = commands.add_parser("table", help="print the table of a file of results")
    showing.add_argument("file", type=Path)
    return parser


def _pack(options: argparse.Namespace) -> int:
    without = [name for name in options.without.split(",") if name]
    manifest = pack(options.folder, options.python, options.machine, without)
    for name in (SITE, manifest["pycuda"], MANIFEST):
        size = (options.folder / name).stat().st_size / 2**20
        sys.stdout.write(f"{size:8.1f} MiB  {options.folder / name}\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    chosen = parts.chosen([name for name in options.only.split(",") if name])
    with tempfile.TemporaryDirectory() as text:
        # Parts run in the checkout, wherever this was called.
        packed = options.packed and options.packed.resolve()
        site = options.site or (Path(text) / "site" if packed else None)
        run = running.Run(
            device=options.device,
            quick=options.quick,
            seconds=options.minutes * 60,
            results=options.results,
            work=Path(text),
            packed=packed,
            site=site,
        )
        return running.run(run, chosen)


if __name__ == "__main__":
    sys.exit(main())
