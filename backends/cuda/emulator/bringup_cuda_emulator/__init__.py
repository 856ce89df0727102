"""GPU kernels on the host: the LLVM IR that goes to NVPTX, run thread by thread and checked.


>>> run(text, "kernel", grid=4, block=256, args=[x, y])  # doctest: +SKIP

Arrays among the arguments are copied to the emulated GPU and back.  `driver` is the same as
``pycuda.driver``; the device ``cuda-emulated`` runs on it.

How: LLVM parses and prints the module, `rewrite` puts a call before each access to memory and a
call of a shim (`shims`) in the place of each intrinsic, and LLVM compiles that for the host.  Each
thread of a block is a fibre that goes on until it must wait (`machine`, `meeting`); blocks run one
after another.  Where no thread waits for another they are simply called in turn.

What raises `EmulatorError`, with the kernel, the threads, the instructions and the address:

* data races in shared and in global memory, of a block's threads and of blocks: two accesses, one
  of them a write and not both atomic, that no barrier, no synchronisation of the warp and nothing
  published by an atomic puts in order; that a warp goes in step is no order;
* accesses out of bounds: of an allocation, of a variable in shared memory, and of the buffer behind
  an argument (`bringup_cuda.codegen.commands`); misaligned ones; ones of another address space;
* reads of shared memory that this block has not written; accesses to what an asynchronous copy is
  still writing;
* barriers and warp instructions that threads reach apart, with wrong masks, or not at all;
  shuffles from lanes that take no part; waits for a value that never comes;
* products of warpgroups whose threads go apart, whose descriptors describe nothing, which read what
  their writer has not shown to tensor cores or what is overwritten before they are waited for, and
  sums that are used, changed or dropped before that.

What it does not see: uninitialised global memory; races between launches in different streams,
other than by their results, for which work is run late and in orders that a seed picks; orders that
barriers of some warps leave open, which it takes as barriers of all; time.  Blocks that wait for
blocks after them never end, though hardware may run them at once.  Sums of tensor cores are rounded
in an order of its own.
"""

from __future__ import annotations

from bringup_cuda_emulator.gpu import EmulatorError, Finding, Gpu, Place, run
from bringup_cuda_emulator.native import Loaded, load

__all__ = ["EmulatorError", "Finding", "Gpu", "Loaded", "Place", "load", "run"]
