"""The conformance suite's programs for a GPU, lowered and assembled and counted, without one.

``python suite_programs.py --level fusion --every 10`` prints the counts; without ``--every`` all
programs of the levels are taken, which takes an hour on a core.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from assembling import find_ptxas, run_ptxas

from bringup.kernel.form import Kernel
from bringup.runtime.compiler import lower_graph
from bringup_conformance.cases import Case
from bringup_conformance.execution import levels
from bringup_conformance.execution.plan import FULL, Plan
from bringup_conformance.execution.support import Support
from bringup_conformance.execution.targets import missing_from
from bringup_cuda.backend import CudaBackend
from bringup_cuda.codegen.commands import Launch
from bringup_cuda.codegen.lower import to_ptx, translate

#: ``sm_90a`` is what an H100 is given.
ARCHITECTURES = ("sm_80", "sm_90", "sm_90a", "sm_100")
_REPORT = re.compile(
    r"Compiling entry function '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Assembled:
    """What the assembler says of a kernel."""

    name: str
    spilled: int
    registers: int


@dataclass(slots=True)
class Counts:
    """Of one architecture.  spilling: row kernels that keep registers in memory, with bytes."""

    programs: int = 0
    kernels: int = 0
    assembled: int = 0
    rows: int = 0
    spilling: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def cases(level: str, architecture: str, every: int = 1, seed: int = 0) -> Iterator[Case]:
    """One in ``every`` of the cases of a level."""
    capabilities = CudaBackend().capabilities(architecture)
    support = Support(lambda graph: missing_from(capabilities, graph))
    plan = Plan(capabilities, support, seed, FULL)
    found = (unit for name in levels.ladder(level) for unit in levels.units(plan, name))
    for unit in list(found)[seed % every :: every]:
        yield from (item for item in unit.make() if isinstance(item, Case))


def is_row(kernel: Kernel) -> bool:
    """Whether a kernel has several loops, so that it may keep a row."""
    return sum(bool(stage.axes) for stage in kernel.stages) > 1


def count(found: Iterable[Case], architecture: str) -> Counts:
    """Lower and assemble."""
    counts, ptxas = Counts(), find_ptxas()
    for case in found:
        lowered = lower_graph(case.graph, CudaBackend(), f"{architecture}")
        counts.programs += 1
        for program in lowered.programs:
            made = translate(program, architecture)
            counts.kernels += len(made.kernels)
            if ptxas is None or not made.kernels:
                continue
            try:
                reports = assembled(ptxas, to_ptx(made.text, architecture), architecture)
            except subprocess.CalledProcessError as error:
                counts.refused[case.name] = error.stderr
                continue
            counts.assembled += len(reports)
            rows = {x.kernel.name for x in made.launches if _keeps_rows(x)}
            counts.rows += len(rows)
            counts.spilling |= {
                f"{case.name}: {r.name}": r.spilled for r in reports if r.spilled and r.name in rows
            }
    return counts


def _keeps_rows(launch: Launch) -> bool:
    kernel = getattr(launch.step, "kernel", None)
    return kernel is not None and is_row(kernel)


def assembled(ptxas: str, text: str, architecture: str) -> list[Assembled]:
    """Every kernel of a text.  Raises CalledProcessError with the assembler's words."""
    done = run_ptxas(ptxas, text, architecture, "-v")
    done.check_returncode()
    return [
        Assembled(name, int(spilled), int(registers))
        for name, spilled, registers in _REPORT.findall(done.stderr)
    ]


def main(arguments: Sequence[str]) -> int:
    """Print the counts of each architecture; 1 if anything was refused, spilt or not assembled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="fusion")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES))
    options = parser.parse_args(arguments)
    failed = False
    for seed, architecture in enumerate(options.architectures.split(",")):
        found = cases(options.level, architecture, options.every, seed)
        counts = count(found, architecture)
        sys.stdout.write(
            f"{architecture}: {counts.programs} programs lowered to {counts.kernels} kernels, "
            f"{counts.assembled} assembled; {counts.rows} row kernels, "
            f"{len(counts.spilling)} of them spill\n"
        )
        for name, what in (*counts.refused.items(), *counts.spilling.items()):
            sys.stdout.write(f"  {name}: {what}\n")
        left = counts.assembled < counts.kernels or not counts.programs
        failed |= bool(left or counts.refused or counts.spilling)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
