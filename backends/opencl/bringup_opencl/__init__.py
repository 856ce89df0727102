"""A backend for whatever has an OpenCL driver: loops that core renders as OpenCL C."""

import os

# Read when the driver and pyopencl are imported.  PoCL runs whatever stands in its own cache,
# damaged or written by others, and pyopencl cannot be imported where its cache is no folder.  Built
# programs are kept by this package, with a checksum, so neither needs one.
for _name, _value in (("POCL_KERNEL_CACHE", "0"), ("PYOPENCL_NO_CACHE", "1")):
    os.environ.setdefault(_name, _value)
