"""The three ops that exist only inside kernel bodies: they tie scalars to buffers and loop axes."""

from __future__ import annotations

from typing import Any

from bringup.dtypes import bool_, i64
from bringup.errors import GraphError
from bringup.graph.index import Bound, Dyn, Expr
from bringup.ops.table import Attr, Attrs, Kind, OpDef, Types
from bringup.types import TensorType


def _no_reference(*_operands: Any, **_attrs: Any) -> Any:
    raise GraphError("a kernel op has no value outside its kernel")


def _infer_load(operands: Types, attrs: Attrs) -> TensorType:
    dyns = {a.operand for a in attrs["index"].atoms() if isinstance(a, Dyn)}
    if dyns and max(dyns) >= len(operands):
        raise GraphError(
            f"load: index {attrs['index']} names operand {max(dyns)} of {len(operands)}"
        )
    return TensorType((), attrs["dtype"])


def _infer_index(_operands: Types, attrs: Attrs) -> TensorType:
    return TensorType((), attrs["dtype"])


def _infer_inside(_operands: Types, _attrs: Attrs) -> TensorType:
    return TensorType((), bool_)


class _KernelOp(OpDef):
    """A row whose operand count is free: indices read from other values are operands."""

    __slots__ = ()

    def result_types(self, operands: Types, attrs: Attrs) -> Types:
        result = self.infer(operands, attrs)
        assert isinstance(result, TensorType)
        return (result,)


load = _KernelOp(
    name="load",
    arity=None,
    kind=Kind.INDEXED,
    doc="The element of ``buffer`` at flat ``index``; 0, touching nothing, unless every bound of "
    "``mask`` holds.",
    attrs=(
        Attr("buffer", "int", "position in the kernel's buffers"),
        Attr("dtype", "dtype", "element type of the buffer"),
        Attr("index", "index", "flat element offset"),
        Attr("mask", "bounds", "conditions for touching memory", default=()),
    ),
    infer=_infer_load,
    reference=_no_reference,
)

index = _KernelOp(
    name="index",
    arity=None,
    kind=Kind.SOURCE,
    doc="The value of an index expression, wrapped to ``dtype``.",
    attrs=(
        Attr("index", "index", "the expression"),
        Attr("dtype", "dtype", "integer type of the result", default=i64),
    ),
    infer=_infer_index,
    reference=_no_reference,
)

inside = _KernelOp(
    name="inside",
    arity=None,
    kind=Kind.SOURCE,
    doc="Whether every bound of ``mask`` holds.",
    attrs=(Attr("mask", "bounds", "conditions"),),
    infer=_infer_inside,
    reference=_no_reference,
)

KERNEL_OPS: dict[str, OpDef] = {row.name: row for row in (load, index, inside)}

__all__ = ["KERNEL_OPS", "Bound", "Expr", "index", "inside", "load"]
