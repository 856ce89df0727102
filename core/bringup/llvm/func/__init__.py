"""Functions of the loop level as LLVM text for CPUs, and the schedules that make them fast."""
