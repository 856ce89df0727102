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

import keyword
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bringup_simulator.arithmetic import OPERATIONS, Array, Operation, kind_of, name_of
from bringup_simulator.errors import BadKernelError, LimitError
from bringup_simulator.machine import Index, Kernel, Lanes, Param, Points, Region, Traffic

VECTOR_WIDTH = 128

_NAME = re.compile(r"[A-Za-z_]\w*")
_LOOP = re.compile(r"for (\w+) in (range|lanes)\((\d+)\):")
_TARGET = re.compile(r"(\w+) = ")
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?(?:e[+-]?\d+)?|//|\*(?!\*)|[-+%(),]")
_KEYWORDS = {*keyword.kwlist} - {"True", "False"}


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


def compile_kernel(text: str, name: str, limits: Limits = Limits()) -> Kernel:
    """The kernel that ``text`` describes; BadKernelError or LimitError if it cannot run here.

    It is executed once for no grid points, with at most two rounds of each loop: what is wrong with
    it whatever its data, such as an operation on two types, shows then, with its line.
    """
    file = f"<kernel {name}>"
    lines, trial = text.splitlines(), _Trial(limits)
    try:
        releases, statements = _read(lines, limits.vector_width)
        lines = _with_releases(lines, releases)
        listing = "\n".join(lines)
        code = compile(listing, file, "exec")
        with np.errstate(all="ignore"):
            exec(code, trial.words())
    except Exception as error:
        where = _place(error, file, lines)
        raise BadKernelError(f"{name}: {where}{getattr(error, 'msg', error)}") from error
    limits.require(name, "buffers", len(trial.params), limits.buffers)
    limits.require(name, "bytes of scratchpad", trial.scratch_bytes, limits.scratchpad)
    limits.require(name, "grid axes", len(trial.extents), limits.rank)
    limits.require(name, "grid points", math.prod(trial.extents), limits.elements)
    params, grid = tuple(trial.params), tuple(trial.extents)
    return Kernel(name, code, listing, params, grid, trial.scratch_bytes, statements)


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

    def check_bounds(self, what: str, region: Region, index: Index, mask: Array | None) -> None:
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


def _read(lines: list[str], width: int) -> tuple[dict[int, list[tuple[int, str]]], int]:
    """What can be released after which line, and the statements that one grid point executes.

    Raises SyntaxError for what the language lacks.  A value is released in the innermost block that
    has all its uses, after the last one, so that its memory is used again: as (column, name).
    """
    statements = 0
    columns: list[int] = []
    nests: list[tuple[int, ...]] = []  # of each line, the lines that begin the loops around it
    runs: dict[int, int] = {}  # of each loop, how often its body runs
    ends: dict[int, int] = {}  # of each loop, its last line
    values: set[str] = set()
    uses: dict[str, tuple[tuple[int, ...], int]] = {}  # the loops around all uses, the last line
    nest: tuple[int, ...] = ()
    for number, line in enumerate(lines):
        code = line.partition("#")[0].strip()
        columns.append(len(line) - len(line.lstrip()))
        while code and nest and columns[number] <= columns[nest[-1]]:
            nest = nest[:-1]
        nests.append(nest)
        ends |= dict.fromkeys(nest, number)
        repeated = runs[nest[-1]] if nest else 1
        statements += repeated if code else 0
        if loop := _LOOP.fullmatch(code):
            rounds = int(loop[3])
            runs[number] = repeated * (rounds if loop[2] == "range" else -(-rounds // width))
            nest = (*nest, number)
            continue
        target = _TARGET.match(code)
        if target:
            values.add(target[1])
        names = _NAME.findall(code)
        unknown = _TOKEN.sub(" ", code[target.end() :] if target else code).split()
        unknown += [name for name in names if name in _KEYWORDS]
        if unknown:
            raise SyntaxError(f"the language has no {unknown[0]!r}", ("", number + 1, None, None))
        for name in names:
            around, _ = uses.get(name, (nest, number))
            uses[name] = tuple(a for a, b in zip(around, nest, strict=False) if a == b), number
    releases: dict[int, list[tuple[int, str]]] = {}
    for name in sorted(values):
        around, last = uses[name]
        inner = nests[last][len(around) :]
        after, at = (ends[inner[0]], inner[0]) if inner else (last, last)
        releases.setdefault(after, []).append((columns[at], name))
    return releases, statements


def _with_releases(lines: list[str], releases: dict[int, list[tuple[int, str]]]) -> list[str]:
    result: list[str] = []
    for number, line in enumerate(lines):
        result.append(line)
        for column, name in sorted(releases.get(number, ()), reverse=True):
            result.append(f"{' ' * column}del {name}")
    return result


def _place(error: Exception, file: str, lines: list[str]) -> str:
    """The line of a kernel that an error is about, and its number, if it is about one."""
    number = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            number = frame.tb_lineno
        frame = frame.tb_next
    if not 0 < number <= len(lines):
        return ""
    before = [line for line in lines[:number] if not line.lstrip().startswith("del ")]
    return f"line {len(before)} ({lines[number - 1].strip()}): "
