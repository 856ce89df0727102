"""``bringup devices``: one row per device, and one per backend without any."""

from __future__ import annotations

from collections.abc import Iterator

from bringup.backend.discovery import BackendStatus
from bringup.backend.registry import list_backends
from bringup.cli.output import document, line, table


def show(*, as_json: bool) -> None:
    """Print the devices of every backend.  Plugins are tried in interpreters of their own."""
    found = list(_devices(list_backends(probe=True)))
    if as_json:
        document({"devices": [row for row, _ in found]})
        return
    if not found:
        line("no backend is installed")
        return
    columns = ("name", "product", "state", "distribution", "version", "reason")
    cells = [[{**row, "product": product}[c] for c in columns] for row, product in found]
    table(columns, cells, apart=True)


def _devices(backends: list[BackendStatus]) -> Iterator[tuple[dict[str, str], str]]:
    for status in backends:
        row = {
            "name": status.name,
            "backend": status.name,
            "distribution": status.distribution,
            "version": status.version,
            "state": status.state,
            "reason": status.reason,
        }
        if not status.devices:
            yield row, ""
        for device in status.devices:
            spec = f"{status.name}:{device.index}" if device.index else status.name
            yield {**row, "name": spec}, device.product
