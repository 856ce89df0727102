"""Read ``bringup devices --json`` on stdin and answer one question.

``devices.py names DISTRIBUTION`` prints its device names; having none is an error.
``devices.py absent DEVICE`` checks that it is listed, is not ready and says why.
"""

from __future__ import annotations

import json
import sys


def rows_of(rows: list[dict[str, str]], distribution: str) -> list[dict[str, str]]:
    """The rows one distribution brought; none is an error, so that no check passes on nothing."""
    found = [row for row in rows if row["distribution"] == distribution]
    if not found:
        raise SystemExit(f"{distribution} is installed, but `bringup devices` does not list it")
    return found


def ready_names(rows: list[dict[str, str]], distribution: str) -> list[str]:
    """Names of its devices, every one of which must be ready."""
    found = rows_of(rows, distribution)
    for row in found:
        if row["state"] != "ready":
            raise SystemExit(f"{row['name']} is {row['state']}: {row['reason']}")
    return [row["name"] for row in found]


def check_absent(rows: list[dict[str, str]], device: str) -> list[str]:
    """One line for a device, which must say why it is not there."""
    found = [row for row in rows if row["name"] == device]
    if not found:
        raise SystemExit(f"`bringup devices` does not list {device}")
    for row in found:
        if row["state"] != "no hardware" or not row["reason"]:
            raise SystemExit(f"{device} should be 'no hardware' with a reason, but is {row}")
    return [f"{row['name']}: {row['state']}: {row['reason']}" for row in found]


if __name__ == "__main__":
    question = {"names": ready_names, "absent": check_absent}[sys.argv[1]]
    print("\n".join(question(json.load(sys.stdin)["devices"], sys.argv[2])))
