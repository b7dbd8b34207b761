import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infonce_kernels.build import (
    BackendUnavailable,
    CompileReport,
    KernelLibrary,
    backends,
    build,
    nvcc,
)


def test_every_backend_has_a_verdict_of_one_line() -> None:
    found = backends()
    assert list(found) == ["cuda", "emulator", "compile"]
    assert all(reason is None or "\n" not in reason for reason in found.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_auto_is_the_emulator_where_there_is_no_gpu(cache_root: Path, scale_text: str) -> None:
    library = build(scale_text)
    assert isinstance(library, KernelLibrary)
    assert library.backend == "emulator"
    with pytest.raises(BackendUnavailable) as caught:
        build(scale_text, "cuda")
    assert str(caught.value) == backends()["cuda"]


@pytest.mark.cuda
def test_auto_is_the_gpu_where_there_is_one(cache_root: Path, scale_text: str) -> None:
    assert backends()["cuda"] is None
    assert build(scale_text).backend == "cuda"


def test_an_unknown_backend_is_named(scale_text: str) -> None:
    with pytest.raises(ValueError, match='"auto", "cuda", "emulator" or "compile", not \'hip\''):
        build(scale_text, "hip")
    with pytest.raises(ValueError, match='arch is for backend "compile"'):
        build(scale_text, "emulator", arch="sm_90")


@pytest.mark.parametrize("backend", ["emulator", "compile"])
def test_a_cached_build_is_quiet(
    backend: str,
    cache_root: Path,
    scale_text: str,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if backend == "compile":
        request.getfixturevalue("compiler")
    monkeypatch.delenv("INFONCE_KERNELS_QUIET", raising=False)
    text = scale_text + f"// quiet when cached, {backend}\n"
    build(text, backend, name="mine")
    assert "building mine for " in capsys.readouterr().err
    build(text, backend, name="mine")
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""


def test_no_cuda_home_and_no_nvcc_leave_the_emulator(
    cache_root: Path, scale_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(nvcc, "_candidates", lambda: iter(()))
    found = backends()
    assert found["emulator"] is None
    assert found["compile"] is not None and "pip install" in found["compile"]
    assert isinstance(build(scale_text, "emulator"), KernelLibrary)


def test_the_reports_are_for_any_rung(cache_root: Path, compiler: nvcc.Nvcc) -> None:
    report = build("v1_naive", "compile", arch="sm_80")
    assert isinstance(report, CompileReport)
    assert report.name == "v1_naive" and len(report.kernels) > 1


PROGRAM = """
import os, threading, torch
def state():
    # PyTorch sets this one itself, whenever its compiler is imported.
    environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    return (environment, os.getcwd(), torch.get_default_dtype(), torch.get_num_threads(),
            torch.initial_seed(), torch.random.get_rng_state().sum().item(),
            torch.is_grad_enabled(), torch.backends.cuda.matmul.allow_tf32,
            torch.get_float32_matmul_precision(), threading.active_count(),
            torch.cuda.is_initialized())
before = state()
import infonce_kernels.build
assert state() == before
"""


def test_import_changes_no_state_and_writes_nothing(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        check=True,
    )
    assert list(tmp_path.iterdir()) == []
