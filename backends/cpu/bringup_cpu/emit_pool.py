"""Native code of the worker pool.

One job at a time.  The caller of `bringup_parallel` splits the units of work evenly over the
workers, opens the job by storing a new generation in a word, works itself, and closes the job when
no unit is left to take; then it waits for the workers that are still inside.  Everyone takes chunks
of its own part first, so that equal calls touch equal data on equal cores, and then helps the
others.  A worker that comes late finds the job closed: nobody waits for a thread that the system
has not scheduled.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from bringup.llvm.host.emit import NULL, Emit, define, number
from bringup.llvm.text import Module, Val, array, const, i8, i32, i64, ptr, void
from bringup_cpu.float_state import FloatState

EXPORTS = ("bringup_parallel", "bringup_threads", "pool_address", "pool_reset", "pool_spin")
MAX_THREADS = 256
LINE = 64

#: Chunks of a part: enough to even out, few enough that taking them costs nothing.
CHUNKS = 8
#: Pauses a caller waits for the last workers before it offers them its core.
PATIENCE = 4000

_OPEN = 1 << 31
_GENERATION = 1 << 32


class State:
    """Byte offsets in the pool's state; what different threads write is a cache line apart."""

    #: Generation << 32 | open << 31 | workers inside.
    WORD = 0
    BUSY = 64
    SLEEPERS = 128
    THREADS = 192
    SPINS = 200
    STARTED = 208
    FUNCTION = 256
    CONTEXT = 264
    COUNT = 272
    GRAIN = 280
    PARTS = 288
    CHUNK = 296
    MUTEX = 320
    CONDITION = 448
    #: pthread_self of each worker.
    SELVES = 576
    #: Next unit and end of each part.
    PARTS_AT = SELVES + 8 * MAX_THREADS
    BYTES = PARTS_AT + LINE * MAX_THREADS


class PoolEmitter:
    """Emits the pool into a module.  pause: the intrinsic that eases a spinning core, or none."""

    def __init__(self, module: Module, pause: str) -> None:
        self.module = module
        self.pause = pause
        self.state = module.global_variable("pool_state", array(i8, State.BYTES), align=64)
        self._spin()
        self._work()
        self._await_job()
        self._worker()
        self._start()
        self._publish()
        self._parallel()
        self._reset()

    def _word(self, offset: int, b: Emit) -> Val:
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
            b.atomic_load(i64, self._word(State.WORD, b), "monotonic")
        b.ret()

    def _part(self, b: Emit, index: Val) -> Val:
        return b.at(self.state, b.add(b.mul(index, number(LINE)), number(State.PARTS_AT)))

    def _work(self) -> None:
        """``pool_work(me)``: take chunks until no part has any."""
        b, (me,) = define(self.module, "pool_work", void, [("me", i64)])
        function, context = (b.get(self.state, o, ptr) for o in (State.FUNCTION, State.CONTEXT))
        count, grain, parts, chunk = (
            b.get(self.state, o) for o in (State.COUNT, State.GRAIN, State.PARTS, State.CHUNK)
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
        """``pool_await(seen)``: the first generation that is not ``seen``; spins, then sleeps."""
        b, (seen,) = define(self.module, "pool_await", i64, [("seen", i64)])
        word = self._word(State.WORD, b)

        def generation() -> Val:
            return b.lshr(b.atomic_load(i64, word), number(32))

        with b.loop(number(0), b.get(self.state, State.SPINS)):
            now = generation()
            with b.rarely(b.icmp("ne", now, seen)):
                b.ret(now)
            self._pause(b)
        mutex, condition = self._word(State.MUTEX, b), self._word(State.CONDITION, b)
        sleepers = self._word(State.SLEEPERS, b)
        b.c("pthread_mutex_lock", i32, mutex)
        # Sleepers, then generation; the publisher the other way round: one sees the other.
        b.atomicrmw("add", sleepers, number(1))
        still = b.icmp("eq", b.lshr(b.atomic_load(i64, word, "seq_cst"), number(32)), seen)
        with b.while_loop([b.zext(still, i64)], lambda v: b.icmp("ne", v[0], number(0))) as loop:
            b.c("pthread_cond_wait", i32, condition, mutex)
            loop.next(b.zext(b.icmp("eq", generation(), seen), i64))
        b.atomicrmw("sub", sleepers, number(1))
        b.c("pthread_mutex_unlock", i32, mutex)
        b.ret(generation())

    def _worker(self) -> None:
        """``pool_worker(id)``: a thread's whole life."""
        b, (argument,) = define(self.module, "pool_worker", ptr, [("id", ptr)])
        me = b.ptrtoint(argument, i64)
        selves = b.at(self.state, State.SELVES)
        b.store(b.c("pthread_self", i64), b.gep(selves, me, i64))
        # Inherited from the thread that made this one.
        FloatState(b)
        word = self._word(State.WORD, b)
        await_job = b.module.functions["pool_await"]
        with b.while_loop([number(0)], lambda v: b.icmp("sge", v[0], number(0))) as life:
            b.call(await_job, (life.carried[0],))
            with b.while_loop([b.atomic_load(i64, word), number(0)], self._may_enter(b)) as loop:
                old = loop.carried[0]
                found, entered = b.cmpxchg(word, old, b.add(old, number(1)))
                with b.if_then(entered):
                    b.call(b.module.functions["pool_work"], (me,))
                    b.atomicrmw("sub", word, number(1), "release")
                loop.next(b.select(entered, old, found), b.zext(entered, i64))
            life.next(b.lshr(loop.carried[0], number(32)))
        b.ret(NULL)

    def _may_enter(self, b: Emit) -> Callable[[tuple[Val, ...]], Val]:
        """The job is open and this worker has not been in it."""

        def condition(values: tuple[Val, ...]) -> Val:
            is_open = b.icmp("ne", b.and_(values[0], number(_OPEN)), number(0))
            return b.and_(is_open, b.icmp("eq", values[1], number(0)))

        return condition

    def _start(self) -> None:
        """``pool_start()``: make the threads.  Called by whoever holds the job, once a process."""
        b, _ = define(self.module, "pool_start", void, [])
        b.put(self.state, State.STARTED, number(1))
        b.c("pthread_mutex_init", i32, self._word(State.MUTEX, b), NULL)
        b.c("pthread_cond_init", i32, self._word(State.CONDITION, b), NULL)
        # Signals are for threads that run Python.
        mask, old = b.alloca(array(i8, 128), align=16), b.alloca(array(i8, 128), align=16)
        thread = b.alloca(ptr)
        b.c("sigfillset", i32, mask)
        b.c("pthread_sigmask", i32, const(i32, signal.SIG_SETMASK), mask, old)
        body = self.module.functions["pool_worker"].callee.pointer
        with b.loop(number(1), b.get(self.state, State.THREADS)) as loop:
            argument = b.inttoptr(loop.index, ptr)
            failed = b.c("pthread_create", i32, thread, NULL, body, argument)
            with b.if_then(b.icmp("eq", failed, const(i32, 0))):
                b.c("pthread_detach", i32, b.load(i64, thread))
        b.c("pthread_sigmask", i32, const(i32, signal.SIG_SETMASK), old, NULL)
        b.ret()

    def _publish(self) -> None:
        """``pool_publish(fn, ctx, n, grain)``: describe the job, open it, wake who sleeps."""
        params = [("fn", ptr), ("ctx", ptr), ("n", i64), ("grain", i64)]
        b, args = define(self.module, "pool_publish", void, params)
        n, grain = args[2:]
        offsets = (State.FUNCTION, State.CONTEXT, State.COUNT, State.GRAIN)
        for offset, value in zip(offsets, args, strict=True):
            b.put(self.state, offset, value)
        units = b.udiv(b.sub(b.add(n, grain), number(1)), grain)
        threads = b.get(self.state, State.THREADS)
        parts = b.select(b.icmp("ult", units, threads), units, threads)
        chunk = b.udiv(units, b.mul(parts, number(CHUNKS)))
        b.put(self.state, State.PARTS, parts)
        b.put(self.state, State.CHUNK, b.select(b.icmp("eq", chunk, number(0)), number(1), chunk))
        with b.loop(number(0), parts) as loop:
            part = self._part(b, loop.index)
            b.put(part, 0, b.udiv(b.mul(loop.index, units), parts))
            following = b.add(loop.index, number(1))
            b.put(part, 8, b.udiv(b.mul(following, units), parts))
        word = self._word(State.WORD, b)
        old = b.and_(b.atomic_load(i64, word, "monotonic"), number(-_GENERATION))
        b.atomic_store(b.or_(b.add(old, number(_GENERATION)), number(_OPEN)), word, "seq_cst")
        asleep = b.atomic_load(i64, self._word(State.SLEEPERS, b), "seq_cst")
        with b.rarely(b.icmp("ne", asleep, number(0))):
            mutex = self._word(State.MUTEX, b)
            b.c("pthread_mutex_lock", i32, mutex)
            b.c("pthread_cond_broadcast", i32, self._word(State.CONDITION, b))
            b.c("pthread_mutex_unlock", i32, mutex)
        b.ret()

    def _parallel(self) -> None:
        """``bringup_parallel(fn, ctx, n, grain)``; see the module's text and `bringup_cpu.pool`."""
        self._identify()
        params = [("fn", ptr), ("ctx", ptr), ("n", i64), ("grain", i64)]
        b, args = define(self.module, "bringup_parallel", void, params, internal=False)
        function, context, n, grain = args
        alone = b.icmp("sle", b.get(self.state, State.THREADS), number(1))
        with b.if_then(b.or_(alone, b.icmp("sle", n, grain))):
            with b.if_then(b.icmp("sgt", n, number(0))):
                b.call_pointer(void, function, (context, number(0), n, number(0)))
            b.ret()
        busy = self._word(State.BUSY, b)
        taken = b.icmp("ne", b.atomicrmw("xchg", busy, number(1), "acquire"), number(0))
        with b.rarely(taken):
            me = b.call(self.module.functions["pool_identify"], ())
            b.call_pointer(void, function, (context, number(0), n, me))
            b.ret()
        with b.rarely(b.icmp("eq", b.get(self.state, State.STARTED), number(0))):
            b.call(self.module.functions["pool_start"], ())
        b.call(self.module.functions["pool_publish"], args)
        b.call(self.module.functions["pool_work"], (number(0),))
        self._close(b)
        b.atomic_store(number(0), busy)
        b.ret()
        b, _ = define(self.module, "bringup_threads", i64, [], internal=False)
        b.ret(b.get(self.state, State.THREADS))

    def _close(self, b: Emit) -> None:
        """Let nobody in any more, and wait for those inside."""
        word = self._word(State.WORD, b)
        before = b.atomicrmw("and", word, number(~_OPEN), "acq_rel")
        inside = number(_OPEN - 1)

        def occupied(values: tuple[Val, ...]) -> Val:
            return b.icmp("ne", b.and_(values[0], inside), number(0))

        with b.while_loop([before, number(0)], occupied) as loop:
            self._pause(b)
            tries = b.add(loop.carried[1], number(1))
            # A worker that lost its core inside a chunk gets it back sooner if this one yields.
            with b.rarely(b.icmp("ugt", tries, number(PATIENCE))):
                b.c("sched_yield", i32)
            loop.next(b.atomic_load(i64, word), tries)

    def _identify(self) -> None:
        """``pool_identify()``: the number of the calling thread in the running job, else 0."""
        b, _ = define(self.module, "pool_identify", i64, [])
        own = b.c("pthread_self", i64)
        selves = b.at(self.state, State.SELVES)
        with b.loop(number(1), b.get(self.state, State.THREADS)) as loop:
            other = b.load(i64, b.gep(selves, loop.index, i64))
            with b.rarely(b.icmp("eq", other, own)):
                b.ret(loop.index)
        b.ret(number(0))

    def _reset(self) -> None:
        b, _ = define(self.module, "pool_address", ptr, [], internal=False)
        b.ret(self.state)
        """``pool_address()``: the state.  ``pool_reset()``: forget the threads.

        A child of fork has none of its parent's.
        """
        b, _ = define(self.module, "pool_reset", void, [], internal=False)
        for offset in (State.WORD, State.BUSY, State.SLEEPERS, State.STARTED):
            b.put(self.state, offset, number(0))
        size = number(8 * MAX_THREADS)
        b.c("memset", ptr, b.at(self.state, State.SELVES), const(i32, 0), size)
        b.ret()
