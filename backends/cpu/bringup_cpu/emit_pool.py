"""Native code of the worker pool.

There is one job at a time.  The caller of `bringup_parallel` splits the units of work evenly over
the workers, opens the job by storing a new generation in a word, and works itself.  When no unit is
left it closes the job and waits for the workers that are still inside.  Every worker takes chunks
of its own part first, so that equal calls touch the same data on the same cores, and then chunks of
other parts.  A late worker finds the job closed, so nobody waits for a thread that the system has
not scheduled.
"""

from __future__ import annotations

import ctypes
import platform
import signal
from collections.abc import Callable

from bringup.llvm.host.emit import NULL, Emit, Field, define, number
from bringup.llvm.text import Module, Val, array, const, i8, i32, i64, ptr, void
from bringup_cpu.float_state import FloatState

EXPORTS = ("bringup_parallel", "bringup_threads", "pool_address", "pool_reset", "pool_spin")
MAX_THREADS = 256
LINE = 64

#: Chunks of a part: enough to balance the load, and so few that taking them costs little.
CHUNKS = 8
#: Pauses that a caller waits for the last workers before it yields its core to them.
PAUSES_BEFORE_YIELD = 4000

_OPEN = 1 << 31
_GENERATION = 1 << 32


def _lines(*names: str) -> list[tuple[str, type]]:
    """Words that share cache lines with no others."""
    padding = -8 * len(names) % LINE
    words = [(name, ctypes.c_int64) for name in names]
    return [*words, (f"after_{names[-1]}", ctypes.c_char * padding)]


class State(ctypes.Structure):
    """The state of the pool.  Words that different threads write are in different cache lines.

    word: generation << 32 | open << 31 | workers inside.
    thread_ids: the thread id (``pthread_self``) of each worker.
    ranges: the next unit and the end of each part, a cache line each.
    """

    _fields_ = (
        *_lines("word"),
        *_lines("busy"),
        *_lines("sleepers"),
        *_lines("threads", "spins", "started"),
        *_lines("function", "context", "count", "grain", "parts", "chunk"),
        ("mutex", ctypes.c_char * 128),
        ("condition", ctypes.c_char * 128),
        ("thread_ids", ctypes.c_int64 * MAX_THREADS),
        ("ranges", ctypes.c_char * LINE * MAX_THREADS),
    )


class PoolEmitter:
    """Emits the pool into a module.

    pause: the intrinsic for spinning loops, or an empty text.
    """

    def __init__(self, module: Module, pause: str) -> None:
        self.module = module
        self.pause = pause
        self.state = module.global_variable("pool_state", array(i8, ctypes.sizeof(State)), align=64)
        self._spin()
        self._work()
        self._await_job()
        self._worker()
        self._start()
        self._publish()
        self._parallel()
        self._reset()

    def _word(self, offset: Field, b: Emit) -> Val:
        return b.at(self.state, offset)

    def _pause(self, b: Emit) -> None:
        if self.pause == "llvm.aarch64.hint":  # pragma: no cover - only ARM
            b.intrinsic(self.pause, void, (const(i32, 1),), ())
        elif self.pause:  # pragma: no branch - only processors without such a hint
            b.intrinsic(self.pause, void, (), ())

    def _spin(self) -> None:
        """``pool_spin(n)``: ``n`` pauses, for calibration."""
        b, (n,) = define(self.module, "pool_spin", void, [("n", i64)], internal=False)
        with b.loop(number(0), n):
            self._pause(b)
            b.atomic_load(i64, self._word(State.word, b), "monotonic")
        b.ret()

    def _part(self, b: Emit, index: Val) -> Val:
        return b.at(self.state, b.add(b.mul(index, number(LINE)), number(State.ranges.offset)))

    def _work(self) -> None:
        """``pool_work(me)``: take chunks until no part has any left."""
        b, (me,) = define(self.module, "pool_work", void, [("me", i64)])
        function, context = (b.get(self.state, o, ptr) for o in (State.function, State.context))
        count, grain, parts, chunk = (
            b.get(self.state, o) for o in (State.count, State.grain, State.parts, State.chunk)
        )
        with b.loop(number(0), parts) as loop:
            part = self._part(b, b.urem(b.add(me, loop.index), parts))
            last = b.get(part, 8)
            first = b.atomicrmw("add", part, chunk, "monotonic")
            with b.while_loop([first], lambda v: b.icmp("slt", v[0], last)) as inner:
                unit = inner.carried[0]
                end = b.add(unit, chunk)
                end = b.select(b.icmp("slt", end, last), end, last)
                stop = b.mul(end, grain)
                stop = b.select(b.icmp("slt", stop, count), stop, count)
                b.call_pointer(void, function, (context, b.mul(unit, grain), stop, me))
                inner.next(b.atomicrmw("add", part, chunk, "monotonic"))
        b.ret()

    def _await_job(self) -> None:
        """``pool_await(seen)``: wait until the generation is not ``seen``; spins, then sleeps."""
        b, (seen,) = define(self.module, "pool_await", i64, [("seen", i64)])
        word = self._word(State.word, b)

        def generation() -> Val:
            return b.lshr(b.atomic_load(i64, word), number(32))

        with b.loop(number(0), b.get(self.state, State.spins)):
            now = generation()
            with b.rarely(b.icmp("ne", now, seen)):
                b.ret(now)
            self._pause(b)
        mutex, condition = self._word(State.mutex, b), self._word(State.condition, b)
        sleepers = self._word(State.sleepers, b)
        b.c("pthread_mutex_lock", i32, mutex)
        # This writes the sleepers and then reads the generation; the publisher does the opposite,
        # so at least one of them sees the other.
        b.atomicrmw("add", sleepers, number(1))
        still = b.icmp("eq", b.lshr(b.atomic_load(i64, word, "seq_cst"), number(32)), seen)
        with b.while_loop([b.zext(still, i64)], lambda v: b.icmp("ne", v[0], number(0))) as loop:
            b.c("pthread_cond_wait", i32, condition, mutex)
            loop.next(b.zext(b.icmp("eq", generation(), seen), i64))
        b.atomicrmw("sub", sleepers, number(1))
        b.c("pthread_mutex_unlock", i32, mutex)
        b.ret(generation())

    def _worker(self) -> None:
        """``pool_worker(id)``: the function of a worker thread."""
        b, (argument,) = define(self.module, "pool_worker", ptr, [("id", ptr)])
        me = b.ptrtoint(argument, i64)
        thread_ids = b.at(self.state, State.thread_ids)
        b.store(b.c("pthread_self", i64), b.gep(thread_ids, me, i64))
        # A thread inherits the floating-point state of the thread that created it.
        FloatState(b, platform.machine())
        word = self._word(State.word, b)
        await_job = b.module.functions["pool_await"]
        with b.while_loop([number(0)], lambda v: b.icmp("sge", v[0], number(0))) as life:
            b.call(await_job, (life.carried[0],))
            with b.while_loop([b.atomic_load(i64, word), number(0)], self._may_enter(b)) as loop:
                old = loop.carried[0]
                current, entered = b.cmpxchg(word, old, b.add(old, number(1)))
                with b.if_then(entered):
                    b.call(b.module.functions["pool_work"], (me,))
                    b.atomicrmw("sub", word, number(1), "release")
                loop.next(b.select(entered, old, current), b.zext(entered, i64))
            life.next(b.lshr(loop.carried[0], number(32)))
        b.ret(NULL)

    def _may_enter(self, b: Emit) -> Callable[[tuple[Val, ...]], Val]:
        """Whether the job is open and this worker has not been in it."""

        def condition(values: tuple[Val, ...]) -> Val:
            is_open = b.icmp("ne", b.and_(values[0], number(_OPEN)), number(0))
            return b.and_(is_open, b.icmp("eq", values[1], number(0)))

        return condition

    def _start(self) -> None:
        """``pool_start()``: create the threads.  The owner of the job calls it once."""
        b, _ = define(self.module, "pool_start", void, [])
        b.put(self.state, State.started, number(1))
        b.c("pthread_mutex_init", i32, self._word(State.mutex, b), NULL)
        b.c("pthread_cond_init", i32, self._word(State.condition, b), NULL)
        # Only threads that run Python handle signals.
        mask, old = b.alloca(array(i8, 128), align=16), b.alloca(array(i8, 128), align=16)
        thread = b.alloca(ptr)
        b.c("sigfillset", i32, mask)
        b.c("pthread_sigmask", i32, const(i32, signal.SIG_SETMASK), mask, old)
        body = self.module.functions["pool_worker"].callee.pointer
        with b.loop(number(1), b.get(self.state, State.threads)) as loop:
            argument = b.inttoptr(loop.index, ptr)
            failed = b.c("pthread_create", i32, thread, NULL, body, argument)
            with b.if_then(b.icmp("eq", failed, const(i32, 0))):
                b.c("pthread_detach", i32, b.load(i64, thread))
        b.c("pthread_sigmask", i32, const(i32, signal.SIG_SETMASK), old, NULL)
        b.ret()

    def _publish(self) -> None:
        """``pool_publish(fn, ctx, n, grain)``: describe the job, open it, wake sleeping workers."""
        params = [("fn", ptr), ("ctx", ptr), ("n", i64), ("grain", i64)]
        b, args = define(self.module, "pool_publish", void, params)
        n, grain = args[2:]
        offsets = (State.function, State.context, State.count, State.grain)
        for offset, value in zip(offsets, args, strict=True):
            b.put(self.state, offset, value)
        units = b.udiv(b.sub(b.add(n, grain), number(1)), grain)
        threads = b.get(self.state, State.threads)
        parts = b.select(b.icmp("ult", units, threads), units, threads)
        chunk = b.udiv(units, b.mul(parts, number(CHUNKS)))
        b.put(self.state, State.parts, parts)
        b.put(self.state, State.chunk, b.select(b.icmp("eq", chunk, number(0)), number(1), chunk))
        with b.loop(number(0), parts) as loop:
            part = self._part(b, loop.index)
            b.put(part, 0, b.udiv(b.mul(loop.index, units), parts))
            following = b.add(loop.index, number(1))
            b.put(part, 8, b.udiv(b.mul(following, units), parts))
        word = self._word(State.word, b)
        old = b.and_(b.atomic_load(i64, word, "monotonic"), number(-_GENERATION))
        b.atomic_store(b.or_(b.add(old, number(_GENERATION)), number(_OPEN)), word, "seq_cst")
        asleep = b.atomic_load(i64, self._word(State.sleepers, b), "seq_cst")
        with b.rarely(b.icmp("ne", asleep, number(0))):
            mutex = self._word(State.mutex, b)
            b.c("pthread_mutex_lock", i32, mutex)
            b.c("pthread_cond_broadcast", i32, self._word(State.condition, b))
            b.c("pthread_mutex_unlock", i32, mutex)
        b.ret()

    def _parallel(self) -> None:
        """``bringup_parallel(fn, ctx, n, grain)``; see the module's text and `bringup_cpu.pool`."""
        self._identify()
        params = [("fn", ptr), ("ctx", ptr), ("n", i64), ("grain", i64)]
        b, args = define(self.module, "bringup_parallel", void, params, internal=False)
        function, context, n, grain = args
        alone = b.icmp("sle", b.get(self.state, State.threads), number(1))
        with b.if_then(b.or_(alone, b.icmp("sle", n, grain))):
            with b.if_then(b.icmp("sgt", n, number(0))):
                b.call_pointer(void, function, (context, number(0), n, number(0)))
            b.ret()
        busy = self._word(State.busy, b)
        taken = b.icmp("ne", b.atomicrmw("xchg", busy, number(1), "acquire"), number(0))
        with b.rarely(taken):
            me = b.call(self.module.functions["pool_identify"], ())
            b.call_pointer(void, function, (context, number(0), n, me))
            b.ret()
        with b.rarely(b.icmp("eq", b.get(self.state, State.started), number(0))):
            b.call(self.module.functions["pool_start"], ())
        b.call(self.module.functions["pool_publish"], args)
        b.call(self.module.functions["pool_work"], (number(0),))
        self._close(b)
        b.atomic_store(number(0), busy)
        b.ret()
        b, _ = define(self.module, "bringup_threads", i64, [], internal=False)
        b.ret(b.get(self.state, State.threads))

    def _close(self, b: Emit) -> None:
        """Close the job, and wait for the workers inside."""
        word = self._word(State.word, b)
        before = b.atomicrmw("and", word, number(~_OPEN), "acq_rel")
        inside = number(_OPEN - 1)

        def occupied(values: tuple[Val, ...]) -> Val:
            return b.icmp("ne", b.and_(values[0], inside), number(0))

        with b.while_loop([before, number(0)], occupied) as loop:
            self._pause(b)
            tries = b.add(loop.carried[1], number(1))
            # A worker that was descheduled inside a chunk runs again sooner if this thread yields.
            with b.rarely(b.icmp("ugt", tries, number(PAUSES_BEFORE_YIELD))):
                b.c("sched_yield", i32)
            loop.next(b.atomic_load(i64, word), tries)

    def _identify(self) -> None:
        """``pool_identify()``: the number of the calling thread in the running job, else 0."""
        b, _ = define(self.module, "pool_identify", i64, [])
        own = b.c("pthread_self", i64)
        thread_ids = b.at(self.state, State.thread_ids)
        with b.loop(number(1), b.get(self.state, State.threads)) as loop:
            other = b.load(i64, b.gep(thread_ids, loop.index, i64))
            with b.rarely(b.icmp("eq", other, own)):
                b.ret(loop.index)
        b.ret(number(0))

    def _reset(self) -> None:
        """``pool_address()``: the state.  ``pool_reset()``: forget the threads.

        A child of fork has none of the threads of its parent.
        """
        b, _ = define(self.module, "pool_address", ptr, [], internal=False)
        b.ret(self.state)
        b, _ = define(self.module, "pool_reset", void, [], internal=False)
        for offset in (State.word, State.busy, State.sleepers, State.started):
            b.put(self.state, offset, number(0))
        size = number(8 * MAX_THREADS)
        b.c("memset", ptr, b.at(self.state, State.thread_ids), const(i32, 0), size)
        b.ret()
