"""A harness of GPUCodeForces' form, written from its description: python gpucodeforces.py FOLDER

Both models are built from get_init_inputs() and moved to the GPU; outputs are compared at
rtol = atol = 1e-5; after 100 warm-ups 1000 calls follow each other, timed by the host's clock.
Prints one line of JSON.
"""

import importlib
import json
import sys
import time

import torch


def mean_ms(model, inputs):
    for _ in range(100):
        model(*inputs)
    torch.cuda.synchronize()
    start = time.time()
    for _ in range(1000):
        model(*inputs)
    torch.cuda.synchronize()
    return (time.time() - start) * 1e3 / 1000


def main(folder):
    sys.path.insert(0, folder)
    original = importlib.import_module("example_torchcode")
    submitted = importlib.import_module("example_cudacode")
    to_gpu = [
        [x.cuda() if isinstance(x, torch.Tensor) else x for x in values]
        for values in (original.get_init_inputs(), original.get_inputs())
    ]
    init_inputs, inputs = to_gpu
    model = original.Model(*init_inputs).cuda().eval()
    model_new = submitted.ModelNew(*init_inputs).cuda().eval()
    with torch.no_grad():
        expected, output = model(*inputs), model_new(*inputs)
    ms, ms_new = mean_ms(model, inputs), mean_ms(model_new, inputs)
    return {
        "aligned": torch.allclose(expected, output, rtol=1e-5, atol=1e-5),
        "difference": (expected - output).abs().max().item(),
        "shapes": [list(expected.shape), list(output.shape)],
        "dtypes": [str(expected.dtype), str(output.dtype)],
        "ms": [ms, ms_new],
        "speedup": ms / ms_new,
    }


if __name__ == "__main__":
    sys.modules["infonce_kernels"] = None  # even where it is installed, importing it fails
    print(json.dumps(main(sys.argv[1])))
