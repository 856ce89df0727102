"""Where a run took place, as plain data: versions, the device, and all it declares."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bringup.backend.capabilities import Capabilities, Claims, Numerics, Shapes
from bringup.backend.registry import list_backends
from bringup.dtypes import BY_NAME, DType
from bringup.kernel.limits import Limits
from bringup_conformance.execution.code_coverage import packages_of
from bringup_conformance.execution.targets import DeviceTarget, Target
from bringup_conformance.reporting.failures import suite_version


def environment(target: Target) -> dict[str, Any]:
    """The device, its product and details, all that it declares, versions of what took part, and
    hashes of the plugin's code.

    Of a target that is no opened device, the product is its name.
    """
    return {
        "device": target.name,
        "suite": suite_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": f"{sys.platform}-{platform.machine()}",
        **product(target),
        "plugin": plugin(target),
        "code": code(target),
        "capabilities": plain(target.capabilities),
    }


def plugin(target: Target) -> dict[str, str]:
    """The version of the distribution that brings a device's backend, by name; empty for a target
    that no plugin brings.
    """
    name = target.name.partition(":")[0]
    backends = (each for each in list_backends() if each.name == name)
    return {
        each.distribution: each.version for each in backends if isinstance(target, DeviceTarget)
    }


def code(target: Target) -> dict[str, str]:
    """A hash of the files of each package that brings a device's backend, since what is changed and
    installed again may keep its version; empty for a target that no plugin brings.
    """
    if not plugin(target):
        return {}
    return {package: _hash(package) for package in packages_of(target.name)}


def _hash(package: str) -> str:
    """A hash of the files of a package or module, without bytecode."""
    spec = find_spec(package)
    assert spec is not None  # it brought the device
    roots = map(Path, spec.submodule_search_locations or [spec.origin or ""])
    return hash_of_files(
        (path.relative_to(root).as_posix(), path.read_bytes())
        for root in roots
        for path in (sorted(root.rglob("*")) if root.is_dir() else [root])
        if path.is_file() and path.parent.name != "__pycache__"
    )


def hash_of_files(files: Iterable[tuple[str, bytes]]) -> str:
    """A hash of the names and contents of files, in their order."""
    total = hashlib.sha256()
    for name, content in files:
        total.update(name.encode() + b"\0" + content + b"\0")
    return total.hexdigest()


def product(target: Target) -> dict[str, Any]:
    """The device's product, and details such as the driver's version."""
    info = target.device.info if isinstance(target, DeviceTarget) else None
    return {
        "product": target.name if info is None else info.product,
        "details": {} if info is None else dict(info.details),
    }


def plain(value: object) -> Any:
    """Nested records, mappings and sets as JSON holds them.

    >>> from bringup.backend.capabilities import Capabilities
    >>> from bringup.dtypes import f16, f32
    >>> plain(Capabilities(ops={"add": frozenset({f32, f16})}))["ops"]
    {'add': ['f16', 'f32']}
    """
    if isinstance(value, DType):
        return value.name
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted((plain(each) for each in value), key=str)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def capabilities_of(data: Mapping[str, Any]) -> Capabilities:
    """The capabilities that `plain` turned into plain data.

    Raises KeyError or TypeError if it is something else.

    >>> from bringup.dtypes import f32
    >>> declared = Capabilities(ops={"add": frozenset({f32})}, shapes=Shapes(vector=8, extra=(3,)))
    >>> capabilities_of(plain(declared)) == declared
    True
    """
    shapes: dict[str, Any] = dict(data["shapes"])
    shapes |= {name: tuple(shapes[name]) for name in ("extra", "contraction")}
    values: dict[str, Any] = {each.name: data[each.name] for each in fields(Capabilities)}
    values |= {
        "ops": claims_of(data["ops"]),
        "kernels": claims_of(data["kernels"]),
        "limits": Limits(**data["limits"]),
        "numerics": Numerics(**data["numerics"]),
        "shapes": Shapes(**shapes),
    }
    return Capabilities(**values)


def claims_of(data: Mapping[str, Any]) -> Claims:
    """The claims that `plain` turned into plain data.  Raises KeyError for an unknown dtype."""
    return {claim: frozenset(BY_NAME[name] for name in names) for claim, names in data.items()}
