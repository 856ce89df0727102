"""Ops that are no loop nest of a kernel, as functions of the loop level that run one after another.

Each op is written once, for every machine that runs loops; what differs between machines is a
parameter.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bringup.dtypes import DType, f64, i64
from bringup.loops.library.calls import OpCall, StepLoops
from bringup.records import record
from bringup.target import UNKNOWN, Target

if TYPE_CHECKING:
    from bringup.ops.table import Attrs, Types


@record
class LibraryOp:
    """module: which has a function of the op's name.

    needs: the ops that are applied to elements; what a fold of some kind needs is left out.
    within: a dtype of which some elements are, whatever that of the operands is.
    """

    module: str
    needs: tuple[str, ...]
    within: DType | None = None


_ORDER = ("compare", "select", "convert")
_FIELD = ("add", "sub", "mul", "div", "sqrt", "abs", "neg", "max", *_ORDER)
#: What numbers of elements are computed with.
INDEX_OPS = ("add", "sub", "max", "min", "and", "or", "xor", "shl", "shr", "bitcast", *_ORDER)
LIBRARY: dict[str, LibraryOp] = {
    "attention": LibraryOp("attention", ("add", "sub", "mul", "div", "exp", *_ORDER)),
    "block_sparse_dot": LibraryOp("block_sparse", ("add", "mul", *_ORDER)),
    "cholesky": LibraryOp("factors", _FIELD),
    "cumulative": LibraryOp("scans", ("convert",)),
    "dynamic_update_slice": LibraryOp("scattering", ("convert",)),
    "eigh": LibraryOp("eigenvalues", _FIELD, f64),
    "lu": LibraryOp("factors", _FIELD),
    "qr": LibraryOp("reflections", _FIELD),
    "scatter": LibraryOp("scattering", ("convert",)),
    "sort": LibraryOp("sorting", _ORDER, i64),
    "svd": LibraryOp("singular_values", _FIELD, f64),
    "triangular_solve": LibraryOp("factors", _FIELD),
}


def library_loops(
    op: str,
    operands: Types,
    results: Types,
    attrs: Attrs,
    target: Target = UNKNOWN,
) -> StepLoops | None:
    """The functions that run one op on whole buffers; None if the library does not have it.

    There is none to run if the results have no elements.

    operands, results: their types.
    target: the machine.  So many iterations of parallel loops as it has threads are made where that
    takes more work; its vectors count where an op needs lanes beside each other.  If its blocks of
    threads fold atomically, neighbouring iterations have neighbouring elements, and some functions
    have block and thread loops.

    >>> from bringup.dtypes import f32
    >>> attrs = {"kind": "add", "dim": 0, "reverse": False, "exclusive": False}
    >>> step = library_loops("cumulative", (f32[6],), (f32[6],), attrs)
    >>> print(step.funcs[0])
    func cumulative(x0: in f32[6], y0: out f32[6]) {
      alloc total: register f32[1]
      %0: f32 = -0.0
      total[0] = %0
      for k in 6 {
        %1: f32 = total[0]
        %2: f32 = x0[k]
        total[0] add= %2
        %3: f32 = total[0]
        y0[k] = %3
      }
    }
    """
    if op not in LIBRARY:
        return None
    call = OpCall.of(op, operands, results, attrs, target)
    if not any(type_.size for type_ in results):
        return StepLoops(call, ())
    function: Any = getattr(import_module(f"{__name__}.{LIBRARY[op].module}"), op)
    loops: StepLoops = function(call)
    return loops


__all__ = ["INDEX_OPS", "LIBRARY", "LibraryOp", "OpCall", "StepLoops", "library_loops"]
