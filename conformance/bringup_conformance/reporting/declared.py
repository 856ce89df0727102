"""Capabilities read back from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from bringup.backend.capabilities import Capabilities, Claims, Numerics, Shapes
from bringup.dtypes import BY_NAME
from bringup.kernel.limits import Limits


def capabilities_of(data: Mapping[str, Any]) -> Capabilities:
    """What `environment.plain` made of capabilities, as capabilities again.

    Raises KeyError or TypeError if it is none of that kind.

    >>> from bringup.dtypes import f32
    >>> from bringup_conformance.reporting.environment import plain
    >>> given = Capabilities(ops={"add": frozenset({f32})}, shapes=Shapes(vector=8, extra=(3,)))
    >>> capabilities_of(plain(given)) == given
    True
    """
    shapes: dict[str, Any] = dict(data["shapes"])
    shapes |= {name: tuple(shapes[name]) for name in ("extra", "contraction")}
    made: dict[str, Any] = {each.name: data[each.name] for each in fields(Capabilities)}
    made |= {
        "ops": _claims(data["ops"]),
        "kernels": _claims(data["kernels"]),
        "limits": Limits(**data["limits"]),
        "numerics": Numerics(**data["numerics"]),
        "shapes": Shapes(**shapes),
    }
    return Capabilities(**made)


def _claims(data: Mapping[str, Any]) -> Claims:
    return {claim: frozenset(BY_NAME[name] for name in names) for claim, names in data.items()}
