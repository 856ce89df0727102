"""What a device can do, as data: answered without hardware, verified both ways by the suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from bringup.dtypes import INTS, STORED, DType, i32
from bringup.errors import BackendError
from bringup.graph import Instr
from bringup.kernel.limits import Limits
from bringup.ops.subgraphs import carried, is_control, is_loop, loop_parts, trips_of
from bringup.ops.table import Kind, find, opdef
from bringup.records import record

#: The level of this seam.  A plugin states the range it accepts; see `Handshake`.
API_LEVEL = 1
#: The version of the op table.
OPSET = 1

#: Dtypes by claim: an op (``"add"``), or one kind of it (``"reduce.add"``).
Claims = Mapping[str, frozenset[DType]]
#: Those of loops and branches, of a device that runs them as wholes.
CONTROL_CLAIMS: Claims = dict.fromkeys(("while", "scan", "case"), frozenset(STORED))


class RowClaims(Claims):
    """Every claim of some rows of the op table, none of which is defined before it is asked for.

    rows: dtypes by the names of rows, and of steps that have none.

    >>> from bringup.dtypes import f32
    >>> claims = RowClaims({"exp": frozenset({f32}), "reduce": frozenset({f32})})
    >>> "reduce.add" in claims, "reduce" in claims, len(claims) > 2
    (True, False, True)
    """

    def __init__(self, rows: Claims) -> None:
        self._rows = rows

    def __getitem__(self, claim: str) -> frozenset[DType]:
        name = claim.partition(".")[0]
        dtypes = self._rows[name]
        if claim not in _claims_of(name):
            raise KeyError(claim)
        return dtypes

    def __iter__(self) -> Iterator[str]:
        for name in self._rows:
            yield from _claims_of(name)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class LibraryClaims(Claims):
    """The claims for `Capabilities.ops` of a device of loops: the ops of the op library, as far as
    its kernels may hold what they are made of.

    kernels: the claims for `Capabilities.kernels`.

    >>> from bringup.c import C11, c_claims
    >>> from bringup.dtypes import f32
    >>> "sort" in LibraryClaims(c_claims(C11)), "sort" in LibraryClaims({"add": frozenset({f32})})
    (True, False)
    """

    def __init__(self, kernels: Claims) -> None:
        self._kernels = kernels

    def __getitem__(self, claim: str) -> frozenset[DType]:
        from bringup.loops.library import INDEX_OPS, LIBRARY

        name, _, kind = claim.partition(".")
        needs, within = LIBRARY[name].needs, LIBRARY[name].within
        if claim not in _claims_of(name):
            raise KeyError(claim)
        indices = self._common(INDEX_OPS)
        if i32 not in indices:
            raise KeyError(claim)
        elements = self._common([*needs, kind] if kind and kind != "set" else needs)
        if not elements or (within is not None and within not in elements):
            raise KeyError(claim)
        return elements | (indices & frozenset(INTS))

    def _common(self, ops: Iterable[str]) -> frozenset[DType]:
        """The dtypes with which kernels may hold every kind of all of these ops."""
        none = frozenset[DType]()
        every = (self._kernels.get(claim, none) for op in ops for claim in _claims_of(op))
        return frozenset.intersection(*every)

    def __iter__(self) -> Iterator[str]:
        from bringup.loops.library import LIBRARY

        return (claim for name in LIBRARY for claim in _claims_of(name) if claim in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _claims_of(name: str) -> tuple[str, ...]:
    row = find(name)
    return (name,) if row is None else row.claims


@record
class Handshake:
    """The first thing a plugin says: the inclusive ranges of seam levels and opsets it accepts.

    Write the numbers that `API_LEVEL` and `OPSET` had when the plugin was written and tested.  The
    level changes when a method or field of this package changes its meaning or a device has to
    write a new one; the opset when rows of the op table change.  Core refuses a plugin whose ranges
    do not hold its own numbers, in one sentence that says which side to upgrade.

    api: least and greatest level.
    opset: least and greatest opset.
    """

    api: tuple[int, int]
    opset: tuple[int, int]


@record(kw_only=True)
class Numerics:
    """How results may differ from IEEE arithmetic in the stated dtype.

    The suite widens its bounds by what is declared and by nothing else, so a missing declaration
    shows as failures of the level ``ops``; one too many only hides faults.  There is none for the
    accuracy of functions, which the rows of the ops hold: a device whose ``sqrt`` is further off
    does not claim it, or its makers list the failures by ``conformance run --expect``.

    flush_subnormals: subnormal inputs or results may read as 0.
    excess_precision: values inside a kernel may keep more bits than their dtype.
    longest_chain: additions in a row in any accumulation before partial results are combined
    pairwise; it enters the error bound of sums and products.  The default says nothing about the
    order, and then a sum of n terms may be wrong by n roundings: a device that adds up in chunks
    is proved to more digits if it declares their length.
    """

    flush_subnormals: bool = False
    excess_precision: bool = False
    longest_chain: int = 1 << 62


@record(kw_only=True)
class Shapes:
    """Sizes at which the device's code changes path; the suite tests below, at and above each.

    They change no result and no bound.  A size that is missing here is tested only by luck.

    vector: elements that one instruction computes.
    block: elements that one group of threads, or one unit of work, computes.
    extra: any others, such as the length of a chunk.
    contraction: rows, columns or contracted indices at which products and convolutions change path,
    such as the sides of a tile and the depth of a block.
    products: multiplications from which they take another path, such as where their factors are
    packed first; 0 for nowhere.
    panel: bits of a row of the panels into which the right factor of such a product is packed, a
    few neighbouring columns; 0 for none.  Weights that are known are packed once where it is given.
    """

    vector: int = 16
    block: int = 1024
    extra: tuple[int, ...] = ()
    contraction: tuple[int, ...] = ()
    products: int = 0
    panel: int = 0


@record(kw_only=True)
class Capabilities:
    """The whole declaration of one device.

    ops: claims the device runs as calls on whole buffers (``{"add": frozenset({f32})}``,
    ``"reduce.add"``).  Core decomposes what is claimed neither here nor in ``kernels``; the suite
    lists as unsupported what then still lacks, and a claimed op that fails is a failure.
    kernels: claims allowed inside kernels; empty if the device takes none.  Movement ops dissolve
    into index maps, constants and counters into values: they need no claim there, only a dtype that
    some claim holds.  `reduce` and `dot_general` count as claims of kernels; `gather` and
    `dynamic_slice` are loads at indices that are data.
    limits: what one kernel, one array and the device can hold; core cuts programs accordingly and
    refuses what cannot be cut.
    numerics: how far from IEEE results may be.
    shapes: sizes worth testing.
    alignment: of buffers and arena slots, bytes, a power of two.  Core places every slot of the
    arena at a multiple of it; what `Device.alloc` returns is the device's own affair.
    asynchronous: work may be pending after a call returns.  Core then waits before the host reads,
    and the suite also checks that late errors are told, once, at the next wait.
    donation: donated inputs may be overwritten, and core gives the memory of an input to an output.
    deterministic: two runs give the same bits; the suite compares them.  If not, it compares
    each run with the bounds alone.
    simulated: a model of the hardware, so slow that the suite runs fewer and smaller programs.
    target: what `Backend.lower` takes to make code for it, such as the name of an architecture;
    empty for a backend that makes one kind of code on a machine.
    """

    ops: Claims = field(default_factory=dict)
    kernels: Claims = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    numerics: Numerics = field(default_factory=Numerics)
    shapes: Shapes = field(default_factory=Shapes)
    alignment: int = 64
    asynchronous: bool = False
    donation: bool = True
    deterministic: bool = True
    simulated: bool = False
    target: str = ""

    def __post_init__(self) -> None:
        """Raises BackendError for fields of other types, which fail far from here if at all."""
        kinds: dict[str, type] = {
            "ops": Mapping,
            "kernels": Mapping,
            "limits": Limits,
            "numerics": Numerics,
            "shapes": Shapes,
        }
        for name, kind in kinds.items():
            given = getattr(self, name)
            if not isinstance(given, kind):
                what = f"Capabilities: {name} is a {type(given).__name__}, not a {kind.__name__}"
                raise BackendError(what, fix="leave it out, or give one")
        bytes_: object = self.alignment
        if not isinstance(bytes_, int) or bytes_ < 1 or bytes_ & (bytes_ - 1):
            what = f"Capabilities: alignment {bytes_!r} is no power of two"
            raise BackendError(what, fix="give the alignment of buffers in bytes, such as 64")

    def runs_op(self, instr: Instr) -> bool:
        """Whether the device runs this instruction as an op call, or a loop by steps."""
        most = self.limits.loop_runs
        if most and is_loop(instr):
            return 0 < self._runs(instr) <= most
        return _claimed(self.ops, instr)

    def _runs(self, instr: Instr) -> int:
        """How often the bodies of a loop run, those of loops within it together, on a device that
        runs step by step; 0 if it does not take the loop.
        """
        trips = trips_of(instr) if is_loop(instr) else None
        if trips is None:
            return 0
        first = loop_parts(instr).first_stack
        stacks = [*instr.operands[first:], *instr.results[len(carried(instr)) :]]
        if trips > 1 and any(v.type.nbytes // trips % self.alignment for v in stacks):
            return 0
        inner = [self._runs(i) for i in instr.attrs["body"].instrs if is_control(i)]
        return 0 if 0 in inner else trips * max(inner, default=1)

    def fuses(self, instr: Instr) -> bool:
        """Whether this instruction may stand inside a kernel."""
        op = opdef(instr)
        if op.kind in (Kind.MOVEMENT, Kind.SOURCE):
            return self._holds(instr.results[0].dtype)
        return _claimed(self.kernels, instr)

    def _holds(self, dtype: DType) -> bool:
        """Whether kernels load and store this dtype at all."""
        return any(dtype in dtypes for dtypes in self.kernels.values())

    def available(self, instr: Instr) -> bool:
        """Whether the device can run this instruction in some way without decomposing it.

        Constants need no claim: they are uploaded where they do not stand in kernels.  Nor do
        loops and branches: core runs them, and their parts on the device.
        """
        op = opdef(instr)
        given = instr.literal is not None or op.kind is Kind.CONTROL
        return given or self.fuses(instr) or self.runs_op(instr)


def _claimed(claims: Claims, instr: Instr) -> bool:
    op = opdef(instr)
    dtypes = claims.get(op.claim(instr.attrs))
    if dtypes is None:
        return False
    return all(v.dtype in dtypes for v in (*instr.operands, *instr.results))
