"""Functions that apply one elementwise op to arrays, for every op, dtype and attribute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bringup.c.circular import CIRCULAR
from bringup.c.dialect import Dialect
from bringup.c.maths import OWN
from bringup.c.scalar import RENDER
from bringup.dtypes import FLOATS, STORED, DType, bool_
from bringup.graph.index import Expr
from bringup.loops import Buffer, For, Func, Let, Load, Param, Scalar, Store, named_axis
from bringup.loops.form import Stmt
from bringup.maths import ELEMENTARY
from bringup.ops.table import lookup
from bringup.records import record

COUNT = 999


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

    @property
    def names(self) -> tuple[str, ...]:
        """The buffers of its operands, by position and dtype."""
        return tuple(f"x{n}_{dtype}" for n, dtype in enumerate(self.dtypes))


def func_of(name: str, cases: Sequence[Case]) -> Func:
    """The function that applies several ops, with the buffers of their operands and their results,
    in this order.
    """
    axis = named_axis("i", COUNT)
    at = Expr.of(axis)
    dtypes = {n: d for case in cases for n, d in zip(case.names, case.dtypes, strict=True)}
    inputs = {n: Buffer(n, d, COUNT) for n, d in dtypes.items()}
    outputs = [Buffer(f"y{n}", case.result, COUNT) for n, case in enumerate(cases)]
    scalars = {n: Scalar(n, d) for n, d in dtypes.items()}
    body: list[Stmt] = [Load(scalars[n], inputs[n], at) for n in dtypes]
    for output, case in zip(outputs, cases, strict=True):
        result = Scalar(output.name, output.dtype)
        operands = tuple(scalars[n] for n in case.names)
        body.append(Let(result, lookup(case.op), operands, case.attrs))
        body.append(Store(output, at, result))
    params = (*(Param(b, "in") for b in inputs.values()), *(Param(b, "out") for b in outputs))
    return Func(name, params, (For(axis, tuple(body), "parallel"),))


def all_ops(dtype: DType, dialect: Dialect) -> tuple[Func, list[Case]]:
    """Every op on operands of a dtype, in one function."""
    every = list(cases(dtype, dialect))
    return func_of(f"every_{dtype}", every), every


def cases(dtype: DType, dialect: Dialect) -> Iterator[Case]:
    """Every op on operands of a dtype that a dialect renders."""
    for op in RENDER:
        row = lookup(op)
        if op in ELEMENTARY and op not in (*dialect.functions, *OWN, *CIRCULAR):
            continue
        takes = FLOATS if op in ELEMENTARY else row.dtypes
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


def _casts(op: str, dtype: DType, dialect: Dialect) -> Iterator[Case]:
    for target in STORED:
        if target.name in dialect.missing or (op == "bitcast" and bool_ in (dtype, target)):
            continue
        if op == "convert" or target.bits == dtype.bits:
            yield Case(op, (dtype,), {"dtype": target}, target)


__all__ = ["COUNT", "Case", "all_ops", "cases", "func_of"]
