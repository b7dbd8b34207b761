"""The kernels' text: plain CUDA C++ that nvcc takes as it is, and v3 held to its letter."""

import re
import subprocess

import pytest
import torch

from infonce_kernels import build, kernels
from infonce_kernels.build import backends
from tests.paths import KERNELS
from tests.test_loss import draw

FILES = sorted([*kernels.FOLDER.glob("*.cu"), *kernels.FOLDER.glob("*.cuh")])
needs_nvcc = pytest.mark.skipif(
    backends()["compile"] is not None, reason=f"no nvcc: {backends()['compile']}"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_text_is_plain_cuda(path):
    text = re.sub(r"//[^\n]*", "", path.read_text())
    headers = re.findall(r"#include\s*([<\"][^>\"]+[>\"])", text)
    assert set(headers) <= {"<cuda_runtime.h>", "<cfloat>", "<cmath>", '"infonce.cuh"'}
    assert not re.search(r"\b(asm|__asm__|at::|c10::|torch|CUEMU\w*|cuemu\w*)\b", text)
    # No size of a warp is assumed: these rungs run on hardware whose warps are 64 wide too.
    assert not re.search(r"warpSize|__shfl|__ballot|__syncwarp|% 32|/ 32|& 31|>> 5", text)


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", KERNELS)
def test_nvcc_compiles_without_spills(name, arch):
    report = build(name, "compile", arch=arch)
    assert report.kernels
    for usage in report.kernels:
        assert usage.spill_stores == usage.spill_loads == 0, usage.name


@needs_nvcc
def test_v3_forward_has_a_single_global_store(tmp_path):
    """The hardware's view: one store instruction in the compiled forward kernel."""
    from infonce_kernels.build import nvcc

    ptx = tmp_path / "v3.ptx"
    command = [str(nvcc.find().path), "-std=c++17", "-arch=sm_80", "-ptx"]
    subprocess.run([*command, str(kernels.path("v3_fused")), "-o", str(ptx)], check=True)
    entries = re.split(r"\.entry ", ptx.read_text())[1:]
    forward = next(entry for entry in entries if "fused_forward_kernel" in entry.split("(")[0])
    assert len(re.findall(r"\bst\.global", forward)) == 1


def test_v3_is_the_original_design():
    """B blocks of 256 threads; s_dot, s_max and s_sum in shared memory; one write a query."""
    text = kernels.source("v3_fused")
    assert re.findall(r"__shared__ \w+ (s_dot|s_max|s_sum)\[", text) == ["s_dot", "s_max", "s_sum"]
    query, positive, negatives = draw(5, 300, 40)
    similarities = query @ negatives.T

    def forward(edited):
        library = build(edited, "emulator")
        loss = torch.zeros(5)
        library.infonce_forward(query, positive, similarities, loss, 0.1, None, 5, 300, 40)
        return loss.tolist()

    write = re.search(r"loss\[i\] = softplus\(.*\);", text).group()
    shape = "loss[i] = gridDim.x * 1e6f + gridDim.y * 1e5f + blockDim.x + 1e4f * blockDim.y;"
    assert forward(text.replace(write, shape)) == [5e6 + 1e5 + 256 + 1e4] * 5
    assert forward(text.replace(write, "atomicAdd(loss + i, 1.0f);")) == [1.0] * 5
    only_thread_0 = text.replace(write, "loss[i] = threadIdx.x == 0 ? 7.0f : 8.0f;")
    assert forward(only_thread_0) == [7.0] * 5


@pytest.mark.parametrize("name", KERNELS)
def test_names_and_sources(name):
    assert name in kernels.names()
    assert kernels.source(name).startswith(f"// {name}: ")
    with pytest.raises(ValueError, match="v3_fused"):
        kernels.path("v9")
