"""The op table: one row per op, everything else derived from it.

A row is an `OpDef`.  Calling it emits an instruction into the active builder.  Nothing about an op
stands anywhere else, except how a device renders it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, ParamSpec, Protocol

from bringup.dtypes import STORED, DType
from bringup.errors import OpTypeError
from bringup.graph import Graph, Operation, Value, current_builder
from bringup.graph.index import Source
from bringup.ops.catalogue import MODULE_OF
from bringup.ops.special_values import Special
from bringup.records import record
from bringup.types import TensorType

Types = tuple[TensorType, ...]
Attrs = Mapping[str, Any]
Infer = Callable[[Types, Attrs], "TensorType | Types"]
Reference = Callable[..., Any]
#: Of each operand, None where there is no derivative.
Cotangents = tuple[Value | None, ...]
Vjp = Callable[..., Cotangents]
Decompose = Callable[..., "Value | tuple[Value, ...]"]
Fill = Callable[[Types, Attrs], Attrs]
Batch = Callable[..., "Value | tuple[Value, ...] | None"]
FactorDims = Callable[..., "dict[int, int] | None"]
IndexMap = Callable[..., Sequence[Source]]
Residual = Callable[..., "Sequence[tuple[str, Any, Any]]"]
#: ``derive(graph, wrt, of)``: the graph that also pulls cotangents of outputs back to inputs.
Derive = Callable[[Graph, Sequence[int], Sequence[int]], Graph]
#: ``map_graph(graph, batched, size)``: the graph for many examples, and which outputs differ.
MapGraph = Callable[[Graph, Sequence[bool], int], tuple[Graph, tuple[bool, ...]]]


class Kind(Enum):
    """How an op relates its results' elements to its operands' elements.

    Fusion and strategies dispatch on it.
    """

    SOURCE = "source"  # no operands: constant, iota
    ELEMENTWISE = "elementwise"  # element i from elements i
    MOVEMENT = "movement"  # an index map: moves elements, computes nothing
    REDUCTION = "reduction"  # folds whole axes
    CONTRACTION = "contraction"  # sums of products over shared axes
    INDEXED = "indexed"  # data-dependent indices: gather, scatter, dynamic slices
    ORDER = "order"  # sort
    CONTROL = "control"  # sub-graphs
    COMPOSITE = "composite"  # defined by its decomposition alone


class Trait(Enum):
    """Laws an op keeps; rules of the simplifier may rely on them, and each is property-tested."""

    COMMUTATIVE = "commutative"  # f(a, b) = f(b, a), bit for bit; any NaN is like any other
    ASSOCIATIVE = "associative"  # exactly, on integers and booleans
    IDEMPOTENT = "idempotent"  # f(f(x)) = f(x), or f(x, x) = x
    INVOLUTION = "involution"  # f(f(x)) = x
    MONOTONE = "monotone"  # x <= y implies f(x) <= f(y), in every operand
    # On floats it rises or falls along each operand, on either side of a pole at 0; an even one, on
    # either side of 0.
    PIECEWISE_MONOTONE = "piecewise monotone"
    ODD = "odd"  # f(-x) = -f(x) on floats
    EVEN = "even"  # f(-x) = f(x) on floats
    POINTWISE = "pointwise"  # a composite whose element i comes from elements i: may join a kernel
    EXPENSIVE = "expensive"  # worth keeping rather than computing twice inside a kernel
    EFFECT = "effect"  # does more than give results: never dropped, merged or moved past another
    ADAPTS = "adapts"  # makes an operand fit another op: changes its dtype or shape alone
    IN_PLACE = "in place"  # on whole buffers the result may take the memory of operand 0
    LOOP = "loop"  # runs its attribute ``body`` again and again on a state
    BRANCH = "branch"  # runs one of its attribute ``branches`` on the operands after the first


class Required(Enum):
    """Marks an attribute without default."""

    REQUIRED = "required"


REQUIRED = Required.REQUIRED


@record
class Attr:
    """One attribute of an op.

    name, doc: for the reference page and for messages.
    kind: int, bool, float, str, ints (tuple of int), dtype, type, literal, graph, padding (tuple of
    int triples) or dims (pair of tuples of int).
    choices: the only values allowed.
    default: `REQUIRED` if none.
    """

    name: str
    kind: str
    doc: str
    choices: tuple[Any, ...] = ()
    default: Any = REQUIRED


@record
class Accuracy:
    """How far a right implementation may be from the reference.

    exact: bit-equal (signs of zero and which NaN aside only where the row says so).
    ulp: allowance per float dtype name.
    accumulates: the result is a sum whose bound grows with its length; see the conformance suite's
    derivation.
    residual: ``residual(operands, results, references, attrs, dtype)`` says of results that no
    bound by element fits, such as the factors of a matrix, how well they do what they are for: it
    gives (what, error, allowed) of arrays of one shape, all computed in a wider float than
    ``dtype``, the one of the leading operand.  references: the reference's own results, in case the
    error is the distance from them.  Where ``allowed`` is inf, nothing is said.

    With none of the four, the bound is the one derived for the row's decomposition.  Integers and
    booleans are always exact, but for those of rows with a residual.
    """

    exact: bool = False
    ulp: Mapping[str, float] = field(default_factory=dict)
    accumulates: bool = False
    residual: Residual | None = None


EXACT = Accuracy(exact=True)
ROUNDED = Accuracy(ulp={"f16": 0.5, "bf16": 0.5, "f32": 0.5, "f64": 0.5})
TWO_ULP = Accuracy(ulp={"f16": 1.0, "bf16": 1.0, "f32": 2.0, "f64": 2.0})
SUM = Accuracy(accumulates=True)
DERIVED = Accuracy()


def within(ulp: float) -> Accuracy:
    """An allowance for f32 and f64; f16 and bf16, rounded once from f32, stay within 1."""
    return Accuracy(ulp={"f16": 1.0, "bf16": 1.0, "f32": ulp, "f64": ulp})


@record
class Domain:
    """Where operands may be drawn from.

    intervals: per operand (the last repeats) a closed interval of floats, or None for every value
    of the dtype.
    nonzero: operands that must not be 0 (by position).
    indices: the position of the first operand that holds indices into operand 0, or None.
    matrices: per operand a name of `bringup.ops.structures`, or nothing: what its matrices are.
    """

    intervals: tuple[tuple[float, float] | None, ...] = (None,)
    nonzero: tuple[int, ...] = ()
    matrices: tuple[str, ...] = ()
    indices: int | None = None

    def matrix(self, position: int) -> str:
        """The structure of the matrices of one operand, or nothing."""
        return self.matrices[position] if position < len(self.matrices) else ""


EVERYWHERE = Domain()


@record
class Pruned:
    """An instruction without what only its dead results need.

    kept: the positions of the results that are left.
    """

    operands: tuple[Value, ...]
    attrs: Attrs
    kept: tuple[int, ...]


#: ``prune(live, operands, attrs)``: the smaller instruction, or None if nothing can go.
Prune = Callable[[frozenset[int], tuple[Value, ...], Attrs], Pruned | None]


@record(eq=False, kw_only=True)
class OpDef:
    """One row of the table.

    name: the IR's text.
    arity: operand count, or None for one or more.
    kind: see `Kind`.
    doc: one sentence, then the rules for special values.
    attrs: in printing order.
    infer: result types, raising OpTypeError with a fix.
    reference: numpy arrays in, numpy array (or tuple) out; keyword attributes.  Right for every
    special value.  Float rows work in the dtype of their arguments, so f64 in gives f64 out.
    fill: attributes a caller left out whose default follows from the operands, for the rows that
    have such; runs when the row is called, so an instruction always holds them.
    vjp: ``vjp(cotangent, result, *operands, **attrs)`` emits the cotangents of the operands, None
    where not differentiable; the whole is None if no operand of a primitive is.  A composite whose
    vjp is None is differentiated through its decomposition.  Only called for float results.  An op
    of several results takes and gives tuples of them.  One with sub-graphs also gets ``derive=``,
    see `Derive`.
    linear: groups of operands in which results of floats are linear, all others unchanged: (0,)
    and (1,) for a product, (0, 1) for a sum.
    factor_dims: ``factor_dims(position, *operands, **attrs)``, for a product of two arrays: by
    dimension of the result, the dimension of the operand at that position that it is; None where
    scales of the result cannot be scales of that operand.
    index_map: ``index_map(index, mask, *operands, **attrs)``: the elements of operands that the
    result's element at ``index`` is: alternatives, of which the first applies whose bounds hold.
    mask: where the element is wanted.  Such a row moves elements and computes nothing: inside
    kernels it dissolves into the indices of loads.
    residuals: ``residuals(*operands, **attrs)`` emits the op with more results, after its own, that
    its vjp reads.
    prune: see `Prune`; for rows that save work where some of their results are dead.
    dtypes: dtypes of the leading operand (of the result for sources).
    domain: what strategies draw.
    special: the special-value table, see `bringup.ops.special_values.cells`.
    traits, accuracy: see there; `accuracy_for` gives that of one instruction, which may depend on
    the variant.
    decompose: ``decompose(*operands, **attrs)`` emits an equivalent of simpler ops; never called
    for a tier 0 claim.
    batch: ``batch(operands, batched, size, /, **attrs)`` emits the op for many examples at once.
    Operands flagged in `batched` have one more dimension, of that size, before all others, and so
    has each result, unless it is the same for all; None leaves it to the decomposition.  Not needed
    for elementwise and pointwise rows, nor for composites that their decomposition serves as well.
    Rows with sub-graphs also get ``map_graph=``, see `MapGraph`.
    variant: an attribute whose values a device claims one by one, as ``reduce.add``.
    tier: 0 for names every device must have (``tier0_variants`` of them), else 1.
    since: the opset that introduced it.
    """

    name: str
    arity: int | None
    kind: Kind
    doc: str
    infer: Infer
    reference: Reference
    attrs: tuple[Attr, ...] = ()
    vjp: Vjp | None = None
    dtypes: tuple[DType, ...] = STORED
    domain: Domain = EVERYWHERE
    special: Sequence[Special] = ()
    traits: frozenset[Trait] = frozenset()
    accuracy: Accuracy = EXACT
    variant_accuracy: Mapping[str, Accuracy] = field(default_factory=dict)
    fill: Fill | None = None
    decompose: Decompose | None = None
    batch: Batch | None = None
    linear: tuple[tuple[int, ...], ...] = ()
    factor_dims: FactorDims | None = None
    index_map: IndexMap | None = None
    residuals: Callable[..., tuple[Value, ...]] | None = None
    prune: Prune | None = None
    variant: str | None = None
    tier: int = 1
    tier0_variants: tuple[str, ...] = ()
    since: int = 1

    def __call__(self, *operands: Value, **attrs: Any) -> Any:
        """Emit into the active builder: the result, or a tuple of results if the op has several."""
        if self.fill is not None and len(operands) == self.arity:
            filled = self.fill(tuple(v.type for v in operands), attrs)
            attrs = {**attrs, **{name: filled[name] for name in filled if name not in attrs}}
        results = current_builder().emit(self, operands, attrs)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (lookup, (self.name,))

    def bind(self, attrs: Attrs) -> dict[str, Any]:
        """Fill defaults, check names, kinds and choices; the order is the row's."""
        unknown = [name for name in attrs if all(name != a.name for a in self.attrs)]
        if unknown:
            takes = ", ".join(a.name for a in self.attrs) or "none"
            raise OpTypeError(
                f"{self.name}: no attribute {unknown[0]!r}",
                fix=f"attributes of {self.name}: {takes}",
            )
        return {a.name: self._bind_one(a, attrs.get(a.name, a.default)) for a in self.attrs}

    def _bind_one(self, attr: Attr, value: Any) -> Any:
        if value is REQUIRED:
            raise OpTypeError(
                f"{self.name}: attribute {attr.name!r} is missing", fix=f"{attr.name}: {attr.doc}"
            )
        if isinstance(value, list):
            value = tuple(value)
        if attr.kind == "float" and isinstance(value, int):
            value = float(value)  # 1 and 1.0 must be one attribute, not two
        if attr.choices and value not in attr.choices:
            options = ", ".join(map(str, attr.choices))
            raise OpTypeError(
                f"{self.name}: {attr.name}={value!r} is not allowed", fix=f"use one of {options}"
            )
        return value

    def result_types(self, operands: Types, attrs: Attrs) -> Types:
        """Check arity and leading dtype, then infer."""
        fits = bool(operands) if self.arity is None else len(operands) == self.arity
        if not fits:
            wanted = "one or more" if self.arity is None else self.arity
            raise OpTypeError(
                f"{self.name}: takes {wanted} operands, got {len(operands)}",
                fix="pass operands by position, attributes by keyword",
            )
        if operands and self.kind is not Kind.COMPOSITE and operands[0].dtype not in self.dtypes:
            names = ", ".join(d.name for d in self.dtypes)
            raise OpTypeError(
                f"{self.name}: does not take {operands[0].dtype}: {', '.join(map(str, operands))}",
                fix=f"convert the operand to one of {names}",
            )
        types = self.infer(operands, attrs)
        return types if isinstance(types, tuple) else (types,)

    def claim(self, attrs: Attrs) -> str:
        """The name under which a device claims an instruction: ``reduce.add`` or plain ``exp``."""
        return self.name if self.variant is None else f"{self.name}.{attrs[self.variant]}"

    def accuracy_for(self, attrs: Attrs) -> Accuracy:
        """The accuracy of an instruction with these attributes."""
        if self.variant is None:
            return self.accuracy
        return self.variant_accuracy.get(attrs[self.variant], self.accuracy)

    @property
    def effects(self) -> bool:
        """Whether it does more than give results."""
        return Trait.EFFECT in self.traits

    @property
    def adapts(self) -> bool:
        """Whether it only makes an operand fit another op."""
        return Trait.ADAPTS in self.traits

    @property
    def holds_graphs(self) -> bool:
        """Whether an attribute is, or contains, a sub-graph."""
        return any(a.kind == "graph" for a in self.attrs)

    @property
    def claims(self) -> tuple[str, ...]:
        """Every name a device may claim for this op."""
        if self.variant is None:
            return (self.name,)
        spec = next(a for a in self.attrs if a.name == self.variant)
        return tuple(f"{self.name}.{choice}" for choice in spec.choices)

    @property
    def tier0_claims(self) -> tuple[str, ...]:
        """The names of this op that every device must have; empty for tier 1."""
        if self.tier != 0:
            return ()
        if self.variant is None or not self.tier0_variants:
            return self.claims
        return tuple(f"{self.name}.{v}" for v in self.tier0_variants)


_Columns = ParamSpec("_Columns")
_TABLE: dict[str, OpDef] = {}


def _defining(make: Callable[_Columns, OpDef]) -> Callable[_Columns, OpDef]:
    def define(*args: _Columns.args, **columns: _Columns.kwargs) -> OpDef:
        row = make(*args, **columns)
        if row.name in _TABLE:
            raise ValueError(f"op {row.name!r} is defined twice")
        _TABLE[row.name] = row
        return row

    return define


#: Make a row and put it into the table.  Raises ValueError if the name is taken.
define = _defining(OpDef)


class _Applied(Protocol):
    """An instruction, or a step of a program that is one."""

    @property
    def op(self) -> Operation: ...


def opdef(instr: _Applied) -> OpDef:
    """The row of an instruction: graphs know less of it than it holds."""
    op = instr.op
    assert isinstance(op, OpDef)
    return op


def lookup(name: str) -> OpDef:
    """The row of that name.  Raises KeyError."""
    found = find(name)
    if found is None:
        raise KeyError(f"{name}: bringup.ops.catalogue has no op of this name")
    return found


def find(name: str) -> OpDef | None:
    """The row of that name, or None."""
    if name not in _TABLE and name in MODULE_OF:
        importlib.import_module(f"bringup.ops.{MODULE_OF[name]}")
    return _TABLE.get(name)


def all_ops() -> Iterable[OpDef]:
    """Every row, in the order of `Kind`, so composites last, then of the catalogue."""
    for name in MODULE_OF:
        find(name)
    kinds = {kind: place for place, kind in enumerate(Kind)}
    places = {name: place for place, name in enumerate({**MODULE_OF, **_TABLE})}
    return tuple(sorted(_TABLE.values(), key=lambda row: (kinds[row.kind], places[row.name])))
