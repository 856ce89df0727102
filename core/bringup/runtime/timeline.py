"""The timeline of ``BRINGUP_TRACE``: Chrome trace events, for Perfetto (ui.perfetto.dev).

Times are `time.perf_counter_ns`, in µs.  The file is complete JSON after every flush, so a process
that dies keeps all but its last events.  A forked child writes ``file.<pid>.json`` of its own.

>>> with span("fuse", "compile", graph="main"):
...     pass
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, TextIO

from bringup import config
from bringup.errors import BringupError
from bringup.program.cost import launch_facts
from bringup.program.program import KernelStep, OpStep, Step

_FLUSH_EVERY = 1024
_HEAD = '{"displayTimeUnit": "ns", "traceEvents": [\n'
_TAIL = "\n]}\n"


class Span:
    """A stretch of time on one thread; a context manager that does nothing if tracing is off."""

    __slots__ = ()

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def note(self, **args: Any) -> None:
        """Add facts that are known only at the end."""


class _LiveSpan(Span):
    __slots__ = ("_args", "_category", "_name", "_recorder", "_start")

    def __init__(self, recorder: _Recorder, name: str, category: str, args: dict[str, Any]) -> None:
        self._recorder = recorder
        self._name = name
        self._category = category
        self._args = args

    def __enter__(self) -> Span:
        self._start = perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._args["error"] = kind.__name__
        duration = perf_counter_ns() - self._start
        self._recorder.complete(self._name, self._category, self._start, duration, self._args)

    def note(self, **args: Any) -> None:
        self._args.update(args)


class _Recorder:
    """Collects events and writes them; one per file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._events: list[dict[str, Any]] = []
        self._named: set[int] = set()
        self._file: TextIO | None = None
        self._end = 0
        self._pid = os.getpid()
        self._meta("process_name", 0, Path(sys.argv[0]).name or "python")

    def complete(
        self,
        name: str,
        category: str,
        start: int,
        duration: int,
        args: dict[str, Any],
        thread: int | None = None,
    ) -> None:
        """One event; times in ns."""
        event = {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": start / 1000,
            "dur": duration / 1000,
            "pid": self._pid,
            "tid": threading.get_native_id() if thread is None else thread,
        }
        if args:
            event["args"] = {key: _plain(value) for key, value in args.items()}
        with self._lock:
            if thread is None and event["tid"] not in self._named:
                self.name_thread(threading.get_native_id(), threading.current_thread().name)
            self._events.append(event)
            if len(self._events) >= _FLUSH_EVERY:
                self.flush()

    def count(self, name: str, value: int) -> None:
        """The value of a counter from now on."""
        event = {
            "name": name, "ph": "C", "ts": perf_counter_ns() / 1000, "pid": self._pid,
            "args": {name: value},
        }  # fmt: skip
        with self._lock:
            self._events.append(event)

    def name_thread(self, thread: int, name: str) -> None:
        """What Perfetto calls a thread."""
        with self._lock:
            if thread not in self._named:
                self._named.add(thread)
                self._meta("thread_name", thread, name)

    def flush(self) -> None:
        """Write what was collected; the file is complete JSON again."""
        with self._lock:
            text = ",\n".join(json.dumps(event) for event in self._events)
            self._events.clear()
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8")
                self._file.write(_HEAD + text)
            elif not text:
                return
            else:
                self._file.seek(self._end)
                self._file.write(",\n" + text)
            self._file.flush()
            self._end = self._file.tell()
            self._file.write(_TAIL)
            self._file.flush()

    def close(self) -> None:
        """Flush for the last time."""
        with self._lock:
            self.flush()
            assert self._file is not None
            self._file.close()
            self._file = None

    def _meta(self, what: str, thread: int, name: str) -> None:
        self._events.append(
            {"name": what, "ph": "M", "pid": self._pid, "tid": thread, "args": {"name": name}}
        )


_OFF = Span()
_recorder: _Recorder | None = None
# Why nothing is kept although the variable asks for it: an import is not the place to say so.
_problem: BringupError | None = None


def span(name: str, category: str, **args: Any) -> Span:
    """A stretch of time, for ``with``; category: compile, kernel, transfer, or a word like these.

    Costs one comparison when tracing is off.
    args: shown in Perfetto; anything with a text.
    """
    return _OFF if _recorder is None else _LiveSpan(_recorder, name, category, args)


def launch(steps: Sequence[Step], first: bool) -> Span | None:
    """The span of a launch, with what `step_facts` says of its steps; None if tracing is off.

    first: whether its program runs for the first time, which the span then says, too.
    """
    if _recorder is None:
        return None
    every = [step_facts(step) for step in steps]
    facts = ({"first": True} if first else {}) | every[0]
    name, others = steps[0].name, len(steps) - 1
    if others:
        name += f" and {others} more"
        facts |= {key: sum(each.get(key, 0) for each in every) for key in ("bytes", "flops")}
    return _LiveSpan(_recorder, name, "kernel", facts)


def step_facts(step: Step) -> dict[str, Any]:
    """The line of a step, and of a launch the bytes that it moves and what it computes."""
    facts: dict[str, Any] = {} if step.location is None else {"line": str(step.location)}
    return facts | launch_facts(step) if isinstance(step, KernelStep | OpStep) else facts


def count(name: str, value: int) -> None:
    """A number from now on, which Perfetto draws as a curve."""
    if _recorder is not None:
        _recorder.count(name, value)


def enabled() -> bool:
    """Whether events are kept, for work that is only done to describe them.

    Raises BringupError if BRINGUP_TRACE names a file that cannot be written.
    """
    if _problem is not None:
        raise _problem.with_traceback(None)
    return _recorder is not None


def record(
    name: str, category: str, start_ns: int, duration_ns: int, thread: int, **args: Any
) -> None:
    """An event measured elsewhere, such as by a native thread; times by the monotonic clock."""
    if _recorder is not None:
        _recorder.complete(name, category, start_ns, duration_ns, args, thread)


def name_thread(thread: int, name: str) -> None:
    """Name a thread, native ones too, by its native id.  The first name stays."""
    if _recorder is not None:
        _recorder.name_thread(thread, name)


def start(path: str | os.PathLike[str]) -> None:
    """Keep events for ``path`` from now on; what was kept for another file is written.

    Raises BringupError if the file cannot be written.
    """
    global _recorder  # noqa: PLW0603  (one timeline per process)
    stop()
    recorder = _Recorder(Path(path))
    try:
        recorder.flush()
    except OSError as error:
        raise BringupError(
            f"the timeline {path} cannot be written: {error.strerror}",
            fix="set BRINGUP_TRACE to a file in a directory that exists",
        ) from error
    _recorder = recorder


def stop() -> None:
    """Write the file and keep nothing more."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.close()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN
    return value if isinstance(value, str | int | float | None) else str(value)


def _after_fork() -> None:
    global _recorder  # noqa: PLW0603  (as above)
    if _recorder is not None:
        path = _recorder.path
        _recorder = _Recorder(path.with_suffix(f".{os.getpid()}{path.suffix}"))


atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
if config.text("BRINGUP_TRACE"):
    try:
        start(config.text("BRINGUP_TRACE"))
    except BringupError as _error:
        _problem = _error
