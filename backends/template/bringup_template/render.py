"""Depth 2's compiler: from bringup's kernel form to an image of the chip.

One chip grid point runs one grid point of the kernel.  The lanes run along the longest loop of each
stage; in a kernel without loops, along the longest grid axis.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod

from bringup.errors import UnsupportedError
from bringup.graph import Instr
from bringup.kernel.form import Fold, Kernel, Stage, Store
from bringup.kernel.index import Axis, Bound, Div, Dyn, Expr, Mod
from bringup.ops.reduction import start_of
from bringup_simulator import Affine, Assembler, Image, Range, Reg


def render(kernel: Kernel) -> Image:
    """The image of a kernel; its parameters are the buffers that are no tiles, in order."""
    return _Renderer(kernel).image()


class _Renderer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.asm = Assembler(kernel.name)
        self.at: dict[Axis, Affine] = {}  # where each loop stands, as the chip counts it
        self.places = [
            self.asm.tile(b.type.dtype.name, b.type.size)
            if b.role == "tile"
            else self.asm.param(b.type.dtype.name, b.type.size, writable=b.role == "out")
            for b in kernel.buffers
        ]

    def image(self) -> Image:
        loops = any(stage.axes for stage in self.kernel.stages)
        spread = None if loops else max(self.kernel.grid, key=lambda a: a.size, default=None)
        for axis in self.kernel.grid:
            self.at[axis] = self.asm.grid(axis.size, lanes=axis == spread)
        registers: list[Reg] = []  # one for each fold so far; bodies take them as inputs
        for stage in self.kernel.stages:
            registers += self.stage(stage, registers)
        return self.asm.finish()

    def stage(self, stage: Stage, registers: list[Reg]) -> list[Reg]:
        asm = self.asm
        count = prod(axis.size for axis in stage.axes)
        totals = [asm.const(start_of(f.kind, f.dtype, count), f.dtype.name) for f in stage.folds]
        spread = max(stage.axes, key=lambda a: a.size, default=None)
        with ExitStack() as nest:
            for axis in stage.axes:
                self.at[axis] = nest.enter_context(asm.loop(axis.size, lanes=axis == spread))
            values = dict(zip(stage.body.inputs, registers, strict=True))
            for instr in stage.body.instrs:
                values[instr.result] = self.instruction(instr, [values[v] for v in instr.operands])
            free = iter(totals)
            for sink, value in zip(stage.sinks, stage.body.outputs, strict=True):
                if isinstance(sink, Fold):
                    asm.accumulate(sink.kind, next(free), values[value])
                else:
                    self.store(sink, values[value])
        if not stage.axes:
            return totals
        return [asm.lanes(f.kind, total) for f, total in zip(stage.folds, totals, strict=True)]

    def store(self, sink: Store, value: Reg) -> None:
        place, at = self.places[sink.buffer], self.address(sink.index)
        self.asm.store(place, at, value, ranges=self.ranges(sink.mask))

    def instruction(self, instr: Instr, operands: list[Reg]) -> Reg:
        """Most ops are called on the chip as in bringup; here are those that are not."""
        asm, attrs, dtype = self.asm, instr.attrs, instr.result.dtype
        match instr.op.name:
            case "load":
                place, at = self.places[attrs["buffer"]], self.address(attrs["index"])
                return asm.load(place, at, ranges=self.ranges(attrs["mask"]))
            case "index":
                return asm.cast("truncate", asm.index(self.address(attrs["index"])), dtype.name)
            case "inside":
                return asm.inside(self.ranges(attrs["mask"]))
            case "constant":
                return asm.const(attrs["value"].array(), dtype.name)
            case "compare":
                return asm.alu(attrs["direction"], *operands)
            case "shr":
                return asm.alu("shr_l" if attrs["kind"] == "logical" else "shr_a", *operands)
            case "convert" if dtype.is_integer and instr.operands[0].dtype.is_integer:
                return asm.cast("truncate", operands[0], dtype.name)  # its convert saturates
            case "convert" | "bitcast" as cast:
                return asm.cast(cast, operands[0], dtype.name)
            case name:
                return asm.alu(name, *operands)

    def address(self, expr: Expr) -> Affine:
        """The chip divides in addresses.  If yours does not, emit integer instructions here."""
        total = Affine(expr.const)
        for atom, factor in expr.terms:
            match atom:
                case Axis():
                    total += self.at[atom] * factor
                case Div():
                    total += self.address(atom.of) // atom.by * factor
                case Mod():
                    total += self.address(atom.of) % atom.by * factor
                case Dyn():  # no claimed op makes one
                    raise UnsupportedError(f"{self.kernel.name}: an index that is loaded: {atom}")
        return total

    def ranges(self, mask: tuple[Bound, ...]) -> list[Range]:
        return [Range(self.address(b.expr), b.low, b.high) for b in mask]
