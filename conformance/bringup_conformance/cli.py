"""The console script ``conformance``.

Exit status: 0 if all is right, 1 if something failed, 2 if nothing could be run, 130 if someone
stopped it.
"""

from __future__ import annotations

from importlib.util import find_spec

from bringup.cli import shell

app = shell.application("Prove a device right.", shell.Imported)


@app.callback()
def options(version: shell.Version = False) -> None:
    """Prove a device right."""


_COMMANDS = (
    (
        "run:run",
        "Run the suite on a device.",
        "conformance run --backend mydevice --level smoke",
        "conformance run --backend mydevice --only add,exp/f32",
        "conformance run --backend mydevice --fraction 1/8 --report part1",
    ),
    (
        "list:list_command",
        "List levels, ops and kinds of data, or rules.",
        "conformance list",
        "conformance list --rules --only add.f32",
    ),
    (
        "failure:replay",
        "Run a failing program again.",
        "conformance replay report/failure-001.json",
        "conformance replay report/failure-001.json --backend otherdevice",
    ),
    (
        "reports:compare",
        "Tell two reports apart.",
        "conformance compare yesterday today",
        "conformance compare yesterday today --html compared.html",
        "conformance compare --last --backend mydevice",
    ),
    (
        "reports:join",
        "Join the parts of a run into one report.",
        "conformance join part1 part2 --report whole",
        "conformance join part1 part2 --report whole --certificate certificate",
    ),
    (
        "failure:explain",
        "Find the guilty pass, kernel or place.",
        "conformance explain report/failure-001.json",
    ),
    (
        "failure:shrink",
        "Make a failing program smaller.",
        "conformance shrink report/failure-001.json --seconds 600",
        "conformance shrink report/failure-001.json --output smaller.json",
    ),
    (
        "bench:bench",
        "Measure a device's speed, as shares of what it could do.",
        "conformance bench --backend mydevice",
        "conformance bench --backend mydevice --against otherdevice --report folder",
        "conformance bench --backend mydevice --only folds --sizes small,large",
    ),
    (
        "coverage:coverage",
        "List lines of a backend's code that no case enters.",
        "conformance coverage --backend mydevice --fail-under 95",
        "conformance coverage --backend mydevice --level smoke --report report",
    ),
    (
        "reports:verify",
        "Look through a certificate.",
        "conformance verify certificate",
        "conformance verify certificate --backend mydevice --rerun --sample 50",
    ),
)
#: Those of the distribution bringup-selftest, for who has installed it.
_SELFTEST = (
    (
        "mutants:mutants",
        "Plant small mistakes in a backend's code and see what finds them.",
        "conformance mutants --backend mydevice --sample 50",
        "conformance mutants --backend mydevice --kind source --package mypackage --report folder",
    ),
    (
        "selftest:selftest",
        "Plant faults in a right device and see what finds them.",
        "conformance selftest --fast",
        "conformance selftest --only fusion --report folder",
    ),
)
for function, *texts in _COMMANDS:
    shell.declare(app, f"bringup_conformance.commands.{function}", *texts)
if find_spec("bringup_selftest") is not None:
    for function, *texts in _SELFTEST:
        shell.declare(app, f"bringup_selftest.commands.{function}", *texts)


def main() -> None:
    """Entry point of the console script."""
    shell.run(app, "conformance")
