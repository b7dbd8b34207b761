"""Backend "compile": nvcc without a GPU, and what its assembler says of each kernel."""

import hashlib
import html
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from . import cache, nvcc
from .demangle import demangle, function_name
from .errors import compiler_failed
from .occupancy import Occupancy, capability, occupancy
from .process import INCLUDE_PATHS, NVCC_FLAGS, environment, run
from .source import KernelSource

DEFAULT_ARCH = "sm_90"


@dataclass(frozen=True)
class KernelUsage:
    """What one kernel takes: registers a thread; static shared memory and barriers a block; bytes a
    thread of stack and of spilled registers; constant memory in bytes, its parameters included
    where the assembler counts them."""

    name: str
    mangled: str
    arch: str
    registers: int
    shared: int
    constant: int
    stack: int
    spill_stores: int
    spill_loads: int
    barriers: int

    def occupancy(self, block: int, dynamic_shared: int = 0) -> Occupancy:
        """Occupancy for `block` threads and `dynamic_shared` bytes a block."""
        shared = self.shared + dynamic_shared
        return occupancy(self.arch, block, self.registers, shared, barriers=self.barriers)


@dataclass(frozen=True)
class CompileReport:
    """What `build(source, "compile")` returns: every kernel's use of the hardware.

    `report["kernel"]` is one kernel, by its name with or without template arguments. `cubin` is the
    compiled file, for `cuobjdump -sass`; `log` all that nvcc printed.
    """

    name: str
    arch: str
    nvcc: str
    kernels: tuple[KernelUsage, ...]
    cubin: Path
    log: str = field(repr=False)

    def __getitem__(self, name: str) -> KernelUsage:
        """Raises KeyError naming the kernels where `name` is none of them, or several."""
        for matches in (
            [kernel for kernel in self.kernels if kernel.name == name],
            [kernel for kernel in self.kernels if _plain(kernel.name) == name],
        ):
            if len(matches) == 1:
                return matches[0]
        raise KeyError(
            f"{name!r} names no single kernel; there are {[k.name for k in self.kernels]}"
        )

    def occupancy(self, block: int, dynamic_shared: int = 0) -> dict[str, Occupancy]:
        """Occupancy of every kernel, were it launched with `block` threads."""
        return {k.name: k.occupancy(block, dynamic_shared) for k in self.kernels}

    def __repr__(self) -> str:
        rows = [_HEADINGS, *map(_row, self.kernels)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]  # numbers right
            ).rstrip()
            for row in rows
        ]
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        def row(cells: list[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row(_row(kernel), "td") for kernel in self.kernels)
        title = f"<caption>{html.escape(self._title())}</caption>"
        return f"<table>{title}<thead>{row(_HEADINGS, 'th')}</thead><tbody>{body}</tbody></table>"

    def _title(self) -> str:
        return f"{self.name} for {self.arch}, nvcc {self.nvcc}"


_HEADINGS = [
    "kernel",
    "registers",
    "static shared B",
    "constant B",
    "stack B",
    "spill stores B",
    "spill loads B",
]


def _row(kernel: KernelUsage) -> list[str]:
    numbers = [
        kernel.registers,
        kernel.shared,
        kernel.constant,
        kernel.stack,
        kernel.spill_stores,
        kernel.spill_loads,
    ]
    return [kernel.name, *map(str, numbers)]


def _plain(name: str) -> str:
    """`(anonymous namespace)::reduce<float, 128>` -> `reduce`."""
    return re.sub(r"<.*", "", name).rpartition("::")[2]


def check() -> nvcc.Nvcc:
    """The nvcc to use; raises BackendUnavailable where there is none."""
    return nvcc.find()


def build(source: KernelSource, arch: str = DEFAULT_ARCH) -> CompileReport:
    """Compile for `arch`, e.g. "sm_80", "sm_90a". Raises ValueError for an `arch` that is not of
    that form, BackendUnavailable without nvcc, BuildError with the compiler's first error."""
    capability(arch)
    compiler = check()
    flags = [*nvcc.FLAGS, f"-arch={arch}", *nvcc.host_compiler_flags()]
    parts = [
        "compile",
        source.digest(),
        str(compiler.path),
        compiler.version_text,
        flags,
        environment([*INCLUDE_PATHS, *NVCC_FLAGS]),
    ]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    folder = cache.entry(
        source.name,
        key,
        f"{source.name} for {arch}",
        lambda staging: _compile(source, compiler, flags, staging),
    )
    log = (folder / "log.txt").read_text()
    cubin = folder / "kernel.cubin"
    return CompileReport(source.name, arch, compiler.version_text, _kernels(log, arch), cubin, log)


def _compile(source: KernelSource, compiler: nvcc.Nvcc, flags: list[str], staging: Path) -> None:
    host = nvcc.check_host_compiler("g++")
    (staging / "kernel.cu").write_text(source.main.flatten(), encoding="utf-8")
    # Names relative to the working folder: nvcc passes its command lines through a shell.
    command = [compiler.path, "-cubin", *flags, "-Xptxas", "-v", "kernel.cu", "-o", "kernel.cubin"]
    status, log = run(command, cwd=staging)
    if status:
        raise compiler_failed(log, f"{compiler.path} with {host}", source.line, source.filename)
    (staging / "log.txt").write_text(log)


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def _kernels(log: str, arch: str) -> tuple[KernelUsage, ...]:
    """Read `ptxas -v`. Device functions that were not inlined have properties of their own, which
    are not the kernel's."""
    kernels = []
    entry = properties = ""
    stack = (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, stack = match[1], (0, 0, 0)
        elif match := _PROPERTIES.search(line):
            properties = match[1]
        elif (match := _STACK.search(line)) and properties == entry:
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif entry and re.search(r"Used \d+ registers", line):
            kernels.append(_usage(entry, arch, stack, line))
            entry = ""
    return tuple(sorted(kernels, key=lambda kernel: kernel.name))


def _usage(mangled: str, arch: str, stack: tuple[int, int, int], used: str) -> KernelUsage:
    def total(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, used)))

    return KernelUsage(
        name=function_name(demangle(mangled)),
        mangled=mangled,
        arch=arch,
        registers=total(r"Used (\d+) registers"),
        shared=total(r"(\d+) bytes smem"),
        constant=total(r"(\d+) bytes cmem"),
        stack=stack[0],
        spill_stores=stack[1],
        spill_loads=stack[2],
        barriers=total(r"used (\d+) barriers"),
    )
