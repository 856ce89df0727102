"""A machine with a thread per lane, made of this machine's threads: kernels as `emit_simt` wrote
them run here, barriers and shared memory included.

Thread and block numbers live in thread-specific data, the barrier is that of POSIX.  Blocks run one
after the other, since shared memory is a global variable.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import count
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from bringup.graph import Graph, Value
from bringup.kernel.form import Kernel
from bringup.kernel.fuse import Launch
from bringup.kernel.split import even_chunks, split_launch
from bringup.llvm import text as ir
from bringup.llvm.simt import SimtDialect, SimtKernel, emit_simt
from bringup.llvm.text import Module
from bringup.target import Target

Array = np.ndarray[Any, Any]

THREADS = 32
#: Few, so that blocks of so few threads have several.
WARP = 8
#: Blocks at most: fewer than most kernels want, so that each takes several turns.
BLOCKS = 2
DIALECT = SimtDialect(
    calling_convention="",
    thread="host_thread",
    block_index="host_block",
    grid_size="host_blocks",
    barrier="host_barrier",
    shuffle=lambda b, word, mask: b.intrinsic(
        "host_shuffle", ir.i32, (word, ir.const(ir.i32, mask)), ()
    ),
    global_space=0,
    shared_space=0,
)
TARGET = Target(
    registers=1 << 16,
    line_bytes=128,
    threads=256,
    warp=WARP,
    block=THREADS,
    most_threads=THREADS,
    shared_bytes=52 << 10,
)
_NUMBERS = ("thread", "block", "threads", "blocks")
_serial = count()


class _Host:
    """One engine and as many threads as a block has."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        triple = llvm.Target.from_default_triple()
        machine = triple.create_target_machine(
            # Conversions of f16 are instructions on all but the oldest machines, else calls.
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=1,
            # Shared memory may be mapped anywhere, seen from the code.
            codemodel="large",
            jit=True,
        )
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.libc = ctypes.CDLL(None)
        self.keys = {name: self._key() for name in _NUMBERS}
        self.barrier = ctypes.create_string_buffer(64)
        self.waiting = 0
        self.words = (ctypes.c_uint * THREADS)()
        self.pool = ThreadPoolExecutor(THREADS)

    def _key(self) -> int:
        key = ctypes.c_uint()
        assert self.libc.pthread_key_create(ctypes.byref(key), None) == 0
        return key.value

    def support(self) -> str:
        """The functions that stand for the target's intrinsics."""
        lines = ["declare ptr @pthread_getspecific(i32)", "declare i32 @pthread_barrier_wait(ptr)"]
        for name, key in self.keys.items():
            lines += [
                f"define internal i32 @host_{name}_here() {{",
                f"  %p = call ptr @pthread_getspecific(i32 {key})",
                "  %n = ptrtoint ptr %p to i32",
                "  ret i32 %n",
                "}",
            ]
        lines += [
            "define internal void @host_barrier_here() {",
            f"  %p = inttoptr i64 {ctypes.addressof(self.barrier)} to ptr",
            "  %x = call i32 @pthread_barrier_wait(ptr %p)",
            "  ret void",
            "}",
            "define internal i32 @host_shuffle_here(i32 %word, i32 %mask) {",
            "  %n = call i32 @host_thread_here()",
            "  %m = xor i32 %n, %mask",
            f"  %words = inttoptr i64 {ctypes.addressof(self.words)} to ptr",
            "  %mine = getelementptr i32, ptr %words, i32 %n",
            "  %other = getelementptr i32, ptr %words, i32 %m",
            "  store volatile i32 %word, ptr %mine",
            "  call void @host_barrier_here()",
            "  %got = load volatile i32, ptr %other",
            "  call void @host_barrier_here()",
            "  ret i32 %got",
            "}",
        ]
        return "\n".join(lines)

    def load(self, module: Module, name: str) -> Any:
        lines = [
            x for x in str(module).split("\n") if not x.startswith("declare") or "@host_" not in x
        ]
        text = "\n".join(lines)
        text = text.replace("external global [0 x i8]", "internal global [65536 x i8] undef")
        for word in (*_NUMBERS, "barrier", "shuffle"):
            text = text.replace(f"@host_{word}(", f"@host_{word}_here(")
        parsed = llvm.parse_assembly(f"{text}\n{self.support()}")
        parsed.verify()
        self.engine.add_module(parsed)
        self.engine.finalize_object()
        return self.engine.get_function_address(name)

    def run(self, address: int, made: SimtKernel, pointers: Sequence[int]) -> None:
        blocks = min(made.blocks, BLOCKS)
        if made.threads != self.waiting:
            assert self.libc.pthread_barrier_init(self.barrier, None, made.threads) == 0
            self.waiting = made.threads
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(address)

        def thread(number: int, block: int) -> None:
            numbers = (number, block, made.threads, blocks)
            for name, value in zip(_NUMBERS, numbers, strict=True):
                self.libc.pthread_setspecific(self.keys[name], ctypes.c_void_p(value))
            function(*pointers)

        for block in range(blocks):
            running = [self.pool.submit(thread, n, block) for n in range(made.threads)]
            for each in running:
                each.result()


@cache
def _host() -> _Host:
    return _Host()


class SimtLaunch:
    """A compiled kernel; call it with one array per buffer that is no tile."""

    def __init__(self, kernel: Kernel) -> None:
        module, name = Module(), f"kernel_{next(_serial)}"
        self.made = emit_simt(module, kernel, name, TARGET, DIALECT)
        assert WARP <= self.made.threads <= THREADS
        assert self.made.threads % WARP == 0
        self.address = _host().load(module, name)

    def __call__(self, buffers: Sequence[Array]) -> None:
        _host().run(self.address, self.made, [a.ctypes.data for a in buffers])


class Launches:
    """The launches of a graph, compiled once; long folds are cut where ``chunk`` is given."""

    def __init__(self, graph: Graph, launches: Sequence[Launch], chunk: int = 0) -> None:
        self.graph = graph
        length = partial(even_chunks, elements=chunk, max_points=1000)
        parts = launches
        if chunk:
            parts = [part for launch in launches for part in split_launch(launch, length, 32)]
        self.steps = [(x, SimtLaunch(x.kernel)) for x in parts if x.kernel is not None]
        assert len(self.steps) == len(parts)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        values: dict[Value, Array] = {
            v: np.ascontiguousarray(a) for v, a in zip(self.graph.inputs, inputs, strict=True)
        }
        for launch, run in self.steps:
            for value in launch.writes:
                raw = np.full(max(value.type.nbytes, 1), 0xFF, np.uint8)[: value.type.nbytes]
                values[value] = raw.view(value.dtype.numpy).reshape(value.shape)
            run([values[v] for v in launch.values])
        return [values[v] for v in self.graph.outputs]
