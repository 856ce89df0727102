"""What the list of faults holds and the corpus does not plant, each with the reason."""

from __future__ import annotations

#: Lines that no fault behind the seam can show.
EXCUSED: dict[str, str] = {
    "ER01": "core compares operands with the program before a device sees them; checks of "
    "`errors.wrong-operands` look at that",
    "ER03": "core gives a device what it declares and nothing else, and falls back when asked "
    "alone; `errors.unsupported-refused` and `placement.complete` look at that",
    "ER11": "discovery is core's, before any backend is loaded; tests of core plant broken plugins",
}
#: Parts of lines that are planted otherwise than they are written.
PLANTED_AS: dict[str, str] = {
    "CK04": "True, 1 and 1.0 of one dtype are one constant here, and of several dtypes differ in "
    "the program's types",
    "CK07": "the reference device keeps nothing on disk; its key leaves out the kernel's body",
    "ER04": "FU29a: f16 and bf16 computed in f32",
    "RN04": "normal numbers are made by core of fractions that are never 0; fractions are planted",
    "TS11": "no program of the suite fails late on a right device; an allocation does",
}
