"""CUDA C++ on the CPU.

A kernel file is rewritten line by line into plain C++ (:func:`rewrite`), compiled by the system's
compiler (:mod:`toolchain`) into a small module, and run by a library (:class:`Runtime`) in which
every CUDA thread is a fiber: barriers, warp shuffles, shared memory and atomics do what they do on
a GPU, and a fault in a kernel becomes a Python error.

The emulator knows nothing of any particular kernel. It has no caches and no clock: it shows what a
kernel computes, not how fast.
"""

from infonce_kernels.emulator import toolchain
from infonce_kernels.emulator.fence import Array, Fence
from infonce_kernels.emulator.rewriter import rewrite
from infonce_kernels.emulator.runtime import EmulatorError, EmulatorWarning, Runtime
from infonce_kernels.emulator.unsupported import UnsupportedFeature

__all__ = [
    "Array",
    "EmulatorError",
    "EmulatorWarning",
    "Fence",
    "Runtime",
    "UnsupportedFeature",
    "rewrite",
    "toolchain",
]
