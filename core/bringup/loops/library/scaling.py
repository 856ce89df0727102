"""Scales of matrices, and reflections of lines."""

from __future__ import annotations

import math

import numpy as np

from bringup.dtypes import bool_, f64, i32, i64
from bringup.graph.index import ZERO, Expr
from bringup.loops.form import Scalar
from bringup.loops.library.lines import Line
from bringup.loops.library.tiles import Matrix


def finite_scale(line: Line, a: Matrix, rows: int) -> tuple[Scalar, Scalar]:
    """Divide a matrix by a power of two, so that its largest element is about 1.

    If some element is not finite, it becomes zeros.  Gives the power, and whether all are finite.
    """
    b, dtype = line.b, a.dtype
    zero, infinity = b.constant(0.0, dtype), b.constant(math.inf, dtype)
    most = b.variable("most", zero)
    finite = b.variable("finite", b.constant(True, bool_))
    with b.loop("i", rows) as i:
        b.set(most, line.fold(ZERO, "max", lambda j: (b.op("abs", a.get(i, j)),)), fold="max")
    large = b.load(most)
    b.set(finite, b.compare("lt", large, infinity))
    bits, mantissa = (i64, np.finfo(f64.numpy).nmant) if dtype is f64 else (i32, 23)
    one, by = b.constant(1, bits), b.constant(mantissa, bits)
    power = b.op("shr", b.op("bitcast", large, dtype=bits), by, kind="logical")
    power = b.op("shl", b.op("max", power, one), by)
    good = b.load(finite)
    scale = b.op("select", good, b.op("bitcast", power, dtype=dtype), b.constant(1.0, dtype))
    with b.loop("i", rows) as i, line.elements(ZERO) as j:
        value = b.op("select", good, b.op("div", a.get(i, j), scale), zero)
        a.set(i, j, value)
    return scale, good


def reflect(
    line: Line, x: Matrix, row: Expr, head: Expr, image: tuple[Matrix, Expr, Expr]
) -> Scalar:
    """Replace a row by the vector of the reflection that maps it to its head, which becomes 1.

    x: the matrix; the row has zeros before the head.  image: where the new head is stored.
    Gives the factor of the reflection.
    """
    b, dtype = line.b, x.dtype
    zero, one = b.constant(0.0, dtype), b.constant(1.0, dtype)
    old = x.get(row, head)
    x.set(row, head, zero)
    tail = line.fold(head, "max", lambda i: (b.op("abs", x.get(row, i)),))
    most = b.op("max", tail, b.op("abs", old))
    large = b.op("select", b.compare("gt", most, zero), most, one)
    flat, scaled = b.compare("eq", tail, zero), b.op("div", old, large)
    with line.elements(head) as i:
        x.set(row, i, b.op("div", x.get(row, i), large))
    squares = line.fold(head, "add", lambda i: (x.get(row, i), x.get(row, i)))
    norm = b.op("sqrt", b.op("add", squares, b.op("mul", scaled, scaled)))
    signed = b.op("select", b.compare("lt", scaled, zero), norm, b.op("neg", norm))
    other = b.op("select", flat, scaled, signed)
    over = b.op("select", flat, one, b.op("sub", scaled, other))
    with line.elements(head) as i:
        x.set(row, i, b.op("div", x.get(row, i), over))
    # The length of the rounded vector, so that this is a reflection however elements round.
    length = line.fold(head, "add", lambda i: (x.get(row, i), x.get(row, i)))
    factor = b.op("div", b.constant(2.0, dtype), b.op("add", length, one))
    x.set(row, head, one)
    image[0].set(*image[1:], b.op("mul", other, large))
    return b.op("select", flat, zero, factor)


__all__ = ["finite_scale", "reflect"]
