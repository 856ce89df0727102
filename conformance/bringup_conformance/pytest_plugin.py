"""The pytest plugin: ``pytest --pyargs bringup_conformance --bringup-backend NAME``.

One test for each op, dtype and feature, such as ``ops/add/f32/special``, so that a vendor's CI
shows them; what a device does not declare is skipped with the reason.  A test runs its cases in a
process of its own: a device that crashes or hangs fails that test, and the others go on.

pytest loads this module in every run of it, so nothing heavy is imported before the option is used.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bringup_conformance.cases import Outcome, Unsupported
    from bringup_conformance.execution.expectations import Expectations
    from bringup_conformance.execution.plan import Item
    from bringup_conformance.execution.pool import Pool
    from bringup_conformance.execution.protocol import Done, Work
    from bringup_conformance.execution.schedule import Schedule
    from bringup_conformance.execution.targets import Target
    from bringup_conformance.reporting.results import Result

USAGE = "name a device: pytest --pyargs bringup_conformance --bringup-backend NAME"
#: The module that stands for the suite in ids of tests.
MODULE = Path(__file__).with_name("device.py")
#: The level that is one test.
SOAK = "soak"
#: Failures shown of one test.
MAX_SHOWN = 3
#: Seconds for shrinking one failure.
SHRINK_SECONDS = 20.0
#: Random programs in one test.
CHUNK = 25
_NUMBERED = re.compile(r"(?:(.+)-)?(\d+)")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("bringup", "conformance of a device (--pyargs bringup_conformance)")
    group.addoption("--bringup-backend", metavar="NAME", help="the device to test")
    group.addoption(
        "--bringup-level",
        metavar="LEVEL",
        default="fusion",
        help="smoke, ops, fusion, runtime or exhaustive, each with those before it; or soak, a test"
        " of Hypothesis, which HypoFuzz runs too (%(default)s)",
    )
    group.addoption(
        "--bringup-seed", metavar="N", type=int, default=0, help="which cases to draw (%(default)s)"
    )
    group.addoption(
        "--bringup-expect",
        metavar="FILE",
        type=Path,
        help="what is known to be missing or broken, as `conformance run --expect` reads it",
    )
    group.addoption(
        "--bringup-timeout",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="when a case that says nothing counts as hanging (%(default)s)",
    )
    group.addoption(
        "--bringup-shrink",
        metavar="SECONDS",
        type=float,
        default=90.0,
        help="time for making failures small, all of them together (%(default)s)",
    )
    group.addoption(
        "--bringup-report",
        metavar="DIR",
        type=Path,
        help="folder for files that replay failures (in pytest's cache unless given)",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is tested."""
    name = config.getoption("bringup_backend")
    level, seed = config.getoption("bringup_level"), config.getoption("bringup_seed")
    return f"bringup: backend {name}, level {level}, seed {seed}" if name else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the suite where its module is found."""
    if file_path.name != MODULE.name or not file_path.samefile(MODULE):
        return None
    if parent.config.getoption("bringup_backend"):
        suite: pytest.Collector = Suite.from_parent(parent, path=file_path)
        return suite
    if parent.config.getoption("pyargs"):
        usage: pytest.Collector = Usage.from_parent(parent, path=file_path)
        return usage
    return None  # a run of somebody's own tests, without a device


class DeviceFailure(Exception):
    """Cases of a test failed.  The message shows them."""


class Usage(pytest.File):
    """Stands for the suite while no device is named."""

    def collect(self) -> Iterator[pytest.Item]:
        """One test, which is skipped."""
        yield Skipped.from_parent(self, name="usage")


class Skipped(pytest.Item):
    """A test that says how to use the suite."""

    def runtest(self) -> None:
        """Skip."""
        pytest.skip(USAGE)


@dataclass(frozen=True, slots=True)
class Part:
    """The items of one test.

    name: unique in a run and the same in every process, such as ``ops/add/f32/special``.  works:
    whole units, or single items of one.
    """

    name: str
    works: tuple[Work, ...]


def parts_of(schedule: Schedule) -> list[Part]:
    """The tests of a run, in its order: for each row and dtype, one for each feature (values,
    special, mapped, …); for a unit with a name, one; for random programs, one for each `CHUNK`.
    """
    from bringup_conformance.cases import PROGRAMS
    from bringup_conformance.execution.levels import SPECIAL
    from bringup_conformance.execution.protocol import Work

    works: dict[str, list[Work]] = {}
    for number, unit in enumerate(schedule.units):
        prefix = "/".join(filter(None, (unit.level, unit.op, unit.dtype)))
        numbered = _NUMBERED.fullmatch(unit.number)
        if unit.op == PROGRAMS and numbered:
            first = int(numbered[2]) // CHUNK * CHUNK
            name = f"{prefix}/{numbered[1] or 'random'}/{first:04}"
            works.setdefault(name, []).append(Work(number))
        elif unit.number and unit.number != SPECIAL:  # a device may have no item of it
            works.setdefault(f"{prefix}/{unit.number}", []).append(Work(number))
        else:
            for index, item in enumerate(schedule.items(number)):
                name = f"{prefix}/{_feature(prefix, item)}"
                works.setdefault(name, []).append(Work(number, index, last=True))
    return [Part(name, tuple(each)) for name, each in works.items()]


def _feature(prefix: str, item: Item) -> str:
    """What an item is about: the word of its name after level, op and dtype, or ``values``."""
    word = item.name.removeprefix(prefix).strip("/").partition("/")[0]
    return word if word and not word.isdigit() else "values"


class Suite(pytest.File):
    """All tests of a device."""

    schedule: Schedule
    expected: Expectations
    _pool: Pool | None = None
    _shrinking = 0.0

    def collect(self) -> Iterator[pytest.Item]:
        """One item for each op, dtype and feature."""
        from bringup.errors import BringupError
        from bringup_conformance.execution.expectations import Expectations, load
        from bringup_conformance.execution.protocol import Job
        from bringup_conformance.execution.schedule import Schedule
        from bringup_conformance.execution.targets import DeviceTarget

        option = self.config.getoption
        level, seed, expect = (option(f"bringup_{x}") for x in ("level", "seed", "expect"))
        job = Job(level, seed, timeout=option("bringup_timeout"))
        try:
            self.expected = Expectations() if expect is None else load(expect)
            target = DeviceTarget.named(option("bringup_backend"))
            self.schedule = Schedule(target, job)
        except (BringupError, OSError) as error:
            raise self.CollectError(str(error)) from error
        if job.level == SOAK:
            yield self._soak(target)
        for part in parts_of(self.schedule):
            yield DeviceTest.from_parent(self, name=part.name, part=part)

    def _soak(self, target: Target) -> pytest.Item:
        """Level soak as one test."""
        from bringup_conformance.execution.soak import soaked
        from bringup_conformance.reporting import failures
        from bringup_conformance.reporting.environment import product
        from bringup_conformance.reporting.views import failure_text

        seed = self.schedule.job.seed

        def fail(outcome: Outcome) -> None:
            document = failures.document(outcome, failures.Run(target.name, seed, product(target)))
            path = self.folder() / f"{outcome.case.name.replace('/', '-')}.json"
            failures.rewrite(path, document)
            raise DeviceFailure(failure_text(document, path))

        test: pytest.Item = pytest.Function.from_parent(
            self, name=SOAK, callobj=soaked(target, fail, seed)
        )
        return test

    def pool(self) -> Pool:
        """The process that runs cases; started when the first test runs."""
        if self._pool is None:
            from bringup_conformance.execution.pool import Pool

            self._pool = Pool(self.config.getoption("bringup_backend"), self.schedule.job, jobs=1)
            self._pool.open()
            self.config.add_cleanup(self._pool.end)
        return self._pool

    def run(self, work: Work) -> list[Done]:
        """Run a unit, or an item of it; returns the results.

        Raises DeviceFailure if the device ends its process again and again.
        """
        from bringup_conformance.execution.pool import StoppedError
        from bringup_conformance.execution.protocol import Done, Finished

        results: list[Done] = []
        left_out = False

        def on_event(event: object) -> None:
            nonlocal left_out
            if isinstance(event, Done):
                results.append(event)
            elif isinstance(event, Finished):
                left_out = event.left_out and not work.last

        try:
            self.pool().run(deque([work]), on_event)
        except StoppedError as error:
            self.pool().end()
            self._pool = None
            raise DeviceFailure(str(error)) from error
        if left_out or not results:
            raise DeviceFailure("the device took down its process too often: cases are left out")
        return results

    def explained(self, done: Done, result: Result) -> dict[str, Any]:
        """A failure's document, with the smallest program if there is time left for that."""
        from bringup_conformance.execution.protocol import Explain, Explained
        from bringup_conformance.reporting.failures import is_check

        assert result.document is not None
        assert result.problem is not None
        document = result.document
        seconds = min(SHRINK_SECONDS, self.config.getoption("bringup_shrink") - self._shrinking)
        if is_check(document) or seconds <= 0:
            return document

        def on_event(event: object) -> None:
            nonlocal document
            if isinstance(event, Explained):
                document = event.document

        start = time.monotonic()
        alone = bool(result.problem.log)
        task = Explain(done.unit, done.item, result.problem, document, seconds, alone)
        self.pool().run(deque([task]), on_event, end=float("inf"))
        self._shrinking += time.monotonic() - start
        return document

    def folder(self) -> Path:
        """The folder for files of failures."""
        folder: Path | None = self.config.getoption("bringup_report")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        if self.config.pluginmanager.hasplugin("cacheprovider"):
            with suppress(OSError):
                return Path(self.config.cache.mkdir("bringup"))
        return Path(tempfile.mkdtemp(prefix="bringup-"))


class DeviceTest(pytest.Item):
    """One op, dtype and feature; or some random programs; or a promise of the runtime."""

    parent: Suite

    def __init__(self, *, part: Part, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.part = part

    def runtest(self) -> None:
        """Run the cases; skip if the device declares none of them."""
        from bringup_conformance.cases import Unsupported

        results = [done for work in self.part.works for done in self.parent.run(work)]
        ran = [(done, done.result) for done in results if not isinstance(done.result, Unsupported)]
        missing = [done.result for done in results if isinstance(done.result, Unsupported)]
        failed = [(done, result) for done, result in ran if result.problem is not None]
        excuses = {result.name: self.parent.expected.excuses(result) for _, result in failed}
        wrong = [(done, result) for done, result in failed if excuses[result.name] is None]
        if wrong:
            texts = [self._failure(*pair, small=n == 0) for n, pair in enumerate(wrong[:MAX_SHOWN])]
            text = f"{len(wrong)} of {len(ran)} cases failed"
            raise DeviceFailure("\n\n".join((text, *texts)))
        if failed:
            pytest.xfail("; ".join({e.reason: None for e in excuses.values() if e is not None}))
        reasons = dict.fromkeys(map(self._reason, missing))
        if not ran:
            pytest.skip("; ".join(reasons))
        if reasons:
            self.add_report_section("call", "not supported", "\n".join(reasons))

    def _reason(self, item: Unsupported) -> str:
        """Why something is not supported: the device's word, and the vendor's if there is one."""
        entry = self.parent.expected.explains(item)
        return item.reason if entry is None else f"{entry.reason} ({item.reason})"

    def _failure(self, done: Done, result: Result, *, small: bool) -> str:
        """A failure as text; its file is written.  small: whether to shrink it first."""
        from bringup_conformance.reporting import failures
        from bringup_conformance.reporting.views import failure_text

        document = self.parent.explained(done, result) if small else result.document
        assert document is not None
        path = self.parent.folder() / f"{result.name.replace('/', '-')}.json"
        failures.rewrite(path, document)
        self.user_properties.append(("bringup_replay", str(path)))
        self.user_properties += [("bringup_rule", rule) for rule in document["problem"]["rules"]]
        return failure_text(document, path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What failed, without the frames of this plugin."""
        if isinstance(excinfo.value, DeviceFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """What the report calls it."""
        return self.path, None, self.name
