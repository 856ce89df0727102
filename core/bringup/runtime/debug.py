"""``BRINGUP_DEBUG``: what is compiled, told on standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

from bringup import config
from bringup.backend.device import Lowered
from bringup.errors import UnsupportedError
from bringup.program.program import Program

_log = logging.getLogger("bringup.compiler")
_KERNELS, _SOURCE = logging.DEBUG - 1, logging.DEBUG - 2
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG, _KERNELS, _SOURCE)


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
