import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from infonce_kernels.build import (
    BackendUnavailable,
    BuildError,
    CompileReport,
    build,
    cuda,
    load,
    nvcc,
)


def fake_nvcc(folder: Path, version: str, home: Path | None = None) -> Path:
    """A toolkit whose nvcc does nothing but say its version and where it lives."""
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --dryrun ]; then echo "#\\$ TOP={home or folder}"; exit; fi\n'
        f"echo 'Cuda compilation tools, release {version}, V{version}.1'\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No CUDA anywhere: not in the environment, on PATH, in /usr/local or in site-packages."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    is_file = Path.is_file
    system = Path("/usr/local/cuda/bin/nvcc")
    monkeypatch.setattr(Path, "is_file", lambda path: path != system and is_file(path))
    monkeypatch.setattr(nvcc, "pypi_folders", list)
    return tmp_path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA 13 build of PyTorch that sees one H200."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_nothing_is_found_and_the_remedy_is_named(bare: Path) -> None:
    with pytest.raises(
        BackendUnavailable, match=r"no nvcc found; `pip install '\.\[nvcc\]'` in the"
    ):
        nvcc.find()


def test_cuda_home_decides(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_nvcc(bare / "with blank", "12.8")
    fake_nvcc(bare / "other", "13.0")
    monkeypatch.setenv("PATH", str(bare / "other" / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(bare / "with blank"))
    assert nvcc.find(13) == nvcc.Nvcc(path, bare / "with blank", (12, 8))
    monkeypatch.setenv("CUDA_HOME", str(bare / "absent"))
    with pytest.raises(
        BackendUnavailable, match=r"CUDA_HOME is .*absent.*set it to .* or unset it"
    ):
        nvcc.find()


def test_a_script_on_path_leads_to_the_toolkit(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "toolkit").mkdir()
    path = fake_nvcc(bare / "wrapper", "13.0", home=bare / "toolkit")
    monkeypatch.setenv("PATH", str(path.parent))
    assert nvcc.find() == nvcc.Nvcc(path, bare / "toolkit", (13, 0))


def test_pypis_toolkit_serves_where_its_version_fits(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    site = bare / "site packages"
    path = fake_nvcc(site / "nvidia" / "cu13", "13.0")
    (site / "nvidia" / "cu13" / "include").mkdir()
    (site / "nvidia" / "cu13" / "include" / "cuda_runtime.h").touch()
    system = fake_nvcc(bare / "system", "12.4")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(nvcc, "_candidates", lambda: iter([system, *pypi()]))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)

    def pypi() -> list[Path]:
        return [p for folder in nvcc.pypi_folders() for p in folder.glob("*/bin/nvcc")]

    assert path in pypi()
    assert nvcc.find(13).path == path
    assert nvcc.find(13).home == site / "nvidia" / "cu13"
    assert nvcc.find(12).path == system
    assert nvcc.find().path == system


def test_a_cpu_build_of_pytorch_says_so_in_one_line(
    compiler: nvcc.Nvcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BackendUnavailable, match=r"^this PyTorch \(.*\) is not a CUDA build.*"):
        cuda.check()


def test_a_missing_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable, match="no NVIDIA GPU"):
        cuda.check()


def test_a_gpu_without_nvcc_is_told(bare: Path, gpu: None) -> None:
    with pytest.raises(BackendUnavailable, match="no nvcc found; `pip install"):
        cuda.check()


def test_both_cuda_versions_are_named_where_they_differ(
    bare: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_nvcc(bare / "old", "12.6")
    monkeypatch.setenv("PATH", str(path.parent))
    message = f"{path} is CUDA 12.6, but this PyTorch was built for CUDA 13.0;.*set CUDA_HOME"
    with pytest.raises(BackendUnavailable, match=message):
        cuda.check()


def test_ninja_is_found_beside_the_interpreter(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "environment").mkdir()
    ninja = bare / "environment" / "ninja"
    ninja.write_text("#!/bin/sh\n")
    ninja.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare / "environment" / "python"))
    assert nvcc.find_ninja() == str(ninja)


def test_a_missing_ninja_is_named_in_one_line(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(bare / "empty" / "python"))
    monkeypatch.setattr(nvcc.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"^ninja was not found.*pip install ninja$"):
        nvcc.find_ninja()


def test_the_ninja_package_serves_without_path() -> None:
    """PATH that holds everything but ninja: the symptom of many notebooks."""
    found = nvcc.find_ninja()
    assert shutil.which(found) and os.path.basename(found) == "ninja"


@pytest.mark.parametrize("name", ["/nonexistent/g++", "fails"])
def test_a_host_compiler_that_does_not_run_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "fails"
    script.write_text("#!/bin/sh\necho 'marker: this compiler is out of order'\nexit 1\n")
    script.chmod(0o755)
    path = str(script) if name == "fails" else name
    monkeypatch.setenv("CXX", path)
    with pytest.raises(BuildError) as caught:
        nvcc.check_host_compiler("g++")
    assert path in str(caught.value) and "CXX" in str(caught.value)
    assert ("marker: this compiler is out of order" in str(caught.value)) == (name == "fails")


def program(path: Path, text: str = 'exec "$@"') -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path: Path, gxx: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a launcher `mycache` and a compiler `mine++`; no CXX, no CC."""
    program(tmp_path / "mycache")
    program(tmp_path / "mine++", f'exec {gxx} "$@"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def test_without_cxx_nvcc_takes_its_own_default(tools: Path) -> None:
    assert nvcc.host_compiler_flags() == []
    assert nvcc.check_host_compiler("c++") == shutil.which("c++")


@pytest.mark.parametrize(
    ("cxx", "options"),
    [
        ("./mine++", []),
        ("./mycache ./mine++", []),
        ("./mine++ -O1", ["-O1"]),
        ("./mycache ./mycache ./mine++ -Wl,-s '-DA=b c'", ["-Wl\\,-s", "'-DA=b c'"]),
    ],
)
def test_cxx_may_hold_a_launcher_and_options(
    cxx: str, options: list[str], tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", cxx)
    path = str(tools / "mine++")
    expected = ["-ccbin", path, *(word for option in options for word in ("-Xcompiler", option))]
    assert nvcc.host_compiler_flags() == expected
    assert nvcc.check_host_compiler("g++") == path


def test_what_nvcc_cannot_start_is_refused(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env A=1 g++")
    with pytest.raises(BuildError, match=r"CXX is 'env A=1 g\+\+', .*'A=1' is neither; set CXX"):
        nvcc.host_compiler_flags()


def test_an_open_quote_in_cxx_is_named(
    tools: Path, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "g++ 'x")
    with pytest.raises(BuildError, match=r"CXX is \"g\+\+ 'x\".*no closing quotation.*correct"):
        nvcc.host_compiler_flags()
    with pytest.raises(BackendUnavailable, match=r"CXX is \"g\+\+ 'x\""):
        build(scale_text, "emulator")


CXX = "./mycache ./mine++ -DNOTHING=0 '-DZERO=(0 + 0)'"


def with_macro(text: str) -> str:
    """A text that compiles only with the options of CXX."""
    return text.replace("factor * x[i]", "(factor + ZERO + NOTHING) * x[i]")


@pytest.mark.parametrize("backend", ["emulator", "compile"])
def test_every_backend_takes_the_same_cxx(
    backend: str,
    tools: Path,
    cache_root: Path,
    scale_text: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if backend == "compile":
        request.getfixturevalue("compiler")
    monkeypatch.setenv("CXX", CXX)
    assert build(with_macro(scale_text), backend).name == "kernel"


def test_flags_of_the_environment_are_part_of_the_key(
    cache_root: Path, compiler: nvcc.Nvcc, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = scale_text.replace(
        "  int i", "  __shared__ volatile float tile[SIZE]; tile[0] = n;\n  int i"
    )
    for variable, size in (("PREPEND", 32), ("APPEND", 64), ("APPEND", 128)):
        monkeypatch.delenv("NVCC_PREPEND_FLAGS", raising=False)
        monkeypatch.setenv(f"NVCC_{variable}_FLAGS", f"-DSIZE={size}")
        report = build(text, "compile")
        assert isinstance(report, CompileReport)
        assert report["scale_kernel"].shared == 4 * size


@pytest.mark.parametrize(
    "variable",
    [
        "NVCC_PREPEND_FLAGS",
        "NVCC_APPEND_FLAGS",
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "C_INCLUDE_PATH",
        "CXX",
        "CC",
    ],
)
def test_the_gpus_key_follows_the_environment(
    variable: str, tools: Path, scale_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit = nvcc.Nvcc(tools / "nvcc", tools, (13, 0))
    key = cuda._key(load(scale_text), toolkit, [])
    monkeypatch.setenv(variable, str(tools / "mine++"))
    assert cuda._key(load(scale_text), toolkit, []) != key
