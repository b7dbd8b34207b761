import shutil
from pathlib import Path

import pytest

from infonce_kernels.build import BackendUnavailable, nvcc

SCALE = """#include <cuda_runtime.h>

__global__ void scale_kernel(const float* x, float* y, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}

extern "C" cudaError_t scale(const float* x, float* y, float factor, int n, cudaStream_t stream) {
  if (n > 0) scale_kernel<<<(n + 127) / 128, 128, 0, stream>>>(x, y, factor, n);
  return cudaGetLastError();
}
"""


@pytest.fixture
def scale_text() -> str:
    """A kernel of the tests' own: y = factor * x."""
    return SCALE


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of this folder; it has a blank and brackets in its name."""
    return tmp_path_factory.mktemp("ext dir (1)", numbered=False)


@pytest.fixture
def cache_root(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared cache in use; returns the folder that holds its entries."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(session_cache))
    return session_cache / "infonce_kernels"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with nothing in it; returns the folder that will hold its entries."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "infonce_kernels"


@pytest.fixture
def compiler() -> nvcc.Nvcc:
    """The nvcc of this machine; tests that need it are skipped where there is none."""
    try:
        return nvcc.find()
    except BackendUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def gxx() -> str:
    path = shutil.which("g++")
    if path is None:
        pytest.skip("no g++ here")
    return path
