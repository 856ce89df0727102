"""What the suite does with each field and method of the seam, and what breaks where it is wrong.

`docs/generate.py` puts the rows into the page of the seam, and refuses if one is missing, is of
nothing, or names a rule that is not there.
"""

from __future__ import annotations

#: By ``Class.name``: what the suite does, and what a user of the device meets if it is wrong.
CHECKED: dict[str, tuple[str, str]] = {
    # Declarations.
    "Capabilities.ops": (
        "runs every claim with every dtype on special values, odd sizes and all its attributes "
        "(level `ops`); `declaration.claims-run`",
        "A claim that fails is a failure. A missing one is decomposed, which takes more launches, "
        "or listed as unsupported.",
    ),
    "Capabilities.kernels": (
        "runs every claim alone, and within fused programs (level `fusion`)",
        "One too many: kernels that `render` refuses or gets wrong. A missing one: the op ends a "
        "kernel, so that its operands and results go through memory.",
    ),
    "Capabilities.limits": ("see `Limits`", "See `Limits`."),
    "Capabilities.numerics": ("computes all bounds from it; see `Numerics`", "See `Numerics`."),
    "Capabilities.shapes": ("takes sizes from it; see `Shapes`", "Faults at edges are not met."),
    "Capabilities.alignment": (
        "looks at addresses that the host sees, lends memory that is aligned so, and places "
        "buffers of odd sizes at every multiple of it; `memory.aligned`, `memory.borrowed`",
        "Too small: vector accesses of the device fault, or are slow. Too large: memory between "
        "slots of the arena is wasted.",
    ),
    "Capabilities.asynchronous": (
        "queues much work and looks for late errors; `stream.*`, `errors.late-error-told`, "
        "`errors.late-error-once`",
        "False on a device that queues: the host reads memory before it is written. True on one "
        "that waits: nothing but a wait too many.",
    ),
    "Capabilities.donation": (
        "donates inputs and looks at what is left of them; `donation.*`",
        "True where an executable keeps its inputs: an array changes that somebody holds. False: "
        "a step of training takes its parameters twice.",
    ),
    "Capabilities.deterministic": (
        "compares the bits of two runs and of two compilations; `repeat.run-equal`, "
        "`repeat.compile-equal`",
        "True on a device that adds in any order: failures that come and go. False: a race goes "
        "unnoticed as long as it stays within the bounds.",
    ),
    "Capabilities.simulated": (
        "runs fewer and smaller programs, and only lowers the largest",
        "False on a simulator: hours. True on a chip: large sizes are not run.",
    ),
    "Capabilities.target": (
        "lowers programs without the device; `declaration.lowered-equal`",
        "Dumps and libraries made ahead of time are those of another machine.",
    ),
    "Limits.rank": (
        "runs programs of this rank, and expects one more to be refused; `limits.rank`",
        "Too high: the code of the device indexes past its own tables. Too low: programs are "
        "refused.",
    ),
    "Limits.elements": (
        "expects one more to be refused, and moves arrays of more than 2^31 bytes where they are "
        "allowed; `limits.rank`, `limits.past-31-bits`",
        "Too high: indices of 32 bits wrap. Too low: arrays are refused.",
    ),
    "Limits.buffers": (
        "runs programs with three more operands, and results, than that; `limits.buffers`",
        "Too high: launches fail for their arguments. Too low: chains are cut into more launches.",
    ),
    "Limits.stages": (
        "runs norms, softmax and other kernels of several stages (level `fusion`)",
        "Too high: kernels that `render` cannot write. Too low: softmax is several launches.",
    ),
    "Limits.row_elements": (
        "runs rows below it and longer ones; `limits.long-rows`",
        "Too high: rows that fit no cache are read once for each stage. Too low: more launches.",
    ),
    "Limits.tile_bytes": (
        "runs kernels with tiles of rows at the sizes of `Shapes` (level `fusion`)",
        "Too high: a launch is refused by the driver, or a stack ends. Too low: rows go through "
        "memory between stages.",
    ),
    "Limits.memory_bytes": (
        "takes most of it again and again, up to 4 GiB, and skips arrays that do not fit; "
        "`lifetime.reusable`, `limits.past-31-bits`",
        "Too high or 0: large cases end in a shortage of memory. Too low: they are not run.",
    ),
    "Limits.loop_runs": (
        "runs loops of known length, whose launches are then those of one program",
        "Too high: programs with many launches, which take memory. Too low: core runs each body as "
        "a program of its own.",
    ),
    "Numerics.flush_subnormals": (
        "allows 0 for subnormal operands and results",
        "False on a device that flushes: failures at special values. True on one that does not: "
        "faults near 0 pass.",
    ),
    "Numerics.excess_precision": (
        "allows results of a kernel that were not rounded in between",
        "False on a device that keeps more bits: failures of fused programs in f16 and bf16. "
        "True: conversions that are left out pass.",
    ),
    "Numerics.longest_chain": (
        "widens bounds of sums by it; `numerics.sums`",
        "Shorter than the device's chains: long sums are called wrong. Longer: sums that lose "
        "digits pass.",
    ),
    "Shapes.vector": (
        "takes lengths of one less, the same and one more, and several of it",
        "Remainders behind the last vector are tested only by luck.",
    ),
    "Shapes.block": (
        "takes lengths of one less, the same and one more",
        "Remainders of blocks and units are tested only by luck.",
    ),
    "Shapes.extra": (
        "takes these lengths, one less and one more",
        "A length at which the code changes path is tested only by luck.",
    ),
    "Shapes.contraction": (
        "takes sides and depths of products of one less, the same and one more",
        "Edges of tiles of products are tested only by luck.",
    ),
    "Shapes.products": (
        "multiplies factors just below and above it",
        "The path of large products, such as packing, is not met.",
    ),
    "Shapes.panel": (
        "nothing: results do not depend on it",
        "Wrong: known weights are packed in an order that products do not read, and packed again.",
    ),
    "Handshake.api": (
        "nothing: core asks before any device is opened",
        "Too wide: an error of Python somewhere at a level the plugin was not written for. Too "
        "narrow: core refuses the plugin in one sentence.",
    ),
    "Handshake.opset": (
        "nothing: core asks before any device is opened",
        "Too wide: ops that mean something else. Too narrow: refused, as by `api`.",
    ),
    "DeviceInfo.index": (
        "looks for the device under its number; `declaration.lists-itself`",
        '`device="name:1"` opens another device.',
    ),
    "DeviceInfo.product": (
        "asks that it is there, and writes it into reports; `declaration.lists-itself`",
        "Certificates of different products look alike.",
    ),
    "DeviceInfo.details": (
        "writes them into reports, and compares them when runs are compared or resumed",
        "A new driver looks like the old one.",
    ),
    # Backend.
    "Backend.name": (
        "opens devices by it",
        '`device="name"` does not find the backend.',
    ),
    "Backend.devices": (
        "looks for the device in the list; `declaration.lists-itself`",
        "Raises anything but NoHardware: the backend is called broken, and not without hardware.",
    ),
    "Backend.capabilities": (
        "asks twice, without the device and with it; `declaration.without-hardware`",
        "Programs that are lowered or exported without the device are not those that run on it.",
    ),
    "Backend.targets": (
        "lowers programs of every size for each; `declaration.targets-lowered`",
        "`bringup dump --target` and libraries fail for a target that is named.",
    ),
    "Backend.target": (
        "runs what is scheduled by it; no number of it is checked by itself",
        "See `Target`.",
    ),
    "Backend.open": (
        "opens the device in each of its processes, and an index that is not there; "
        "`placement.device-asked`",
        "Work runs on another device than was asked for.",
    ),
    "Backend.passes_before_fusion": (
        "runs all programs through them, and blames one if programs are right without it",
        "A pass that changes values makes every program wrong that it touches.",
    ),
    "Backend.passes_after_fusion": (
        "runs all kernels through them, and tells them apart from fusion when it looks for the "
        "cause of a failure",
        "A pass that changes values makes every kernel wrong that it touches.",
    ),
    "Backend.chunk_length": (
        "folds long rows at few points, within the bound of the declared chain; `numerics.sums`",
        "An answer that depends on workers changes the bits of sums from machine to machine.",
    ),
    "Backend.scheduled": (
        "nothing: it is for dumps and tuning",
        "Dumps show other loops than run, and `bringup tune` measures others.",
    ),
    "Backend.scheduled_step": (
        "nothing: it is for dumps",
        "Dumps show other functions of the op library than run.",
    ),
    "Backend.schedule_tables": (
        "runs programs with what is found there",
        "A table for another machine makes kernels slow; a step that does not fit is an error.",
    ),
    "Backend.lower": (
        "lowers each program twice and compares the texts; `declaration.lowered-equal`",
        "Dumps do not show what runs.",
    ),
    "Backend.link": ("nothing; it is no part of the level's promise yet", "No libraries."),
    "Backend.link_targets": ("nothing; as `link`", "No libraries for what it leaves out."),
    # Devices.
    "Device.capabilities": (
        "compares them with the backend's; `declaration.without-hardware`",
        "As of `Backend.capabilities`.",
    ),
    "Device.refcounted_handles": (
        "frees handles itself, or drops them, accordingly; `lifetime.freed-once`",
        "True without such handles: all memory leaks. False with them: memory is freed twice.",
    ),
    "Device.alloc": (
        "takes sizes of 0, odd and huge ones, from several threads, and until there is no memory; "
        "`memory.*`, `errors.out-of-memory`, `threads.memory-concurrent`",
        "Overlapping memory: arrays change by themselves. Another error than OutOfMemoryError: "
        "core does not collect and ask again.",
    ),
    "Device.free": (
        "frees what queued work still uses, and counts; `stream.free-in-flight`, `lifetime.*`",
        "Memory is given to others too early, or never.",
    ),
    "Device.upload": (
        "uploads every dtype and layout, then overwrites the source at once; "
        "`transfer.source-reusable`, `transfer.round-trip`",
        "Values of the next batch in this one.",
    ),
    "Device.download": (
        "downloads behind long queues, and parts; `stream.download-ordered`, `transfer.prefix`",
        "Results from before the work was done.",
    ),
    "Device.copy": (
        "copies any number of bytes between queued work; `transfer.copy-exact`, "
        "`stream.read-after-write`",
        "Arrays that are copied change with their source, or miss their last bytes.",
    ),
    "Device.synchronize": (
        "waits, then looks that all is done; has a layer above the device fail late, as it cannot "
        "make work of the device fail; `stream.synchronize-completes`, `errors.late-error-once`",
        "Errors are lost, told again and again, or, without their step, told of all work at once.",
    ),
    "Device.compile": (
        "compiles all programs, many at once, from threads and processes; `cache.*`, "
        "`threads.compile-concurrent`, `lifetime.compiles-balanced`",
        "Wrong values, or another program's.",
    ),
    "Device.host_view": (
        "compares it with a download, keeps it past its handle; `memory.host-view`",
        "Stale values, or a crash when the view outlives the memory. None costs a copy.",
    ),
    "Device.borrow": (
        "computes on lent memory, gives up the lender's own name for it; `memory.borrowed`",
        "A crash when the host's memory is gone, or inputs of the user that change. None costs a "
        "copy.",
    ),
    "Device.exchange": (
        "exchanges arrays by DLPack, of both versions of the protocol; `transfer.round-trip`",
        "Other libraries read memory before it is written. None goes by way of the host.",
    ),
    "Device.adopt": (
        "moves arrays between devices of the backend; `transfer.between-devices`",
        "Values from before the work was done. None goes by way of the host.",
    ),
    "Device.dispatcher": (
        "calls programs with all sorts of arguments; `errors.wrong-operands`",
        "Calls answered with another program. None costs some microseconds a call.",
    ),
    "Device.close": (
        "uses arrays, programs and new memory of a closed device; `lifetime.after-close`",
        "The process ends with a crash.",
    ),
    "Executable.__call__": (
        "runs programs with guard bands round all memory, donated and not; "
        "`memory.input-unchanged`, `memory.outside-untouched`, `aliasing.*`",
        "Arrays change that nobody wrote to.",
    ),
    "OpsDevice.ops": (
        "calls each function by programs of one instruction, and run op by op; `numerics.unfused`",
        "A function for another op's name gives wrong values.",
    ),
    "RenderingDevice.render": (
        "renders every kernel, and equal ones once; `cache.key-structure`",
        "Wrong values; the suite shrinks the program and names the kernel.",
    ),
    "RenderingDevice.load": (
        "loads what was rendered, in every process; `cache.processes-concurrent`",
        "Errors of the compiler that are not CompileError lose the kernel's name.",
    ),
    "RenderingDevice.build": (
        "compiles programs of many kernels; `limits.many-instructions`",
        "Kernels mixed up.",
    ),
    "RenderingDevice.build_quickly": (
        "runs most of its programs above smoke by it, as `limits.many-instructions`",
        "As `build`; a suite that takes long, where it is only the same.",
    ),
    "RenderingDevice.launch": (
        "launches on views at any offset; `memory.outside-untouched`, `limits.empty`",
        "An offset that is ignored: values from the start of the arena.",
    ),
    "RenderingDevice.lower_step": ("nothing by itself", "Another kernel runs than is shown."),
    "RenderingDevice.scratch_bytes": (
        "runs kernels that ask for it; `repeat.no-state`",
        "Too few: memory behind it is overwritten.",
    ),
    "LoopsDevice.schedule": (
        "runs all programs so; steps that could change a value are refused",
        "Slow kernels, or an error that names the step.",
    ),
    "LoopsDevice.scheduled": ("as `schedule`", "As `schedule`."),
    "LoopsDevice.target": ("as of `Backend.target`", "See `Target`."),
    # Numbers of a machine.
    "Target.name": (
        "nothing",
        "Schedules that were found are looked for under another name.",
    ),
    "Target.vector_bits": ("nothing: no number changes a value", "Vectors too short, or spilled."),
    "Target.registers": ("nothing", "Tiles too small, or spilled."),
    "Target.thread_registers": ("nothing", "The same, for threads of a GPU."),
    "Target.line_bytes": ("nothing", "Memory is read in parts of its lines."),
    "Target.cache_bytes": ("nothing", "Blocks that fit no cache."),
    "Target.threads": ("nothing", "Idle cores, or many short units."),
    "Target.warp": (
        "runs folds that exchange values between threads",
        "Too large: values of threads that do not run in step; wrong results.",
    ),
    "Target.block": ("nothing", "Few threads, or few blocks."),
    "Target.most_threads": (
        "runs kernels that use it",
        "Too large: the driver refuses the launch.",
    ),
    "Target.shared_bytes": (
        "runs kernels that use it",
        "Too large: the driver refuses the launch.",
    ),
    "Target.multiprocessors": ("nothing", "Idle cores."),
    "Target.instructions": (
        "runs kernels that use them",
        "One too many: the device's compiler refuses the kernel. One missing: slower kernels.",
    ),
    "Target.launch_instructions": (
        "runs programs of short functions, which are then launched together",
        "Too high: one thread does what several had done sooner. Too low: launches that cost more "
        "than what they run.",
    ),
}

#: Of each kind of work, in which memory it may write beside memory of its own.
ALIASED = (
    (
        "a program that is called",
        "nothing else, but for the donated inputs that `Program.aliases` names "
        "(`aliasing.outputs-own`)",
    ),
    (
        "a kernel",
        "an input, the same view of it, if every element is read only where, and no later than, it "
        "is written: [the kernel form](../explanation/kernels.md#what-may-share-memory)",
    ),
    (
        "a function of loops",
        "an input, if an iteration of the outermost parallel loops reads there only what it alone "
        "writes: [the loop form](../explanation/loops.md#how-to-read-it)",
    ),
    (
        "the ops {in_place}",
        "their first operand, the same view of it, which is then changed where it stands",
    ),
    (
        "any other op, movement ops too",
        "none of its operands: a result is dense memory of its own, and no op gives a view",
    ),
    (
        "a loop step",
        "of a part that the body changes in place, its operand; of a carried part, its result and "
        "its `spare` in turn",
    ),
    ("a branch step", "none of its operands"),
    ("a copy, an upload, a download", "nothing that they read"),
    ("`host_view`, `borrow`, DLPack", "the array itself"),
)
