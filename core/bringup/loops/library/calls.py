"""What the functions of the library take and give."""

from __future__ import annotations

from bringup.loops.form import Buffer, Func
from bringup.ops.table import Attrs, Types
from bringup.records import record
from bringup.target import UNKNOWN, Target
from bringup.types import TensorType

#: Among the instructions of a machine: lanes of vectors change places in registers.
PERMUTES = "permute"


@record(eq=False)
class OpCall:
    """An op on whole buffers.

    types: of the operands, then of the results.  operands, results: their buffers ``x0, x1, …`` and
    ``y0, y1, …``.
    target: the machine.  The results of some ops depend on its threads and lanes, so both should be
    the same on all machines of a class.
    """

    name: str
    types: Types
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    attrs: Attrs
    target: Target = UNKNOWN

    @property
    def threads(self) -> int:
        """The threads of a block, where blocks fold atomically; 0 on other machines."""
        return self.target.block if "atomic" in self.target.instructions else 0

    @property
    def warp(self) -> int:
        """How many neighbouring threads exchange values."""
        return self.target.warp

    @property
    def permutes(self) -> bool:
        """Whether lanes of vectors change places in registers."""
        return PERMUTES in self.target.instructions

    @classmethod
    def of(cls, name: str, operands: Types, results: Types, attrs: Attrs, target: Target) -> OpCall:
        """The call of an op, with buffers for its operands and results."""
        return cls(
            name,
            (*operands, *results),
            tuple(_buffer(f"x{n}", type_) for n, type_ in enumerate(operands)),
            tuple(_buffer(f"y{n}", type_) for n, type_ in enumerate(results)),
            attrs,
            target,
        )


def _buffer(name: str, type_: TensorType) -> Buffer:
    return Buffer(name, type_.dtype, type_.size)


@record(eq=False)
class StepLoops:
    """Functions that run one after the other, each of which sees what those before it wrote.

    Their arguments are some of ``buffers``: the call's, and temporaries, which last from the first
    function to the last and hold nothing at first.
    copies: the first function copies operand 0 to result 0, which may be one memory: then it need
    not run.
    given: the buffers that each function is given, where they are not its parameters.
    work: about how many scalar operations an iteration of the parallel loops takes; 0 where the
    loops tell, because none of them ends early.
    """

    call: OpCall
    funcs: tuple[Func, ...]
    temporaries: tuple[Buffer, ...] = ()
    copies: bool = False
    given: tuple[tuple[Buffer, ...], ...] | None = None
    work: int = 0

    @property
    def arguments(self) -> tuple[tuple[Buffer, ...], ...]:
        """The buffers that each function is given."""
        if self.given is not None:
            return self.given
        return tuple(tuple(param.buffer for param in func.params) for func in self.funcs)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Operands, results and temporaries."""
        return (*self.call.operands, *self.call.results, *self.temporaries)

    @property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        """Which of ``buffers`` each function is given."""
        number = {buffer: n for n, buffer in enumerate(self.buffers)}
        return tuple(tuple(number[buffer] for buffer in given) for given in self.arguments)


__all__ = ["PERMUTES", "OpCall", "StepLoops"]
