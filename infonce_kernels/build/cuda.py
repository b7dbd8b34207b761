"""Backend "cuda": the kernel text through PyTorch's load_inline, for the GPUs of this machine.

load_inline gets the kernel text alone: no torch header, no binding. That compiles in seconds rather
than half a minute, and the result's `extern "C"` launchers are called through ctypes.
"""

import hashlib
import json
import os
import shlex
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from . import cache, library, nvcc
from .errors import BackendUnavailable, BuildError, compiler_failed
from .launcher import Launcher
from .library import KernelLibrary
from .process import INCLUDE_PATHS, LOCALE, NVCC_FLAGS, environment
from .source import KernelSource

# PyTorch defines these away for its own headers; plain CUDA C++ has the half types' operators.
_HALF_OPERATORS = [
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
]
# A kernel that read or wrote out of bounds is noticed at a later call, possibly another kernel's.
_ASYNCHRONOUS_ERRORS = {700, 710, 715, 716, 717, 718, 719}
_environment_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: _renew_lock())


def _renew_lock() -> None:
    """A child forked while another thread builds would wait for that thread forever."""
    global _environment_lock
    _environment_lock = threading.Lock()


def check() -> nvcc.Nvcc:
    """The nvcc to use. Raises BackendUnavailable in one line where backend "cuda" cannot run."""
    if torch.version.cuda is None:
        raise BackendUnavailable(
            f"this PyTorch ({torch.__version__}) is not a CUDA build; install one to use a GPU "
            "(https://pytorch.org/get-started/locally)"
        )
    if not torch.cuda.is_available():
        raise BackendUnavailable(
            "PyTorch finds no NVIDIA GPU here; `nvidia-smi` tells whether there is one and a driver"
        )
    major = int(torch.version.cuda.partition(".")[0])
    compiler = nvcc.find(major)
    if compiler.version[0] != major:
        raise BackendUnavailable(
            f"{compiler.path} is CUDA {compiler.version_text}, but this PyTorch was built for CUDA "
            f"{torch.version.cuda}; the major versions must agree: set CUDA_HOME to a CUDA {major} "
            "toolkit" + (f", or {nvcc.INSTALL}" if major == 13 else "")
        )
    nvcc.find_ninja()
    return compiler


def build(source: KernelSource) -> KernelLibrary:
    """Compile and load. Raises BackendUnavailable, or BuildError with the first error."""
    compiler = check()
    flags = [*nvcc.FLAGS, *_HALF_OPERATORS, *_architecture_flags()]
    key = _key(source, compiler, flags)
    if (known := library.loaded(source, key)) is not None:
        return known
    library.require_launchers(source)
    return cache.use(
        source.name,
        key,
        f"{source.name} for the GPU",
        build=lambda staging: _compile(source, compiler, flags, staging),
        load=lambda folder: library.load(source, "cuda", key, folder / "kernel.so", CudaDevice()),
    )


def _key(source: KernelSource, compiler: nvcc.Nvcc, flags: list[str]) -> str:
    parts = [
        "cuda",
        source.digest(),
        torch.__version__,
        str(compiler.path),
        compiler.version_text,
        flags,
        nvcc.host_compiler_flags(),
        environment(["CC", *INCLUDE_PATHS, *NVCC_FLAGS]),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _architecture_flags() -> list[str]:
    """One architecture for each kind of visible GPU, so that TORCH_CUDA_ARCH_LIST plays no part.

    From compute capability 9.0 on the "a" variant: it alone has wgmma and its successors, and runs
    on exactly that capability, which is the one that is here.
    """
    devices = range(torch.cuda.device_count())
    architectures = sorted({torch.cuda.get_device_capability(device) for device in devices})
    names = [f"{major}{minor}{'a' if major >= 9 else ''}" for major, minor in architectures]
    return [f"-gencode=arch=compute_{name},code=sm_{name}" for name in names]


def _compile(source: KernelSource, compiler: nvcc.Nvcc, flags: list[str], staging: Path) -> None:
    host = nvcc.check_host_compiler("c++")  # load_inline's own default
    try:
        _load_inline(source.main.flatten(), compiler, flags, staging)
    except RuntimeError as error:  # what load_inline raises when ninja fails, with all its output
        log = str(error)
        (staging / "log.txt").write_text(log)
        raise compiler_failed(
            log, f"{compiler.path} with {host}", source.line, source.filename
        ) from None
    # Built twice in one process, the name ends in PyTorch's version number.
    (built,) = staging.glob("infonce_*.so")
    built.rename(staging / "kernel.so")
    (staging / "libcudart.so").unlink(missing_ok=True)


def _host_compiler_flags() -> list[str]:
    """PyTorch adds its own -ccbin where CC is set; nvcc takes one."""
    return [] if "CC" in os.environ else nvcc.host_compiler_flags()


def _load_inline(text: str, compiler: nvcc.Nvcc, flags: list[str], staging: Path) -> None:
    from torch.utils import cpp_extension

    # PyTorch pastes flags into a ninja file whose commands a shell splits.
    host_flags = map(shlex.quote, _host_compiler_flags())
    link_flags = [*map(shlex.quote, nvcc.host_compiler()[1:])] if os.environ.get("CXX") else []
    with _build_environment(compiler):
        cpp_extension.load_inline(
            name=f"infonce_{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            cpp_sources="",
            cuda_sources=text,
            functions=None,
            extra_cuda_cflags=[*flags, *host_flags],
            extra_ldflags=[*_runtime_library_flags(compiler, staging), *link_flags],
            build_directory=str(staging),
            with_cuda=True,
            is_python_module=False,
            no_implicit_headers=True,
        )


@contextmanager
def _build_environment(compiler: nvcc.Nvcc) -> Iterator[None]:
    """What load_inline takes from its surroundings instead of arguments, set for the time of a
    build only: ninja on PATH, English messages, CXX as one program, CUDA_HOME, and paths that a
    shell leaves whole."""
    from torch.utils import cpp_extension

    ninja_folder = str(Path(nvcc.find_ninja()).parent)
    variables = {"PATH": os.pathsep.join([os.environ.get("PATH", ""), ninja_folder]), **LOCALE}
    with _environment_lock, tempfile.TemporaryDirectory() as links:
        if os.environ.get("CXX"):
            program = nvcc.host_compiler()[0]
            variables["CXX"] = _plain(program, Path(links, Path(program).name.replace(" ", "_")))
        folders = {
            "CUDA_HOME": _plain(str(compiler.home), Path(links, "cuda")),
            "TORCH_LIB_PATH": _plain(cpp_extension.TORCH_LIB_PATH, Path(links, "torch")),
        }
        variables_before = {name: os.environ.get(name) for name in variables}
        folders_before = {name: getattr(cpp_extension, name) for name in folders}
        try:
            os.environ.update(variables)
            vars(cpp_extension).update(folders)
            yield
        finally:
            vars(cpp_extension).update(folders_before)
            for name, value in variables_before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _plain(path: str, link: Path) -> str:
    """PyTorch does not quote these paths where it names the compiler and the libraries; one with
    blanks in its path goes by the name of a link."""
    if shlex.quote(path) == path:
        return path
    link.symlink_to(path)
    return str(link)


def _runtime_library_flags(compiler: nvcc.Nvcc, staging: Path) -> list[str]:
    """PyTorch links with -lcudart. PyPI's packages have libcudart.so.13 but not the plain name that
    the linker looks for, so the build folder, where ninja runs, gets a link of that name."""
    homes = [compiler.home / "lib64", compiler.home / "lib"]
    if any((home / "libcudart.so").exists() for home in homes):
        return []
    pypi = [library for folder in nvcc.pypi_folders() for library in folder.glob("*/lib")]
    version = compiler.version[0]
    for folder in homes + pypi:
        if (library := folder / f"libcudart.so.{version}").exists():
            (staging / "libcudart.so").symlink_to(library.resolve())
            return ["-L."]
    raise BuildError(
        f"no libcudart.so for CUDA {version} in {compiler.home}: pip install nvidia-cuda-runtime"
    )


class CudaDevice:
    """Launches on the tensors' GPU, on PyTorch's current stream there."""

    type = "cuda"

    def run(
        self, launcher: Launcher, arguments: list[Any], values: Sequence[Any], index: int
    ) -> int:
        function, stream = launcher.function, launcher.stream
        current = torch.cuda.current_device()
        if index < 0:
            index = current
        if stream is not None:
            arguments[stream] = torch.cuda.current_stream(index).cuda_stream
        if index == current:
            return function(*arguments)
        with torch.cuda.device(index):
            return function(*arguments)

    def failure(self, code: int) -> tuple[str, BaseException | None]:
        runtime = torch.cuda.cudart()
        text = runtime.cudaGetErrorString(runtime.cudaError(code))
        if code in _ASYNCHRONOUS_ERRORS:
            text += (
                " (of this or an earlier launch; run with CUDA_LAUNCH_BLOCKING=1, or under "
                "compute-sanitizer, to see which)"
            )
        return f"{text} (CUDA error {code})", None
