"""From bringup's kernels to the language of Template.

The text is for one point of the grid.  Here it is Python, which the simulated chip runs: change
each line that is emitted to what your compiler takes.  How kernels read is on the page "The kernel
form" of bringup's documentation; `bringup dump` shows those of a function, and this text.
"""

from __future__ import annotations

import math
from typing import Any

from bringup.dtypes import DType
from bringup.errors import UnsupportedError
from bringup.graph import Instr
from bringup.kernel import Axis, Bound, Div, Dyn, Expr, Fold, Kernel, Mod, Stage


def render(kernel: Kernel) -> str:
    """The kernel as text; its parameters are the buffers that are no tiles, in order."""
    return _Renderer(kernel).text()


class _Renderer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 0
        self.values = 0

    def text(self) -> str:
        kernel = self.kernel
        self.emit(f"# {kernel.name}")
        for n, buffer in enumerate(kernel.buffers):
            if buffer.role == "tile":  # of this point alone
                self.emit(f"b{n} = tile({buffer.type.dtype}, {buffer.type.size})")
        for n, axis in enumerate(kernel.grid):
            inner = math.prod(other.size for other in kernel.grid[n + 1 :])
            self.emit(f"a{axis.id} = point // {inner} % {axis.size}")
        registers: list[str] = []  # one for each fold so far; bodies take them as inputs
        for stage in kernel.stages:
            registers += self.stage(stage, registers)
        return "\n".join(self.lines) + "\n"

    def stage(self, stage: Stage, registers: list[str]) -> list[str]:
        """Loops round a body, whose results are folded into registers or stored."""
        starts = [_constant(fold.start(stage.trips), fold.dtype) for fold in stage.folds]
        totals = [self.value(start) for start in starts]
        for axis in stage.axes:
            self.emit(f"for a{axis.id} in range({axis.size}):")
            self.depth += 1
        values = dict(zip(stage.body.inputs, registers, strict=True))
        for instr in stage.body.instrs:
            operands = [values[operand] for operand in instr.operands]
            values[instr.result] = self.value(self.instruction(instr, operands))
        remaining = iter(totals)
        for sink, output in zip(stage.sinks, stage.body.outputs, strict=True):
            value = values[output]
            if isinstance(sink, Fold):
                total = next(remaining)
                if output.type.dtype != sink.dtype:  # f16 is added up in f32
                    value = f'op("convert", {value}, dtype={sink.dtype})'
                self.emit(f'{total} = op("{sink.kind}", {total}, {value})')
            else:
                place = [f"b{sink.buffer}", self.index(sink.index)]
                self.emit(_call("store", *place, value, *self.conditions(sink.mask)))
        self.depth = 0
        return totals

    def instruction(self, instr: Instr, operands: list[str]) -> str:
        """One scalar op."""
        attrs, dtype = instr.attrs, instr.result.dtype
        match instr.op.name:
            case "load":
                place = [f"b{attrs['buffer']}", self.index(attrs["index"])]
                return _call("load", *place, *self.conditions(attrs["mask"]))
            case "index":
                return _call("counter", self.index(attrs["index"]), str(dtype))
            case "inside":
                inside = "const(True, bool)"
                for condition in self.conditions(attrs["mask"]):
                    inside = _call("op", '"and"', inside, condition)
                return inside
            case "constant":
                return _constant(attrs["value"].array(), dtype)
            case name:
                words = [f"{key}={value!r}" for key, value in attrs.items()]
                return _call("op", f'"{name}"', *operands, *words)

    def index(self, expr: Expr) -> str:
        """Integers of 64 bits; ``//`` and ``%`` round down."""
        terms = []
        for atom, factor in expr.terms:
            match atom:
                case Axis():
                    term = f"a{atom.id}"
                case Div():
                    term = f"(({self.index(atom.of)}) // {atom.by})"
                case Mod():
                    term = f"(({self.index(atom.of)}) % {atom.by})"
                case Dyn():  # only who claims gather and dynamic_slice gets one
                    raise UnsupportedError(f"{self.kernel.name}: an index that is loaded: {atom}")
            terms.append(term if factor == 1 else f"{factor}*{term}")
        return " + ".join([*terms, str(expr.const)] if expr.const or not terms else terms)

    def conditions(self, mask: tuple[Bound, ...]) -> list[str]:
        return [_call("inside", self.index(b.expr), str(b.low), str(b.high)) for b in mask]

    def value(self, expression: str) -> str:
        """The name of a new value."""
        self.values += 1
        self.emit(f"v{self.values} = {expression}")
        return f"v{self.values}"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)


def _call(function: str, *operands: str) -> str:
    return f"{function}({', '.join(operands)})"


def _constant(value: Any, dtype: DType) -> str:
    """A numpy scalar; a NaN by its bits, since there are several."""
    if dtype.is_float and value != value:  # noqa: PLR0124
        bits = value.view(f"u{dtype.itemsize}")
        return f'op("bitcast", const({bits}, u{8 * dtype.itemsize}), dtype={dtype})'
    return f"const({float(value) if dtype.is_float else value.item()}, {dtype})"
