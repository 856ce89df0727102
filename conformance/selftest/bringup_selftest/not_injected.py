"""What the list of faults holds and the corpus does not inject, each with the reason."""

from __future__ import annotations

#: Lines that no fault behind the seam can show.
NOT_INJECTED: dict[str, str] = {
    "RD03": "core folds reductions over no elements, dots of no products among them",
    "RD17": "core folds reductions of single numbers",
    "BR04": "devices see dense arrays: hosts lay out transposed ones before an upload",
    "BR05": "devices see dense arrays: hosts lay out reversed ones before an upload",
    "BR09": "copies of the seam have no strides",
    "ER01": "core compares operands with the program before a device sees them; checks of "
    "`errors.wrong-operands` look at that",
    "ER03": "core gives a device what it declares and nothing else, and falls back when asked "
    "alone; `errors.unsupported-refused` and `placement.complete` look at that",
    "TS14a": "a wait that forgets an error: nothing that the suite compiles fails late on a right "
    "device; `errors.late-error-told` has the layer above the device fail late instead",
    "ER11": "discovery is core's, before any backend is loaded; tests of core plant broken plugins",
}
#: Parts of lines that are injected otherwise than they are written.
INJECTED_AS: dict[str, str] = {
    "IX04": "offsets wrap at 2^18 bytes instead of 2^31, which only level `exhaustive` meets",
    "SO05": "top-k is a sort and a slice here: the last of a sorted line is lost",
    "IN05": "the odd value alone; a process that ends is a result of every run with workers",
    "CK04": "True, 1 and 1.0 of one dtype are one constant here, and of several dtypes differ in "
    "the program's types",
    "CK07": "the reference device keeps nothing on disk; its key leaves out the kernel's body",
    "ER04": "FU29a: f16 and bf16 computed in f32",
    "RN04": "normal numbers are made by core of fractions that are never 0; fractions are planted",
    "TS11": "no program of the suite fails late on a right device; an allocation does",
}
