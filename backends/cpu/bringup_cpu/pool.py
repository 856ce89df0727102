"""The worker pool: native threads that share the iterations of a loop.

Code calls ``void bringup_parallel(ptr fn, ptr ctx, i64 n, i64 grain)``.  It calls
``fn(ctx, begin, end, worker)`` on ranges that together cover ``[0, n)`` once: each starts at a
multiple of ``grain`` and is a multiple of it long, the last apart; ``worker`` is below
``bringup_threads()``, and no two calls for one loop run at a time with one number.  Which range
goes to which worker differs from run to run.  A loop of at most ``grain`` iterations, one inside
another, and one while another Python thread has the pool run on the calling thread.
"""

from __future__ import annotations

import ctypes
import os
import time
from functools import cache

from bringup_cpu import host
from bringup_cpu.emit_pool import MAX_THREADS, State
from bringup_cpu.runtime import Runtime, runtime

#: Seconds a worker waits for the next loop before it sleeps: a busy program's calls come sooner.
SPIN_SECONDS = 50e-6
_SAMPLE = 200


class Pool:
    """The process's workers.  They start with the first loop, and again in a child of fork.

    threads: their number, the caller included.
    """

    def __init__(self, runtime: Runtime, threads: int) -> None:
        assert 1 <= threads <= MAX_THREADS, f"{threads} threads"
        self.threads = threads
        self.parallel_address = runtime.code.addresses["bringup_parallel"]
        state = State.from_address(runtime.native("pool_address", ctypes.c_void_p)())
        self._spin = runtime.native("pool_spin", None, ctypes.c_int64)
        state.threads = threads
        state.spins = self._spins()
        os.register_at_fork(after_in_child=runtime.native("pool_reset", None))

    def _spins(self) -> int:
        """Pauses that last `SPIN_SECONDS`: their length differs tenfold between CPUs."""
        best = min(self._timed(_SAMPLE) for _ in range(3))
        return max(100, int(SPIN_SECONDS / best * _SAMPLE))

    def _timed(self, count: int) -> float:
        start = time.perf_counter()
        self._spin(count)
        return time.perf_counter() - start


@cache
def pool() -> Pool:
    """The process's pool.  Raises BringupError if ``BRINGUP_THREADS`` is not a positive integer."""
    return Pool(runtime(), host.threads(MAX_THREADS))
