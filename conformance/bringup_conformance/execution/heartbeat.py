"""Signs of life of a worker process, and whether it hangs.

A worker shares a page of memory with the process that started it.  It writes there what it does on
its device (`PHASES`), and counts the device calls that begin and end.  A worker hangs if no call
begins or ends for as long as a case may take, and meanwhile its process

* waits: it uses no processor time, or
* computes: it has used as much processor time as a case may take.

A process that wants to compute but gets little processor time, because the machine is busy, does
neither; it may take `ALIVE_FACTOR` times as long.  So may a case that keeps calling its device.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from bringup.backend.adapters_run import observe_steps

#: What a process does on its device; the first entry is "nothing".
PHASES = (
    "", "opening", "compiling", "allocating", "freeing", "uploading", "launching", "waiting",
    "copying", "downloading",
)  # fmt: skip
#: How many times its limit a process may take that only shows that it is alive.
ALIVE_FACTOR = 10
#: Methods of devices and the phases they are.
_METHODS = {
    "compile": "compiling", "render": "compiling", "alloc": "allocating", "free": "freeing",
    "upload": "uploading", "launch": "launching", "synchronize": "waiting", "copy": "copying",
    "adopt": "copying", "borrow": "uploading", "download": "downloading",
    "host_view": "downloading",
}  # fmt: skip
# A process that uses less than this share of a processor waits.
_IDLE = 0.01
_PAGE_BYTES = mmap.PAGESIZE

# Word 0 counts calls that began or ended, word 1 is the number of the phase.
_page: Any = None


def start(descriptor: int) -> None:
    """Show signs of life from now on, in the page of the `Watchdog` whose descriptor this is."""
    global _page  # noqa: PLW0603  (a process has one watchdog)
    _page = memoryview(mmap.mmap(descriptor, _PAGE_BYTES)).cast("Q")
    observe_steps(lambda _steps, _first: phase("launching"))


def clear_phase() -> None:
    """Forget the phase: threads that entered and left phases in any order may have left one."""
    if _page is not None:
        _page[1] = 0


def is_watched() -> bool:
    """Whether another process sees the signs of life of this one."""
    return _page is not None


class phase:  # noqa: N801  (a context manager, used like a function)
    """A block in which this process is in a phase.  Does nothing in a process nobody watches."""

    __slots__ = ("_before", "_number")

    def __init__(self, name: str) -> None:
        self._number = PHASES.index(name)
        self._before = 0

    def __enter__(self) -> None:
        if _page is not None:
            self._before = _page[1]
            _page[1] = self._number
            _page[0] += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _page is not None:
            _page[1] = self._before
            _page[0] += 1


def instrument(device: object) -> None:
    """Make the methods of an opened device show signs of life, in a process that is watched."""
    if _page is None:
        return
    for name, phase_name in _METHODS.items():
        method = getattr(device, name, None)
        if callable(method):
            with suppress(AttributeError):  # a class with slots: the suite's own calls must do
                setattr(device, name, _instrumented(method, phase_name))


def _instrumented(method: Callable[..., Any], phase_name: str) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        with phase(phase_name):
            return method(*args, **keywords)

    return call


class Watchdog:
    """Tells whether a worker process hangs.  descriptor: of the shared page, for the worker."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(_PAGE_BYTES)
            self._map = mmap.mmap(file.fileno(), _PAGE_BYTES)
            self.descriptor = os.dup(file.fileno())
        self._page = memoryview(self._map).cast("Q")
        self._pid = 0
        self._count = 0
        self.restart()

    def watch(self, pid: int) -> None:
        """Watch the process of this number, which has its descriptor by now."""
        os.close(self.descriptor)
        self.descriptor = -1
        self._pid = pid
        self.restart()

    def restart(self) -> None:
        """Count time from now: the process sent a message, or was sent one."""
        self._started = time.monotonic()
        self._note_life()

    def _note_life(self) -> None:
        """The process is alive now; its processor time is looked up at the next question."""
        self._alive_at = self._interval_start = time.monotonic()
        self._cpu_at_life: float | None = None
        self._cpu_at_interval: float | None = None

    @property
    def phase(self) -> str:
        """What the process does on its device."""
        return PHASES[self._page[1]]

    def hang_reason(self, limit: float) -> str:
        """Why the process counts as hanging; empty if it does not.

        limit: seconds without a call that begins or ends.
        """
        now = time.monotonic()
        if now - self._started > ALIVE_FACTOR * limit:
            return f"it took longer than {ALIVE_FACTOR} × {limit:g} s, though it was alive"
        if self._page[0] != self._count:
            self._count = self._page[0]
            self._note_life()
        if self._cpu_at_life is None or self._cpu_at_interval is None:
            self._cpu_at_life = self._cpu_at_interval = cpu_seconds(self._pid)
        if now - self._interval_start <= limit:
            return ""
        cpu = cpu_seconds(self._pid)
        if cpu is None or self._cpu_at_life is None or self._cpu_at_interval is None:
            return f"it was silent for {limit:g} s"
        if cpu - self._cpu_at_interval < _IDLE * limit:
            return f"it was silent for {limit:g} s and waited"
        if cpu - self._cpu_at_life >= limit:
            return f"it was silent for {now - self._alive_at:.0f} s and computed"
        self._interval_start, self._cpu_at_interval = now, cpu
        return ""

    def close(self) -> None:
        """Release the page."""
        self._page.release()
        self._map.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def cpu_seconds(pid: int) -> float | None:
    """Processor time of a process and of those it started; None where the system does not tell it
    (Linux does).
    """
    try:
        tick = os.sysconf("SC_CLK_TCK")
        return sum(map(_ticks, _with_children(pid))) / tick
    except (OSError, ValueError, AttributeError):
        return None


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread ended meanwhile
            for child in (thread / "children").read_text().split():
                yield from _with_children(int(child))


def _ticks(pid: int) -> int:
    """Clock ticks of a process and of its children that ended, from ``/proc/PID/stat``."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, text.rpartition(")")[2].split()[11:15]))
