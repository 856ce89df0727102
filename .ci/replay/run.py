"""What the programs of a corpus become, compared with what they became before.

    python .ci/replay/run.py                  compare with expected.tsv; status 1 at a difference
    python .ci/replay/run.py --against REV    compare with another commit, whose texts are shown
    python .ci/replay/run.py --update         write expected.tsv anew
    python .ci/replay/run.py --draw           draw graphs.txt anew from the conformance suite

The corpus: graphs that the suite drew, kept in graphs.txt, and those of models.py.  Each is
compiled for an x86 with 256-bit vectors and for an NVIDIA GPU, as far as LLVM's text; nothing runs.
A rename, a move or a merge of code changes nothing of that.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from models import graphs

from bringup.errors import UnsupportedError
from bringup.graph import Graph
from bringup.graph.parser import parse_graph
from bringup.ops.table import find
from bringup.runtime.compiler import lower_graph
from bringup_cpu.backend import CpuBackend
from bringup_cpu.codegen import generate
from bringup_cpu.target import target
from bringup_cuda.backend import CudaBackend
from bringup_cuda.codegen.lower import translate

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GRAPHS, EXPECTED = HERE / "graphs.txt", HERE / "expected.tsv"
PACKAGES = ("core", "backends/cpu", "backends/cuda", "conformance")
CPU, GPU, THREADS = "x86-64-v3", "sm_80", 2
COLUMNS = (
    "name", "kernels", "read", "written", "arena", "graph", "program", "cpu", "gpu",
)  # fmt: skip
#: Of the suite: so many random programs, rows at one of these dtypes, and no longer text.
PROGRAMS, DTYPES, LONGEST = 60, ("f32", "i32", "bool", ""), 12_000


def corpus() -> Iterator[tuple[str, Graph]]:
    """Names and graphs."""
    for block in GRAPHS.read_text("utf-8").split("\n\n"):
        name, _, text = block.partition("\n")
        yield name.removeprefix("# "), parse_graph(text, find)
    yield from graphs()


def compiled(graph: Graph) -> tuple[dict[str, str], list[int]]:
    """What a graph becomes, level by level, and its counts on the CPU."""
    cpu = lower_graph(graph, CpuBackend(), CPU)
    found = {"graph": str(graph)}
    found["program"] = "\n\n".join(map(str, (*cpu.programs, *cpu.kernels)))
    made = (generate(program, replace(target(CPU), threads=THREADS)) for program in cpu.programs)
    found["cpu"] = "\n".join(native.text for native in made)
    try:
        gpu = lower_graph(graph, CudaBackend(), GPU).programs
        found["gpu"] = "\n".join(str(translate(program, GPU).text) for program in gpu)
    except UnsupportedError as error:  # a device may lack something, and says what
        found["gpu"] = str(error)
    cost = cpu.cost()
    return found, [cost.kernels, cost.bytes_read, cost.bytes_written, cost.arena_bytes]


def table(folder: Path | None = None) -> dict[str, list[str]]:
    """A row for each program; the texts go into a folder, if there is one."""
    rows = {}
    for name, graph in corpus():
        found, counts = compiled(graph)
        hashes = [hashlib.sha256(text.encode()).hexdigest()[:12] for text in found.values()]
        rows[name] = [name, *map(str, counts), *hashes]
        for level, text in found.items() if folder is not None else ():
            assert folder is not None
            (folder / f"{name.replace('/', ' ')}.{level}").write_text(text, "utf-8")
    return rows


def read(path: Path) -> dict[str, list[str]]:
    """The rows of a table."""
    lines = path.read_text("utf-8").splitlines()[1:]
    return {line.split("\t")[0]: line.split("\t") for line in lines}


def write(rows: Mapping[str, Sequence[str]], path: Path) -> None:
    """Write a table."""
    lines = [COLUMNS, *rows.values()]
    path.write_text("".join("\t".join(line) + "\n" for line in lines), "utf-8")


def differences(before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]) -> int:
    """Print the programs that differ, with the columns that do; returns how many there are."""
    count = 0
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        count += 1
        if old is None or new is None:
            print(f"{name}: {'is new' if old is None else 'is gone'}")
            continue
        pairs = zip(COLUMNS, old, new, strict=True)
        print(f"{name}: " + ", ".join(f"{c} {a} -> {b}" for c, a, b in pairs if a != b))
    print(f"{len(after)} programs, {count} differ")
    return count


def against(revision: str, shown: int) -> int:
    """Compare with another commit, both with the corpus of this tree; the texts of some differ."""
    with tempfile.TemporaryDirectory() as folder:
        old, new, tree = (Path(folder) / name for name in ("old", "new", "tree"))
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, revision], check=True)
        try:
            (tree / GRAPHS.relative_to(ROOT)).write_bytes(GRAPHS.read_bytes())
            for root, where in ((tree, old), (ROOT, new)):
                where.mkdir()
                paths = os.pathsep.join(str(root / package) for package in PACKAGES)
                script = root / Path(__file__).resolve().relative_to(ROOT)
                subprocess.run(
                    [sys.executable, script, "--texts", where],
                    env=os.environ | {"PYTHONPATH": paths},
                    check=True,
                )
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True)
        count = differences(read(old / "table.tsv"), read(new / "table.tsv"))
        for path in sorted(new.iterdir()):
            before = old / path.name
            if path.suffix == ".tsv" or not before.exists() or shown == 0:
                continue
            pair = [p.read_text("utf-8").splitlines() for p in (before, path)]
            if pair[0] != pair[1]:
                shown -= 1
                print("\n".join(difflib.unified_diff(*pair, path.name, path.name, "", "", 2, "")))
    return count


def draw() -> None:
    """Cases of the suite: one of each row, every hazard, and random programs."""
    from bringup_conformance.cases import Case
    from bringup_conformance.execution import levels
    from bringup_conformance.execution.plan import FULL, Plan
    from bringup_conformance.execution.support import Support
    from bringup_conformance.execution.targets import missing_from

    capabilities = CpuBackend().capabilities(CPU)
    plan = Plan(capabilities, Support(lambda g: missing_from(capabilities, g)), 0, FULL)
    blocks: dict[str, str] = {}
    for level in ("ops", "fusion"):
        for unit in levels.units(plan, level):
            number = int(unit.number) if unit.number.isdigit() else 0
            if unit.number == "special" or number >= PROGRAMS or unit.dtype not in DTYPES:
                continue
            kind = unit.op if level == "ops" else f"{unit.op}/{unit.number or unit.dtype}"
            for case in unit.make() if f"{level}/{kind}" not in blocks else ():
                text = str(case.graph) if isinstance(case, Case) else ""
                if 0 < len(text) <= LONGEST:
                    blocks[f"{level}/{kind}"] = text
                    break
    GRAPHS.write_text("\n\n".join(f"# {n}\n{t}" for n, t in blocks.items()) + "\n", "utf-8")
    print(f"{len(blocks)} graphs, {GRAPHS.stat().st_size:,} bytes")


def main() -> int:
    """Read the options and do it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--update", action="store_true", help="write what is expected")
    group.add_argument("--against", metavar="REV", help="another commit of this repository")
    group.add_argument("--texts", metavar="DIR", type=Path, help="write all texts into a folder")
    group.add_argument("--draw", action="store_true", help="draw graphs from the suite")
    parser.add_argument("--show", type=int, default=5, help="texts whose difference is printed")
    options = parser.parse_args()
    if options.draw:
        draw()
    elif options.against:
        return int(against(options.against, options.show) > 0)
    elif options.texts:
        write(table(options.texts), options.texts / "table.tsv")
    elif options.update:
        write(table(), EXPECTED)
    else:
        return int(differences(read(EXPECTED), table()) > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
