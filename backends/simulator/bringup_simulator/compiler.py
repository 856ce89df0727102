"""The chip's kernel language, and its compiler.

A kernel is text in the syntax of Python.  It is run once for each point of the launch grid:

=================================  ================================================================
``x = input(f32, 1000)``           the next parameter of a launch, which is only read
``y = output(f32, 1000)``          the next parameter, which may be written too
``t = tile(f32, 200)``             scratchpad of this point, undefined until stored to
``i = grid(40)``                   the next axis of the grid: this point's coordinate along it
``for i in range(9):``             a loop
``for i in lanes(1000):``          a loop over vectors: each lane has an element of its own
``i = grid(lanes(1000))``          an axis of the grid with a vector of elements to a point
``load(x, i, *conditions)``        an element; 0, and no access, unless all conditions are true
``store(y, i, v, *conditions)``    stores ``v`` where all conditions are true
``inside(i, low, high)``           the condition ``low <= i < high``
``index(i)``                       an index as a value, an i64
``const(0.5, f32)``                a constant; ``inf`` is a word
``convert(v, i32)``                one of `CASTS`
``add(v, w)``                      one of `OPERATIONS`
``accumulate(add, total, v)``      ``add(total, v)`` in the lanes that have an element
``reduce_lanes(add, total)``       all lanes of a value combined, as a balanced tree
=================================  ================================================================

Indices count elements.  They are made of coordinates, loop variables, integers and integer values
by ``+``, ``-``, and ``*``, ``//`` and ``%`` with an integer; both divisions round down.  In the
last round of ``lanes`` some lanes may be past the end: they neither load, store nor accumulate.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bringup_simulator.arithmetic import OPERATIONS, Array, Operation, kind_of, name_of
from bringup_simulator.errors import BadKernelError, LimitError
from bringup_simulator.machine import Index, Kernel, Lanes, Param, Points, Region, Traffic

__all__ = ["VECTOR_WIDTH", "Limits", "compile_kernel"]

VECTOR_WIDTH = 128

_SYNTAX = {
    *("Module", "Assign", "Expr", "For", "Call", "Name", "Load", "Store", "Constant"),
    *("UnaryOp", "USub", "BinOp", "Add", "Sub", "Mult", "FloorDiv", "Mod"),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes the chip is built with; requests beyond them raise ``LimitError``.

    rank: axes of a view or of a grid.  elements: of one view, and points of one grid.  buffers:
    bound to one command.  scratchpad: bytes of tiles per grid point.  vector_width: lanes, a power
    of two.  watchdog: statements one grid point may execute, loops counted; beyond it the launch
    fails with ``CommandTimeoutError``.  alignment: of a binding's byte offset.
    """

    rank: int = 32
    elements: int = 2**40
    buffers: int = 32
    scratchpad: int = 64 * 1024
    vector_width: int = VECTOR_WIDTH
    watchdog: int = 5_000_000
    alignment: int = 16

    def __post_init__(self) -> None:
        width = self.vector_width
        if width < 1 or width & (width - 1):
            raise ValueError(f"vector_width must be a power of two, not {width}")

    def require(self, name: str, what: str, used: int, allowed: int) -> None:
        """LimitError on behalf of ``name`` if ``used`` exceeds ``allowed``."""
        if used > allowed:
            raise LimitError(f"{name}: needs {used} {what}, the chip takes {allowed}")


def compile_kernel(text: str, name: str, limits: Limits) -> Kernel:
    """The kernel that ``text`` describes; BadKernelError or LimitError if it cannot run here.

    It is executed once for no grid points, with at most two rounds of each loop: what is wrong with
    it whatever its data, such as an operation on two types, shows then, with its line.
    """
    file = f"<kernel {name}>"
    try:
        module = ast.parse(text)
        statements = _count_statements(module, limits.vector_width)
        stores = [n for n in ast.walk(module) if isinstance(n, ast.Name)]
        values = {node.id for node in stores if isinstance(node.ctx, ast.Store)}
        module.body = _release(module.body, set(), values)
        code = compile(ast.fix_missing_locations(module), file, "exec")
        trial = _Trial(limits)
        with np.errstate(all="ignore"):
            exec(code, trial.words())
    except Exception as error:
        where = _line(error, file, text)
        raise BadKernelError(f"{name}: {where}{getattr(error, 'msg', error)}") from error
    limits.require(name, "buffers", len(trial.params), limits.buffers)
    limits.require(name, "bytes of scratchpad", trial.scratch_bytes, limits.scratchpad)
    limits.require(name, "grid axes", len(trial.extents), limits.rank)
    limits.require(name, "grid points", math.prod(trial.extents), limits.elements)
    params, grid = tuple(trial.params), tuple(trial.extents)
    return Kernel(name, code, params, grid, trial.scratch_bytes, statements)


class _Trial(Points):
    """No grid points: nothing is read or written, and every rule is checked."""

    def __init__(self, limits: Limits) -> None:
        super().__init__((), (), 0, limits.vector_width, 0, Traffic())
        self.params: list[Param] = []
        self.extents: list[int] = []
        self.scratch_bytes = 0

    def words(self) -> dict[str, Any]:
        checked = {name: _checked(name, row) for name, row in OPERATIONS.items()}
        return {**super().words(), **checked}

    def input(self, dtype: np.dtype[Any], elements: int) -> Region:
        return self._declare(dtype, elements, writable=False)

    def output(self, dtype: np.dtype[Any], elements: int) -> Region:
        return self._declare(dtype, elements, writable=True)

    def _declare(self, dtype: np.dtype[Any], elements: int, *, writable: bool) -> Region:
        self.params.append(Param(dtype, elements))
        return Region("", dtype, np.zeros((1, 1), dtype), 0, 0, elements, writable)

    def tile(self, dtype: np.dtype[Any], elements: int) -> Region:
        self.scratch_bytes += elements * dtype.itemsize
        return Region("", dtype, np.zeros((1, 1), dtype), 0, 0, elements)

    def grid(self, extent: int | Lanes) -> Index:
        self.extents.append(extent if isinstance(extent, int) else extent.vectors)
        self._coordinates = iter([np.empty((0, 1), np.int64)])
        return super().grid(extent)

    def rounds(self, count: int) -> range:
        return range(min(count, 2))

    def check_bounds(self, what: str, region: Region, index: Index, within: Array | None) -> None:
        pass

    def write(self, region: Region, address: Array, value: Array) -> None:
        pass


def _checked(name: str, operation: Operation) -> Callable[..., Array]:
    """An operation that says what is wrong with its operands."""

    def compute(*operands: Any) -> Array:
        if len(operands) != operation.arity:
            raise TypeError(f"{name} takes {operation.arity} operands, not {len(operands)}")
        types = [operand.dtype for operand in operands]
        if name == "select" and types.pop(0) != np.bool_:
            raise TypeError("the first operand of select is bool")
        if len(set(types)) != 1:
            raise TypeError(f"{name}: operand types differ: {', '.join(map(name_of, types))}")
        if kind_of(types[0]) not in operation.kinds:
            raise TypeError(f"{name} does not take {name_of(types[0])}")
        result: Array = operation.compute(*operands)
        return result

    return compute


def _count_statements(node: ast.Module | ast.For, width: int) -> int:
    """Statements that one grid point executes; SyntaxError for what the language lacks."""
    count = 0
    for statement in node.body:
        count += 1
        if not isinstance(statement, ast.For):
            parts = list(ast.walk(statement))
        else:
            parts = [*ast.walk(statement.target), *ast.walk(statement.iter)]
            match statement.iter:
                case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(size))]):
                    count += size * _count_statements(statement, width)
                case ast.Call(func=ast.Name(id="lanes"), args=[ast.Constant(value=int(size))]):
                    count += -(-size // width) * _count_statements(statement, width)
                case _:
                    where = ("", statement.lineno, None, None)
                    raise SyntaxError("a loop is over range(n) or lanes(n)", where)
        for part in parts:
            if type(part).__name__ not in _SYNTAX:
                where = ("", statement.lineno, None, None)
                raise SyntaxError(f"the language has no {type(part).__name__}", where)
    return count


def _release(block: list[ast.stmt], needed: set[str], values: set[str]) -> list[ast.stmt]:
    """The block with each value deleted after its last use, so that its memory is used again.

    needed: names that are read after the block, or in another round of its loop.
    values: all names that are assigned anywhere.
    """
    result: list[ast.stmt] = []
    for position in reversed(range(len(block))):
        statement = block[position]
        names = _names([statement]) & values
        if isinstance(statement, ast.For):
            before = _names(block[:position])
            outside = needed | before | _names([statement.target])
            statement.body = _release(statement.body, outside, values)
            names &= before
        if last := sorted(names - needed):
            targets: list[ast.expr] = [ast.Name(name, ast.Del()) for name in last]
            result.append(ast.Delete(targets))
        result.append(statement)
        needed = needed | names
    return result[::-1]


def _names(block: Iterable[ast.AST]) -> set[str]:
    nodes = (node for statement in block for node in ast.walk(statement))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _line(error: Exception, file: str, text: str) -> str:
    """Which line of a kernel an error is about, if it is about one."""
    number = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            number = frame.tb_lineno
        frame = frame.tb_next
    if not number:
        return ""
    return f"line {number} ({text.splitlines()[number - 1].strip()}): "
