"""Libraries made ahead of time as devices: each program is linked, and run on its processor.

For the development of bringup: the suite's programs go through the same object files that an
export writes, on the processor itself or on one that QEMU or wasmtime emulates.
"""
