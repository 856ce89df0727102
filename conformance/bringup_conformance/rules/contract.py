"""The runtime contract: what a device promises beyond the values of one program.

One sentence each.  An id says what breaks where it is not kept, and is never given to another
sentence.
"""

from __future__ import annotations

from bringup_conformance.rules.form import Rule

#: What each area is about, in the order of the specification.
AREAS = {
    "memory": "What an allocation is.",
    "aliasing": "Which memory may be the same.",
    "transfer": "Bytes between host and device.",
    "stream": "Queued work: it looks as if it ran in the order in which it was queued.",
    "donation": "Inputs whose memory a call may take.",
    "cache": "Compiled programs that are used again.",
    "threads": "Calls from several threads.",
    "lifetime": "What is given back, and when.",
    "errors": "What is refused, and how.",
    "limits": "Sizes at the edge of what is declared.",
    "repeat": "The same call again.",
    "random": "Random numbers, which are a function of their key.",
    "placement": "Where work runs.",
    "declaration": "What the device says of itself.",
}

_SENTENCES = {
    "memory": {
        "input-unchanged": "A call changes no byte of an input that is not donated.",
        "outside-untouched": "A call, an upload or a copy writes no byte outside its target: "
        "guard bands before and behind it keep their content.",
        "contents-irrelevant": "No result depends on what scratch or output memory held before: a "
        "new allocation may hold any bytes.",
        "disjoint": "Two live allocations share no byte.",
        "contents-kept": "A live allocation keeps its bytes, whatever else is allocated, freed, "
        "copied or run.",
        "zero-bytes": "An allocation of 0 bytes succeeds, transfers nothing, is freed like any "
        "other, and never turns into memory that a later allocation owns.",
        "odd-sizes": "An allocation of any number of bytes holds them all, even if that is no "
        "multiple of a word or of the alignment.",
        "aligned": "Memory that the host can see starts at a multiple of the declared alignment.",
        "host-view": "A host view shows the bytes of its allocation after all work before it, and "
        "keeps that memory alive; or there is none.",
        "borrowed": "Memory of the host that the device borrows is read, never written, and kept "
        "until its handle is freed; or the device borrows none.",
        "scratch-sufficient": "Values that are live at the same time never overlap in the arena, "
        "whatever their sizes and dtypes.",
    },
    "aliasing": {
        "outputs-own": "An output shares its memory with nothing else: no input that is not "
        "donated, no earlier result, no constant.",
        "outputs-disjoint": "Two outputs of one call share no byte, even if they are equal.",
        "input-returned": "An input that is also an output comes back in memory of its own, unless "
        "it is donated.",
        "operand-twice": "One array passed as several operands is read as equal operands, and is "
        "not changed.",
        "in-place-safe": "Memory is overwritten in place only where nothing reads the old value "
        "later, not even through shifted, transposed or reshaped views.",
    },
    "transfer": {
        "round-trip": "What is uploaded is downloaded bit for bit: in every dtype, with NaN "
        "payloads, and in all sizes, including those above 256 KiB.",
        "source-reusable": "The host memory of an upload may be overwritten as soon as the call "
        "returns.",
        "source-kept": "An upload does not change the host memory that it reads.",
        "target-own": "A downloaded array belongs to the caller: no later work changes it.",
        "prefix": "A transfer of fewer bytes than an allocation has moves the first bytes and "
        "leaves the others unchanged.",
        "zero-bytes": "A transfer or copy of 0 bytes does nothing and succeeds.",
        "copy-exact": "A copy within the device moves exactly the bytes it is told to and leaves "
        "its source unchanged.",
        "between-devices": "An array that is moved to another device of the backend holds there "
        "what all work queued before gave it; its source stays unchanged.",
        "strided-source": "A host array that is transposed or strided is read by its elements, "
        "not by the order of its memory.",
        "reversed-source": "A host array with negative strides is read by its elements.",
        "broadcast-source": "A host array with strides of 0 is read by its elements.",
        "offset-source": "A host array that begins inside other memory, aligned or not, is read "
        "from its own beginning.",
    },
    "stream": {
        "read-after-write": "Work reads what the work queued before it wrote, without a wait in "
        "between.",
        "write-after-read": "Memory that queued work still reads is not overwritten by work "
        "queued later, be it an upload, a copy or a donation.",
        "download-ordered": "A download returns the results of all work queued before it, however "
        "long that takes.",
        "synchronize-completes": "Once a wait for all work returns, all of it is done.",
        "free-in-flight": "Memory freed while queued work uses it belongs to that work until it "
        "ends, and to nobody else.",
        "interleaved": "Programs called alternately on one device give what each gives alone.",
        "delays-harmless": "No result depends on how long any launch, transfer or wait takes.",
    },
    "donation": {
        "deleted": "An array donated to a call cannot be used afterwards: that is an error which "
        "names the donation.",
        "values-same": "Donation changes no value of any output.",
        "others-untouched": "Donating an input changes no other input.",
        "passed-twice": "An array that is passed twice and donated once is read right in both "
        "places.",
        "view-kept": "Whatever else reads the memory of a donated array, such as a host view, "
        "keeps its content.",
        "still-read": "A donated input that several outputs read is overwritten by an output only "
        "after the last of them has read it.",
        "returned-once": "The memory of a donated input becomes an output's or is given back, "
        "exactly once.",
    },
    "cache": {
        "hit-same": "A call that finds its program compiled gives the bits that the first call "
        "gave.",
        "compiled-once": "A program is compiled once: an equal function and the same operations, "
        "recorded again, find it.",
        "key-shape": "Programs that differ in a shape are different programs.",
        "key-dtype": "Programs that differ in a dtype are different programs.",
        "key-constant": "Programs that differ in the bits of a constant are different programs: "
        "0.0 and −0.0, true and 1, neighbours in the last place.",
        "key-attribute": "Programs that differ in an attribute are different programs: axis, "
        "direction, padding, accumulating dtype.",
        "key-operands": "Programs that differ in the order of operands are different programs.",
        "key-structure": "Programs that differ in which value an instruction reads, or which they "
        "return, are different programs.",
        "key-donation": "A program compiled with donation never serves a call without it.",
        "key-device": "A program compiled for one device never runs on another.",
        "key-lifetime": "A program that is gone leaves nothing behind that a later program is "
        "mistaken for.",
        "disk-same": "A program that another process compiled gives the same bits in this one.",
        "processes-concurrent": "Several processes that compile the same programs at once all get "
        "right results.",
    },
    "threads": {
        "calls-concurrent": "Several threads may call one program at once; each gets its own "
        "results.",
        "compile-concurrent": "Several threads may compile at once, even the same program.",
        "memory-concurrent": "Several threads may allocate, transfer and free at once.",
        "any-thread": "A result does not depend on the thread that calls, nor on the one that "
        "compiled.",
    },
    "lifetime": {
        "calls-balanced": "Calls give back what they take: once results are gone, allocations "
        "minus frees return to where they began.",
        "compiles-balanced": "Programs that are dropped give back what compiling took.",
        "errors-balanced": "A call or a compilation that fails gives back what it took.",
        "freed-once": "No memory is freed twice, and none that was not allocated.",
        "freed-unused": "Work that is queued later does not use freed memory.",
        "reusable": "Freed memory is reused: allocating and freeing alternately never exhausts "
        "the device.",
        "result-outlives": "A result stays readable when its program and its inputs are gone.",
        "programs-many": "Any number of programs may be alive at once.",
        "after-close": "Whatever is used after its device is closed, be it an array, a program or "
        "new memory, is right or refused by an error of bringup's device family; nothing ends the "
        "process.",
    },
    "errors": {
        "wrong-operands": "Operands whose number, shape or dtype differs from the program's are "
        "refused before anything runs.",
        "family": "A device raises errors of bringup's device family, never others.",
        "usable-after": "After an error the device runs the next program correctly.",
        "out-of-memory": "More memory than there is raises OutOfMemoryError, and the device stays "
        "usable.",
        "late-error-told": "An error of asynchronous work is raised for whoever looks at "
        "what depends on that work, each time.",
        "late-error-once": "A device raises an error of asynchronous work at one wait, whatever "
        "is waited for, names the step, and forgets the error; work that does not depend on it is "
        "not affected.",
        "no-trap": "No value of an operand, such as a divisor of 0, an index out of range or a "
        "shift by too much, ends or hangs the process.",
        "unsupported-refused": "What the device does not have is refused by name; nothing "
        "silently replaces it, not even a wider dtype.",
    },
    "limits": {
        "rank": "Programs at the declared rank run; beyond it they are refused by the name of the "
        "limit.",
        "buffers": "Programs with more operands and outputs than a kernel has buffers run, split.",
        "empty": "Arrays without elements pass through every kind of program.",
        "scalars": "Arrays of rank 0 pass through every kind of program.",
        "long-rows": "Rows longer than a kernel may revisit give the same sums and norms.",
        "past-31-bits": "Arrays of more than 2^31 bytes are moved, read and written to their end.",
        "many-instructions": "A program of a thousand instructions compiles and runs.",
    },
    "repeat": {
        "run-equal": "A second run on equal data gives the same bits, where that is declared.",
        "no-state": "A call leaves nothing behind that another call's result depends on.",
        "float-state": "No program changes how others round, flush or trap.",
        "compile-equal": "Compiling a program again gives a program whose results have the same "
        "bits.",
    },
    "random": {
        "same-key": "One key gives the same bits everywhere: in any program, fused or not, "
        "compiled anew, and on any device.",
        "keys-apart": "Keys that are split off or have numbers folded in are those of the "
        "reference, and all different.",
        "uniform-range": "Uniform numbers are at least 0 and below 1, and use the lowest bit of "
        "their dtype.",
        "normal-finite": "Normal numbers are finite, of both signs, and spread as they should be.",
    },
    "placement": {
        "device-asked": "Work runs on the device and index that was asked for, and its results are "
        "there.",
        "complete": "The placement of a program names every node, its device, and the reason.",
        "traced-equal": "A program gives the same results while a timeline is recorded.",
    },
    "declaration": {
        "without-hardware": "Capabilities are answered without opening the device, and are those "
        "of the device once it is opened.",
        "claims-run": "Everything that is claimed compiles and runs.",
        "lists-itself": "The backend lists the devices that can be opened, each with its product's "
        "name.",
        "lowered-equal": "A program that is lowered without the device has the same texts each "
        "time.",
        "targets-lowered": "What a target declares is lowered for it, for each that the backend "
        "names; a target of another name is refused.",
    },
}  # fmt: skip

# Rules about what only some devices declare: the field of the declaration.
_NEEDS = {
    "repeat.run-equal": "deterministic",
    "repeat.float-state": "deterministic",
    "repeat.compile-equal": "deterministic",
    "errors.late-error-told": "asynchronous",
    "errors.late-error-once": "asynchronous",
}

CONTRACT: tuple[Rule, ...] = tuple(
    Rule(f"{area}.{slug}", says, _NEEDS.get(f"{area}.{slug}", ""))
    for area, rules in _SENTENCES.items()
    for slug, says in rules.items()
)
