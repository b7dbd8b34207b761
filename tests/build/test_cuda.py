"""Backend "cuda". PyTorch's real load_inline, ninja and nvcc run here without a GPU; only what a
CPU build of PyTorch lacks is put in its place: two empty libraries to link with, and the word that
there is a GPU. Tests marked `cuda` launch on a real one."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from infonce_kernels import kernels
from infonce_kernels.build import BuildError, KernelLibrary, LaunchError, build, cuda, nvcc

HAS_GPU = torch.cuda.is_available()


@pytest.fixture(scope="session")
def empty_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    for name in ("c10_cuda", "torch_cuda"):
        command = ["g++", "-shared", "-x", "c++", os.devnull, "-o", folder / f"lib{name}.so"]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def h200(
    cache_root: Path,
    compiler: nvcc.Nvcc,
    empty_libraries: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A machine on which PyTorch seems to have an H200; returns the cache's entries' folder."""
    monkeypatch.setenv("LIBRARY_PATH", str(empty_libraries))  # searched after the real ones
    monkeypatch.setattr(torch.version, "cuda", compiler.version_text)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    return cache_root


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != "locks")


def surroundings() -> tuple[dict[str, str], Any, Any]:
    return dict(os.environ), cpp_extension.CUDA_HOME, cpp_extension.TORCH_LIB_PATH


def test_load_inline_takes_a_rung_and_changes_nothing_else(h200: Path) -> None:
    before = surroundings()
    text = kernels.source(kernels.names()[0]) + "// not yet loaded in this process\n"
    library = build(text, "cuda")
    assert surroundings() == before
    assert isinstance(library, KernelLibrary)
    assert {"infonce_forward", "infonce_backward"} <= set(library.launchers)
    assert " " in str(library.path)  # the cache's folder has a blank
    assert library.path.parent.parent == h200
    assert b"sm_90a" in library.path.read_bytes()  # the device code inside
    assert build(text, "cuda") is library


def test_it_compiles_what_plain_nvcc_compiles(h200: Path, scale_text: str) -> None:
    """PyTorch's own flags take the half types' operators away."""
    halves = "#include <cuda_fp16.h>\n" + scale_text.replace(
        "factor * x[i]", "__half2float(__float2half(factor) * __float2half(x[i]))"
    )
    assert build(halves, "cuda", name="halves").launchers.keys() == {"scale"}


def test_ninja_need_not_be_on_path(
    h200: Path, tmp_path: Path, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "everything but ninja"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).iterdir() if Path(folder).is_dir() else []:
            if tool.name != "ninja" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    assert shutil.which("ninja") is None
    assert "scale" in build(scale_text + "// without ninja on PATH\n", "cuda").launchers
    assert os.environ["PATH"] == str(tools)


def test_folders_with_blanks_work(
    h200: Path,
    tmp_path: Path,
    compiler: nvcc.Nvcc,
    scale_text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The toolkit's, PyTorch's (an environment inside such a clone) and the working folder."""
    here = tmp_path / "with space (1)"
    here.mkdir()
    (here / "cuda").symlink_to(compiler.home)
    (here / "torch").symlink_to(cpp_extension.TORCH_LIB_PATH)
    monkeypatch.setenv("CUDA_HOME", str(here / "cuda"))
    monkeypatch.setattr(cpp_extension, "TORCH_LIB_PATH", str(here / "torch"))
    monkeypatch.chdir(here)
    (here / "my kernel.cu").write_text(scale_text)
    assert "scale" in build("my kernel.cu", "cuda").launchers


def test_an_error_is_the_learners_and_leaves_nothing(
    h200: Path, compiler: nvcc.Nvcc, scale_text: str
) -> None:
    h200.mkdir(parents=True, exist_ok=True)
    before = entries(h200)
    with pytest.raises(BuildError) as caught:
        build(scale_text.replace("factor * x[i]", "factr * x[i]"), "cuda", name="mine")
    assert str(caught.value) == (
        'mine.cu:5: error: identifier "factr" is undefined\n'
        "    5 |   if (i < n) y[i] = factr * x[i];\n"
        "      |                     ^\n"
        f"compiler: {compiler.path} with {shutil.which(os.environ.get('CXX', 'c++'))}"
    )
    assert "ninja: build stopped" in caught.value.log
    assert entries(h200) == before
    assert "scale" in build(scale_text + "// corrected\n", "cuda", name="mine").launchers


def test_a_host_compiler_that_nvcc_refuses_is_named_with_its_line(
    h200: Path, tmp_path: Path, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a g++ that is too new is refused: the script says its version, and fails to compile."""
    script = tmp_path / "too_new_g++"  # no blank: torch 2.11 does not quote it
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exec g++ --version\n'
        "echo 'marker: unsupported GNU version'\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(BuildError) as caught:
        build(scale_text + "// refused\n", "cuda")
    end = "\n".join(str(caught.value).splitlines()[-60:])
    assert "marker: unsupported GNU version" in end and "too_new_g++" in end


@pytest.mark.parametrize(
    "compile_", [lambda text: build(text, "cuda"), lambda text: build(text, "compile")]
)
def test_a_missing_host_compiler_is_named(
    h200: Path,
    scale_text: str,
    compile_: Callable[[str], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(BuildError, match=r"/nonexistent/g\+\+, .*CXX.*install g\+\+.* or set CXX"):
        compile_(scale_text + "// no compiler\n")


def test_cxx_may_hold_a_launcher_and_options(
    h200: Path, tmp_path: Path, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mycache", "mine++"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {"g++" if name == "mine++" else ""} "$@"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(
        "CXX", "./mycache ./mine++ '-DZERO=(0 + 0)' -Wl,--build-id=0x1234567890abcdef"
    )
    before = surroundings()
    library = build(scale_text.replace("factor * x[i]", "(factor + ZERO) * x[i]"), "cuda")
    assert surroundings() == before
    assert bytes.fromhex("1234567890abcdef") in library.path.read_bytes()  # the linker's


def test_pypis_runtime_library_is_linked_under_its_plain_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypi, staging = tmp_path / "nvidia", tmp_path / "staging"
    (pypi / "cu13" / "lib").mkdir(parents=True)
    staging.mkdir()
    toolkit = nvcc.Nvcc(tmp_path / "nvcc", tmp_path / "toolkit", (13, 0))
    monkeypatch.setattr(nvcc, "pypi_folders", lambda: [pypi])
    with pytest.raises(BuildError, match=r"no libcudart.so for CUDA 13"):
        cuda._runtime_library_flags(toolkit, staging)
    (pypi / "cu13" / "lib" / "libcudart.so.13").write_text("the runtime")
    assert cuda._runtime_library_flags(toolkit, staging) == ["-L."]
    assert (staging / "libcudart.so").read_text() == "the runtime"


class FakeRuntime:
    @staticmethod
    def cudaError(code: int) -> int:
        return code

    @staticmethod
    def cudaGetErrorString(code: int) -> str:
        return f"what CUDA says of {code}"


@pytest.mark.skipif(HAS_GPU, reason="a null pointer would ruin a real GPU's context")
def test_a_failed_launch_is_an_error(
    h200: Path, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a driver CUDA's runtime refuses a launch: error 35, or 100 for no device."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda index: type("Stream", (), {"cuda_stream": 0})
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: FakeRuntime)
    library = build(scale_text, "cuda")
    with pytest.raises(LaunchError, match=r"scale failed: what CUDA says of (35|100) ") as caught:
        library.scale(None, None, 2.0, 1)
    assert caught.value.code in (35, 100)


def test_an_error_that_may_be_an_earlier_launchs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: FakeRuntime)
    assert "CUDA_LAUNCH_BLOCKING=1" in cuda.CudaDevice().failure(700)[0]
    assert "CUDA_LAUNCH_BLOCKING" not in cuda.CudaDevice().failure(9)[0]


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_edit_to_result_on_the_gpu(cache_root: Path, scale_text: str) -> None:
    start = time.perf_counter()
    library = build(scale_text + f"// edited {start}\n", "cuda")
    x = torch.randn(1000, device="cuda")
    y = torch.empty_like(x)
    library.scale(x, y, 3.0, x.numel())
    torch.testing.assert_close(y, 3.0 * x)
    assert time.perf_counter() - start < 10


@pytest.mark.cuda
def test_a_launch_is_on_the_current_stream(cache_root: Path, scale_text: str) -> None:
    """A captured graph holds exactly what went to the capturing stream."""
    library = build(scale_text, "cuda")
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.scale(x, y, 3.0, 1000)
    assert y.sum() == 0  # captured, not run
    graph.replay()
    assert y.sum() == 3000


@pytest.mark.cuda
def test_a_refused_launch_is_an_error_and_the_next_works(cache_root: Path, scale_text: str) -> None:
    library = build(scale_text.replace("128, 128, 0", "128, 2048, 0"), "cuda")
    x, y = torch.ones(10, device="cuda"), torch.zeros(10, device="cuda")
    with pytest.raises(LaunchError) as caught:
        library.scale(x, y, 2.0, 10)
    # A block has at most 1024 threads. An H200 with CUDA 13 says the first; the manual has both.
    assert str(caught.value) in {
        "scale failed: invalid argument (CUDA error 1)",
        "scale failed: invalid configuration argument (CUDA error 9)",
    }
    build(scale_text, "cuda").scale(x, y, 2.0, 10)
    assert y.sum() == 20


@pytest.mark.cuda
def test_operands_on_the_second_gpu_leave_the_first_current(
    cache_root: Path, scale_text: str
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    library = build(scale_text, "cuda")
    x = torch.randn(1000, device="cuda:1")
    y = torch.empty_like(x)
    library.scale(x, y, 3.0, 1000)
    torch.testing.assert_close(y, 3.0 * x)
    assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match=r"'y' .* is on cuda:0"):
        library.scale(x, torch.empty(1000, device="cuda:0"), 3.0, 1000)


@pytest.mark.cuda
def test_cpu_tensors_are_refused(cache_root: Path, scale_text: str) -> None:
    library = build(scale_text, "cuda")
    with pytest.raises(
        ValueError, match=r"'x' .* is on cpu, but backend 'cuda' takes cuda tensors"
    ):
        library.scale(torch.ones(1), torch.ones(1), 1.0, 1)
