"""What ``pytest --pyargs bringup_conformance --bringup-backend NAME`` collects: one test for each
op, dtype and feature of a device.  See `bringup_conformance.pytest_plugin`.
"""

from __future__ import annotations
