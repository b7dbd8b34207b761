"""InfoNCE from a naive CUDA kernel to the speed of light, on a GPU or without one.

`info_nce` and `InfoNCE` are the loss; `build` turns CUDA C++ text into something to call, `source`
gives a rung's text, `ladder` lists the rungs, and `verify` holds them against float64.
"""

from infonce_kernels import ladder
from infonce_kernels.build import build
from infonce_kernels.kernels import source
from infonce_kernels.loss import InfoNCE, info_nce
from infonce_kernels.verify import verify

__version__ = "0.1.0"
__all__ = ["InfoNCE", "build", "info_nce", "ladder", "source", "verify"]
