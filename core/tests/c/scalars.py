"""Functions that apply one elementwise op to arrays, for every op, dtype and attribute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bringup.c.dialect import Dialect
from bringup.c.scalar import FLOAT_ONLY, RENDER
from bringup.dtypes import BY_NAME, FLOATS, STORED, DType, bool_
from bringup.graph.index import Expr
from bringup.loops import Buffer, For, Func, Let, Load, Param, Scalar, Store, named_axis
from bringup.ops.table import lookup
from bringup.records import record

COUNT = 999
Array = np.ndarray[Any, Any]


@record(eq=False)
class Case:
    """An op on arrays of ``COUNT`` elements."""

    op: str
    dtypes: tuple[DType, ...]
    attrs: Mapping[str, Any]
    result: DType

    @property
    def name(self) -> str:
        """A name for its function, different from those of all other cases."""
        said = "_".join(str(v) for v in self.attrs.values())
        return f"{self.op}_{self.dtypes[-1]}{f'_{said}' if said else ''}_{self.result}"

    def func(self) -> Func:
        """The loop over all elements."""
        axis = named_axis("i", COUNT)
        at = Expr.of(axis)
        inputs = [Buffer(f"x{n}", d, COUNT) for n, d in enumerate(self.dtypes)]
        output = Buffer("y", self.result, COUNT)
        scalars = tuple(Scalar(str(n), d) for n, d in enumerate(self.dtypes))
        loads = [Load(s, b, at) for s, b in zip(scalars, inputs, strict=True)]
        result = Scalar("r", self.result)
        let = Let(result, lookup(self.op), scalars, self.attrs)
        body = (*loads, let, Store(output, at, result))
        params = (*(Param(b, "in") for b in inputs), Param(output, "out"))
        return Func(self.name, params, (For(axis, body, "parallel"),))


def cases(dtype: DType, dialect: Dialect) -> Iterator[Case]:
    """Every op on operands of a dtype that a dialect renders."""
    for op in RENDER:
        row = lookup(op)
        if op in FLOAT_ONLY and op not in dialect.functions and op not in _own():
            continue
        if op == "rem" and dtype.is_float and op not in dialect.functions:
            continue
        takes = FLOATS if op in FLOAT_ONLY else row.dtypes
        if op in ("convert", "bitcast"):
            yield from _casts(op, dtype, dialect)
        elif op == "select":
            yield Case(op, (bool_, dtype, dtype), {}, dtype)
        elif dtype in takes and not (dtype.is_storage or (op == "round" and not dtype.is_float)):
            forms: list[dict[str, Any]] = [{}]
            for attr in row.attrs:
                forms = [{**form, attr.name: c} for form in forms for c in attr.choices]
            for form in forms:
                result = bool_ if op == "compare" else dtype
                yield Case(op, (dtype,) * (row.arity or 1), form, result)


def _own() -> Mapping[str, Any]:
    from bringup.c.maths import OWN

    return OWN


def _casts(op: str, dtype: DType, dialect: Dialect) -> Iterator[Case]:
    for target in STORED:
        if target.name in dialect.missing or (op == "bitcast" and bool_ in (dtype, target)):
            continue
        if op == "convert" or target.bits == dtype.bits:
            yield Case(op, (dtype,), {"dtype": target}, target)


__all__ = ["BY_NAME", "COUNT", "Case", "cases"]
