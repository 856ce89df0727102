"""What is compiled, told on standard error: ``BRINGUP_DEBUG`` and ``BRINGUP_PROGRESS``."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from bringup import config
from bringup.backend.device import Lowered
from bringup.errors import UnsupportedError
from bringup.program.program import Program

_log = logging.getLogger("bringup.compiler")
_KERNELS, _SOURCE = logging.DEBUG - 1, logging.DEBUG - 2
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG, _KERNELS, _SOURCE)


#: After so many seconds a compilation is told of while it lasts.
PATIENCE = 5.0


@contextmanager
def progress(name: str) -> Iterator[Callable[[int], None]]:
    """Tell a person at a terminal of a compilation inside the block that takes long, and of its
    end.  Gives a function to call with the number of kernels once it is known.

    Raises BringupError if the variable holds no level.
    """
    kernels: list[int] = []
    if not config.level("BRINGUP_PROGRESS") or sys.stderr is None or not sys.stderr.isatty():
        yield kernels.append
        return
    start = time.perf_counter()
    told = threading.Event()

    def tell() -> None:
        told.set()
        count = f" ({kernels[-1]} kernel{'s' * (kernels[-1] != 1)})" if kernels else ""
        sys.stderr.write(f"bringup: compiling {name}{count} …\n")

    timer = threading.Timer(PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield kernels.append
    finally:
        timer.cancel()
        if told.is_set():
            sys.stderr.write(f"bringup: {name} took {time.perf_counter() - start:.0f} s\n")


@cache
def listen() -> None:
    """Print the SDK's log records up to the level the variable asks for; once per process.

    Raises BringupError if the variable holds no level.
    """
    level = config.level("BRINGUP_DEBUG")
    if level == 0:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("bringup")
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[level])


def compiled(program: Program, milliseconds: float, lower: Callable[[], Lowered]) -> None:
    """Tell of a program that was compiled.

    lower: gives its source, if somebody wants to see it.
    """
    count = len(program.steps)
    _log.info("%s: launches: %d, compiled in %.1f ms", program.name, count, milliseconds)
    for kernel in program.kernels:
        _log.log(_KERNELS, "%s", kernel)
    if _log.isEnabledFor(_SOURCE):
        try:
            _log.log(_SOURCE, "source of %s\n%s", program.name, lower().source)
        except UnsupportedError as error:
            _log.log(_SOURCE, "source of %s: %s", program.name, error.what)
