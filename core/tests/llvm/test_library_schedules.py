"""What a CPU makes of functions of the op library: the same values, by the interpreter of loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from library_cases import Array, judge, judged, loops_of, run_loops

from bringup.llvm.func.schedules.attention import attention_steps
from bringup.loops import Func, evaluate_func, verify_func
from bringup.loops.schedule import apply


@pytest.mark.parametrize(("bits", "registers"), [(128, 16), (64, 16), (0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_attention(bits: int, registers: int, dtype: type) -> None:
    """On machines whose vectors hold some elements, or one, and with few registers."""
    machine = {"vector_bits": bits, "registers": registers}

    def as_run(func: Func, memory: Sequence[Array]) -> None:
        scheduled = apply(func, attention_steps(func, loops.call.target))
        verify_func(scheduled)
        evaluate_func(scheduled, memory)

    for drawn, attrs in judged("attention"):
        arrays = [array.astype(dtype) for array in drawn]
        loops = loops_of("attention", arrays, 2, machine, **attrs)
        results = run_loops(loops, arrays, as_run)
        assert not judge("attention", arrays, results, attrs), (attrs, arrays, results)


def test_register_tiles_of_attention_leave_registers_free() -> None:
    """Both products of a tile have three quarters of the registers for their sums, or fewer."""
    q, k = (np.zeros((2, n, 64), np.float32) for n in (128, 120))
    for bits, registers in ((128, 16), (256, 16), (512, 32)):
        machine = {"vector_bits": bits, "registers": registers}
        loops = loops_of("attention", [q, k, k], 16, machine, scale=0.125)
        (func,) = loops.funcs
        steps = attention_steps(func, loops.call.target)
        text = str(apply(func, steps))
        sums = [
            int(line.rpartition("[")[2][:-1]) * 32 // bits
            for line in text.splitlines()
            if "register f32" in line and ("alloc score" in line or "alloc value" in line)
        ]
        assert max(sums) <= registers * 3 // 4
        assert max(sums) > registers // 2
        assert str(steps).endswith("i.v row.w.v")
