"""Signs of life of a worker process, and whether it hangs.

A worker says in a page of memory that it shares with the process that started it what it does on
its device (`PHASES`), and counts the calls that begin and end.  A worker hangs if no call begins or
ends for as long as a case may take, and meanwhile its process

* waits: it uses no processor time, or
* computes: it has used as much processor time as a case may take.

A process that wants to compute and gets little time, on a machine that is busy with others, does
neither; it is given `MOST` times as long.  So is a case that calls its device again and again.
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

#: What a process does on its device; the first is nothing of it.
PHASES = (
    "", "opening", "compiling", "allocating", "freeing", "uploading", "launching", "waiting",
    "copying", "downloading",
)  # fmt: skip
#: How many times its limit a process may take that only shows that it is alive.
MOST = 10
#: Methods of devices and the phases they are.
_METHODS = {
    "compile": "compiling", "render": "compiling", "alloc": "allocating", "free": "freeing",
    "upload": "uploading", "launch": "launching", "synchronize": "waiting", "copy": "copying",
    "adopt": "copying", "download": "downloading", "host_view": "downloading",
}  # fmt: skip
# A process that uses less than this share of a processor waits.
_IDLE = 0.01
_SIZE = mmap.PAGESIZE

_page: Any = None


def watched(path: str) -> None:
    """Show signs of life from now on.  path: of the page that `Watch` made."""
    global _page  # noqa: PLW0603  (a process is watched by one other)
    with open(path, "r+b") as file:
        _page = memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("Q")
    observe_steps(lambda _name, _category: doing("launching"))


def rest() -> None:
    """Nothing is under way: what threads left behind, as they went in and out, is no phase."""
    if _page is not None:
        _page[1] = 0


def is_watched() -> bool:
    """Whether another process sees the signs of life of this one."""
    return _page is not None


class doing:  # noqa: N801  (a context manager, read as a verb)
    """Inside the block this process is in a phase.  Does nothing in a process nobody watches."""

    __slots__ = ("_before", "_number")

    def __init__(self, phase: str) -> None:
        self._number = PHASES.index(phase)
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


def observe(device: object) -> None:
    """Have an opened device's methods show signs of life, in a process that is watched."""
    if _page is None:
        return
    for name, phase in _METHODS.items():
        method = getattr(device, name, None)
        if callable(method):
            with suppress(AttributeError):  # a class with slots: the suite's own calls must do
                setattr(device, name, _observed(method, phase))


def _observed(method: Callable[..., Any], phase: str) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        with doing(phase):
            return method(*given, **named)

    return call


class Watch:
    """A process as the one that started it sees it.  path: of the page to share."""

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp(prefix="bringup-")
        os.truncate(handle, _SIZE)
        self._map = mmap.mmap(handle, _SIZE)
        os.close(handle)
        self._page = memoryview(self._map).cast("Q")
        self._pid = 0
        self._count = 0
        self.begin()

    def of(self, pid: int) -> None:
        """The process is this one."""
        self._pid = pid
        self.begin()

    def begin(self) -> None:
        """Something was heard of it, or asked of it."""
        self._began = time.monotonic()
        self._sign()

    def _sign(self) -> None:
        """It is alive; the time that it has used is looked up when it is asked about next."""
        self._since = self._marked = time.monotonic()
        self._first: float | None = None
        self._last: float | None = None

    @property
    def phase(self) -> str:
        """What it does on its device."""
        return PHASES[self._page[1]]

    def stuck(self, limit: float) -> str:
        """Why it counts as hanging, or nothing.

        limit: seconds without a call that begins or ends.
        """
        now = time.monotonic()
        if now - self._began > MOST * limit:
            return f"it took longer than {MOST} × {limit:g} s, though it was alive"
        if self._page[0] != self._count:
            self._count = self._page[0]
            self._sign()
        if self._first is None or self._last is None:
            self._first = self._last = used(self._pid)
        if now - self._marked <= limit:
            return ""
        total = used(self._pid)
        if total is None or self._first is None or self._last is None:
            return f"it was silent for {limit:g} s"
        if total - self._last < _IDLE * limit:
            return f"it was silent for {limit:g} s and waited"
        if total - self._first >= limit:
            return f"it was silent for {now - self._since:.0f} s and computed"
        self._marked, self._last = now, total
        return ""

    def hide(self) -> None:
        """The process has the page: nobody else is to find it, nor need it be removed."""
        if self.path:
            with suppress(OSError):
                os.unlink(self.path)
            self.path = ""

    def close(self) -> None:
        """Forget the page."""
        self._page.release()
        self._map.close()
        self.hide()


def used(pid: int) -> float | None:
    """Seconds of processor time that a process and those it started have used; None where the
    system does not tell (it does on Linux).
    """
    try:
        tick = os.sysconf("SC_CLK_TCK")
        return sum(map(_ticks, _family(pid))) / tick
    except (OSError, ValueError, AttributeError):
        return None


def _family(pid: int) -> Iterator[int]:
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it ended meanwhile
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))


def _ticks(pid: int) -> int:
    """By ``/proc/PID/stat``: of itself, and of children that ended."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, text.rpartition(")")[2].split()[11:15]))
