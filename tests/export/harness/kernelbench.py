"""A harness of KernelBench's form, written from its description:
python kernelbench.py MODEL.py MODEL_NEW.py fp32|fp16|bf16

Both sources run as strings in one namespace. Seed 42; tensors and models are cast to the precision;
forward under no_grad; 5 trials with inputs of their own, at atol = rtol = 1e-4 for fp32 and 1e-2
for half precision. Time: CUDA events, 3 warm-ups, 100 trials after one that is thrown away, 256 MB
written before each so that the caches are cold; the mean. Prints one line of JSON.
"""

import json
import sys

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def seed(number):
    torch.manual_seed(number)
    torch.cuda.manual_seed(number)


def cast(values, dtype):
    return [x.to("cuda", dtype) if isinstance(x, torch.Tensor) else x for x in values]


def mean_ms(model, inputs):
    for _ in range(3):
        model(*inputs)
        torch.cuda.synchronize()
    times = []
    for _ in range(101):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.full((256 << 20,), 1, dtype=torch.uint8, device="cuda")
        start.record()
        model(*inputs)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sum(times[1:]) / 100


def main(model_path, model_new_path, precision):
    dtype, tolerance = DTYPES[precision], 1e-4 if precision == "fp32" else 1e-2
    names = {}
    for path in (model_path, model_new_path):
        with open(path, encoding="utf-8") as file:
            exec(file.read(), names)
    seed(42)
    init_inputs = cast(names["get_init_inputs"](), dtype)
    models = []
    for name in ("Model", "ModelNew"):
        seed(42)
        models.append(names[name](*init_inputs).to("cuda", dtype))
    torch.manual_seed(42)
    trials, first = [], None
    with torch.no_grad():
        for number in [torch.randint(0, 2**32 - 1, ()).item() for _ in range(5)]:
            seed(number)
            inputs = cast(names["get_inputs"](), dtype)
            expected, output = (model(*inputs) for model in models)
            first = first or [expected, output]
            trials.append(torch.allclose(expected, output, rtol=tolerance, atol=tolerance))
        seed(42)
        inputs = cast(names["get_inputs"](), dtype)
        ms, ms_new = (mean_ms(model, inputs) for model in models)
    return {
        "aligned": all(trials) and len(trials) == 5,
        "difference": (first[0] - first[1]).abs().max().item(),
        "shapes": [list(x.shape) for x in first],
        "dtypes": [str(x.dtype) for x in first],
        "ms": [ms, ms_new],
        "speedup": ms / ms_new,
    }


if __name__ == "__main__":
    sys.modules["infonce_kernels"] = None  # even where it is installed, importing it fails
    print(json.dumps(main(*sys.argv[1:])))
