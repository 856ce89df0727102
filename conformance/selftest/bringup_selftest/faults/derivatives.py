"""Faults of derivatives: rules of core's that no device has, spoilt while a device is open."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bringup.backend import Device
from bringup.graph import Builder, Value, replay
from bringup.ops import build
from bringup.ops.build import rows
from bringup.ops.table import lookup
from bringup.tracing import autodiff
from bringup_selftest.corpus import Faults, FaultyBackend, Inject

FAULTS = Faults("Derivatives", "rt", depth=3)
#: What replaces an attribute, made of what it was.
Replace = Callable[[Any], Any]
#: What attributes were before any device was open, by owner and name.
_ORIGINALS: dict[tuple[str, str], Any] = {}


def replacing(owner: Any, name: str) -> Callable[[Replace], Inject]:
    """Inject what replaces an attribute for as long as a device is open.

    owner: a module, or the name of a row.
    """

    def edit(change: Replace, device: Device) -> Device:
        place = lookup(owner) if isinstance(owner, str) else owner
        before, close = getattr(place, name), device.close
        # Spoilt once, however many devices are open: what is wrong twice may be right.
        key = owner if isinstance(owner, str) else owner.__name__, name
        original = _ORIGINALS.setdefault(key, before)
        # Rows are frozen.
        object.__setattr__(place, name, change(original))

        def restored() -> None:
            object.__setattr__(place, name, before)
            close()

        device.close = restored  # type: ignore[method-assign]
        return device

    return lambda change: partial(FaultyBackend, device=partial(edit, change), host=True)


def _scaled(factor: float, which: int = 0) -> Replace:
    """A vjp whose cotangent of one operand is too large or too small."""

    def change(vjp: Any) -> Any:
        def wrong(*given: Any, **attrs: Any) -> Any:
            found = list(vjp(*given, **attrs))
            found[which] = rows.mul(found[which], build.like(found[which], factor))
            return tuple(found)

        return wrong

    return change


def _constant_factor(vjp: Any) -> Any:
    """A right gradient that holds its own factor for a constant: the gradient is right, and every
    derivative of it is 0.
    """

    def wrong(ct: Value, result: Value, x: Value) -> tuple[Value]:
        (found,) = vjp(ct, _held(result), _held(x))
        return (found,)

    return wrong


def _held(x: Value) -> Value:
    """The same value, to which no derivative comes back: floor has none.

    Nothing is cut off of numbers past 2^-7: their last bit is worth 2^-60 or more.
    """
    whole = rows.floor(rows.mul(x, build.like(x, 2.0**60)))
    held: Value = rows.mul(whole, build.like(x, 2.0**-60))
    return held


def _only_if_set(vjp: Any) -> Any:
    """A vjp that looks at its cotangents: right in every value, but with no derivative where they
    are 0, and there forward mode differentiates it.
    """

    def chosen(ct: Value) -> Value:
        zero = build.zeros_like(ct)
        found: Value = rows.select(build.compare("eq", ct, zero), zero, ct)
        return found

    def wrong(cts: Any, *given: Any, **attrs: Any) -> Any:
        found = tuple(map(chosen, cts)) if isinstance(cts, tuple) else chosen(cts)
        return vjp(found, *given, **attrs)

    return wrong


def _one_example(batch: Any) -> Any:
    """Examples of an operand in reverse order."""

    def wrong(operands: Any, flags: Any, size: int, **attrs: Any) -> Any:
        first = build.reverse(operands[0], (0,)) if flags[0] else operands[0]
        return batch((first, *operands[1:]), flags, size, **attrs)

    return wrong


def _first_tangent(jvp_graph: Any) -> Any:
    """Forward mode that leaves out every operand but the first."""

    def wrong(graph: Any, wrt: Any, of: Any = None) -> Any:
        right = jvp_graph(graph, wrt, of)
        if len(wrt) < 2:
            return right
        with Builder() as builder:
            given = [builder.input(v.type) for v in right.inputs]
            moved = given[: len(graph.inputs) + 1]
            rest = [build.zeros_like(v) for v in given[len(moved) :]]
            outputs = replay(right, arguments=[*moved, *rest])
        return builder.build(outputs, right.name)

    return wrong


FAULTS.by(replacing("tanh", "vjp"), "DV01", "the gradient of tanh is an eighth too large")(
    _scaled(1.125)
)
FAULTS.by(replacing("div", "vjp"), "DV01a", "the gradient of div by y is too small")(
    _scaled(0.5, 1)
)
FAULTS.by(replacing("tanh", "vjp"), "DV02", "second derivatives of tanh are 0")(_constant_factor)
FAULTS.by(replacing("exp", "vjp"), "DV02a", "second derivatives of exp are 0")(_constant_factor)
FAULTS.by(replacing("logistic", "vjp"), "DV02b", "second derivatives of logistic are 0")(
    _constant_factor
)
FAULTS.by(replacing("eigh", "vjp"), "DV03", "forward mode through eigh is 0")(_only_if_set)
FAULTS.by(replacing("sqrt", "vjp"), "DV03a", "forward mode through sqrt is 0")(_only_if_set)
FAULTS.by(replacing(autodiff, "jvp_graph"), "DV03b", "forward mode forgets operands")(
    _first_tangent
)
FAULTS.by(replacing("dot_general", "batch"), "DV04", "examples of a product in reverse order")(
    _one_example
)
