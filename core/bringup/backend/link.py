"""Ahead of time: what core hands to a backend that makes machine code of programs for later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeVar

from bringup.program.program import Program
from bringup.records import record
from bringup.types import TensorType

Address = TypeVar("Address")


@record
class LinkUnit:
    """One function of a library: ``int symbol(arguments, results, arena)``.

    symbol: its name in C.  It takes three pointers: to the addresses of the arguments, to those of
    the results, and to `Linked.arena_bytes` bytes.  It returns 0, or one of the codes in `STATUS`.
    program: what it computes.
    arguments: how many inputs of the program the caller passes, the first ones.
    weights: where in `Weights.data` the other inputs stand, then the constants of each of
    `Program.programs`, in bytes.
    prefix: of the structs of addresses in the header, ``PREFIX_args`` and ``PREFIX_results``.
    members: what these call the arguments, then the results.
    """

    symbol: str
    program: Program
    arguments: int
    weights: tuple[int, ...] = ()
    prefix: str = ""
    members: tuple[str, ...] = ()

    @property
    def passed(self) -> Sequence[tuple[str, TensorType]]:
        """How C reads the address of each argument and result, and its type."""
        count, program = self.arguments, self.program
        structs = ["args"] * count + ["results"] * len(program.outputs)
        types = [*program.inputs[:count], *program.outputs]
        texts = (f"{struct}->{name}" for struct, name in zip(structs, self.members, strict=True))
        return list(zip(texts, types, strict=True))

    def structs(self, *, weights: bool) -> Sequence[str]:
        """The structs that a call reads.  weights: whether the arguments end with those."""
        has_arguments = self.arguments or weights
        results = ["results"] if self.program.outputs else []
        return ["args", *results] if has_arguments else results

    @property
    def held(self) -> Sequence[TensorType]:
        """The types of what stands at `weights`."""
        literals = (literal for each in self.program.programs for literal in each.constants)
        return [*self.program.inputs[self.arguments :], *(literal.type for literal in literals)]

    def constants(self, addresses: Sequence[Address]) -> Mapping[int, Sequence[Address]]:
        """The addresses of the constants of each program, by its identity.

        addresses: of each array at `weights`.
        """
        found, first = {}, len(self.program.inputs) - self.arguments
        for each in self.program.programs:
            last = first + len(each.constants)
            found[id(each)] = addresses[first:last]
            first = last
        return found


@record
class Weights:
    """The arrays that the functions of a library hold, each at a multiple of 64 bytes.

    data: all of them.
    prefix: None where the data is part of the code.  Else the caller passes the address of a file
    after the last argument, whose first bytes these are, and whose data begins at ``start``.
    """

    data: bytes = field(default=b"", repr=False)
    prefix: bytes | None = None
    start: int = 0


@record
class LinkOptions:
    """How code is compiled ahead of time.

    name: of the library; ``NAME.h`` is its header.
    small: whether little code counts for more than speed.
    threads: the most workers that share a run.  With more than one, functions take a fourth
    pointer, to a `struct` of a function and its own data that runs parts of a loop; see
    `bringup.aot.header`.  None there runs everything on the calling thread.
    """

    name: str = ""
    small: bool = False
    threads: int = 1


@record
class Driver:
    """What C calls the things of a device's driver, for the header of a library that launches.

    include: the lines that include the header that has them.
    memory: the type of memory on the device: arguments, results, the arena and the weights.
    queue: the type of what runs work in order.
    context: the parameters for where code is loaded.
    state: the members of what ``NAME_load`` fills and ``NAME_run`` reads.
    errors: what the negative codes of functions are.
    integers: the types of these that are integers, and what Rust calls each; others are pointers.
    """

    include: str
    memory: str
    queue: str
    context: tuple[str, ...]
    state: tuple[str, ...]
    errors: str
    integers: Mapping[str, str] = field(default_factory=dict)


@record
class Linked:
    """What a backend makes of the units of a library.

    data: an object file that defines the symbols of all units, or source text of one.
    arena_bytes: the scratch memory that a call of each unit needs, at a multiple of 64 bytes.
    suffix: of the file; ``.c`` for C source.
    files: others beside it, by what their names end with.
    driver: None for code that reads the caller's memory itself.
    weights_bytes: the memory that the weights take on a device.
    """

    data: bytes = field(repr=False)
    arena_bytes: tuple[int, ...] = ()
    suffix: str = ".o"
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    driver: Driver | None = None
    weights_bytes: int = 0


#: What the functions of a library return, and why.
STATUS: Sequence[tuple[str, str]] = (
    ("OK", "the results are written"),
    ("NULL_POINTER", "an argument, a result, the arena or one of the structs is null"),
    ("MISALIGNED", "an address is no multiple of what its type, or the arena, needs"),
    ("WRONG_WEIGHTS", "the weights are not those that the library was made with"),
    ("WRONG_PROCESSOR", "the processor lacks instructions that the code has"),
)

__all__ = ["STATUS", "Driver", "LinkOptions", "LinkUnit", "Linked", "Weights"]
