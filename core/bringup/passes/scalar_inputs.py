"""Inputs that are numbers of Python."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.dtypes import DType
from bringup.graph import Builder, Graph, Instr, Value, replay
from bringup.passes.base import Pass


def cast_scalar_inputs(scalars: frozenset[int]) -> Pass:
    """Make the pass.  A number of Python is an input of the default dtype at first; where the host
    casts it before the call, a device without 64-bit types can run the program.

    scalars: positions of the inputs that are such numbers.
    """

    def run(graph: Graph) -> Graph:
        dtypes = _only_dtypes(graph, scalars)
        if not dtypes:
            return graph
        builder = Builder()
        inputs = [builder.input(v.type.with_dtype(dtypes.get(v, v.dtype))) for v in graph.inputs]

        def rewrite(instr: Instr, operands: tuple[Value, ...]) -> Sequence[Value] | None:
            return operands if instr.operands and instr.operands[0] in dtypes else None

        return builder.build(replay(graph, rewrite, builder=builder, arguments=inputs), graph.name)

    doc = "a scalar input that all readers convert to one dtype -> an input of that dtype"
    return Pass("cast_scalar_inputs", doc, run, retypes=True)


def _only_dtypes(graph: Graph, scalars: frozenset[int]) -> dict[Value, DType]:
    """The dtype that alone is read of a scalar input, for each that has one."""
    users, dtypes = graph.users(), {}
    for position in scalars:
        value = graph.inputs[position]
        if value in graph.outputs:
            continue
        read = {i.attrs["dtype"] if i.op.name == "convert" else None for i in users[value]}
        only = read.pop() if len(read) == 1 else None
        if only is not None and _host_casts_alike(only, value.dtype):
            dtypes[value] = only
    return dtypes


def _host_casts_alike(dtype: DType, scalar: DType) -> bool:
    """Whether converting on the host is what converting on the device would be, or an error."""
    return dtype.is_float or (scalar.kind == "bool" or (dtype.is_integer and not scalar.is_float))
