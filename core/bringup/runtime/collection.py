"""Python's search for cyclic garbage, paused while programs are compiled."""

from __future__ import annotations

import gc
import os
from types import TracebackType

from bringup.locks import ProcessLock


class _Pause:
    """Inside, Python does not search by itself, whichever thread it is.

    A compilation makes millions of small objects that are in use to its end.  Searching all of them
    again and again took a third of a large program's time and found nothing.  What the user has
    turned off stays off.
    """

    def __init__(self) -> None:
        self.inside = 0
        self._searching = True
        self._lock = ProcessLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def __enter__(self) -> None:
        with self._lock:
            if not self.inside:
                self._searching = gc.isenabled()
                gc.disable()
            self.inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self.inside = max(self.inside - 1, 0)
            self._resume()

    def _resume(self) -> None:
        if not self.inside and self._searching:
            gc.enable()

    def _forked(self) -> None:
        # The threads that would go on with it are not in the child.
        if self.inside:
            self.inside = 0
            self._resume()


PAUSED = _Pause()
