"""OpenCL C on a real implementation, where pyopencl and a platform are installed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from functions import TEXTS
from library_cases import EXACT, judge, judged, loops_of, reference, run_loops
from scalars import COUNT, all_ops
from test_functions import arrays_of
from test_functions import check as check_func
from test_scalar import check, operands
from toolchain import Array

from bringup.c import OPENCL, geometry, render_c, scratch_bytes, symbol
from bringup.dtypes import STORED, DType
from bringup.loops import Func, parse_func
from bringup.loops.library import LIBRARY

cl = pytest.importorskip("pyopencl", reason="no pyopencl")


@cache
def context() -> Any:
    """A context of the first device; skips the test where there is no platform."""
    try:
        platforms = cl.get_platforms()
    except cl.LogicError:
        platforms = []
    if not platforms:
        pytest.skip("no OpenCL platform")
    return cl.Context(platforms[0].get_devices()[:1])


def run(func: Func, arrays: Sequence[Array], *, blocks: int, threads: int) -> None:
    """Run a function on arrays; outputs are written in place."""
    program = cl.Program(context(), render_c(func, OPENCL)).build(options=list(OPENCL.flags))
    queue = cl.CommandQueue(context())
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(context(), flags, hostbuf=array) for array in arrays]
    arguments = list(buffers)
    bytes_ = scratch_bytes(func, OPENCL) * blocks * threads
    if bytes_:
        arguments.append(cl.Buffer(context(), cl.mem_flags.READ_WRITE, bytes_))
    kernel = getattr(program, symbol(func, OPENCL))
    kernel(queue, (blocks * threads,), (threads,), *arguments)
    for array, buffer in zip(arrays, buffers, strict=True):
        cl.enqueue_copy(queue, array, buffer)
    queue.finish()


@pytest.mark.parametrize("name", TEXTS)
def test_functions(name: str) -> None:
    """Also those whose threads meet, and with scratch of its own for each thread."""
    func = parse_func(TEXTS[name])
    arrays = arrays_of(func, 3)
    run(func, arrays, blocks=5, threads=geometry(func).threads or 2)
    check_func(func, arrays, 3)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_op(dtype: DType) -> None:
    func, cases = all_ops(dtype, OPENCL)
    shared = operands(cases, 0)
    results = [np.empty(COUNT, case.result.numpy) for case in cases]
    run(func, [*shared.values(), *results], blocks=3, threads=16)
    for case, y in zip(cases, results, strict=True):
        check(case, [shared[name] for name in case.names], y)


@pytest.mark.parametrize("name", LIBRARY)
def test_library(name: str) -> None:
    """Every op of the library, its lines shared by many threads."""

    def launch(func: Func, arrays: Sequence[Array]) -> None:
        run(func, arrays, blocks=3, threads=4)

    exact = name in EXACT
    cases = EXACT[name](np.random.default_rng(13)) if exact else judged(name)
    # A buffer of OpenCL has elements.
    drawn = [case for case in cases if all(x.size for x in case[0])]
    for arrays, attrs in drawn[::17] if exact else drawn[::5]:
        results = run_loops(loops_of(name, arrays, 1 << 20, **attrs), arrays, launch)
        if not exact:
            assert not judge(name, arrays, results, attrs), (attrs, arrays, results)
            continue
        for got, want in zip(results, reference(name, arrays, **attrs), strict=True):
            assert got.tobytes() == want.tobytes(), (attrs, arrays, got, want)
