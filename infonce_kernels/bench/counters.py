"""What the hardware counted: one call of a rung under ncu, kernel by kernel, and its cost model.

`count` profiles, `render` and `totals` show, `write` and `read` keep. NVIDIA documents the metrics
in the "Kernel Profiling Guide" of Nsight Compute; `ncu --query-metrics --chip gh100` lists a
Hopper's.

Caches are flushed before each kernel (`--cache-control all`). Counting takes several runs of a
kernel, and unflushed the later ones would find in the L2 cache what the first one read: at the
sizes of the lessons, everything. So each operand is read from DRAM once a kernel, as in the cost
models. The price: what one kernel leaves in the L2 cache for the next is read anew, and what is
still there when a kernel ends is not counted as written. Clocks are left as they are
(`--clock-control none`), since only times depend on them.
"""

import csv
import dataclasses
import datetime
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from infonce_kernels import ladder
from infonce_kernels.bench import records
from infonce_kernels.bench.records import source_hash
from infonce_kernels.bench.subjects import DTYPES, PASSES
from infonce_kernels.build.demangle import function_name

Dim = tuple[int, int, int]
SUFFIX = "-counters"  # of a record's name, after the date


class CountersUnavailable(RuntimeError):
    """Nothing can be counted here; the text says why and what mends it."""


@dataclass(frozen=True)
class Call:
    """What was counted, where and when. `pass_` is "forward" or "both"."""

    rung: str
    pass_: str
    tier: str
    B: int
    N: int
    D: int
    gpu: str
    driver: str
    cuda: str
    ncu: str
    date: str
    source_hash: str

    @property
    def key(self) -> tuple[object, ...]:
        """What was counted, wherever and whenever."""
        return (self.rung, self.pass_, self.tier, self.B, self.N, self.D)

    @property
    def is_stale(self) -> bool:
        """Whether the kernel's text has changed since it was counted."""
        return bool(self.source_hash) and self.source_hash != source_hash(self.rung)


@dataclass(frozen=True)
class Kernel:
    """One launch of a call; `launch` counts from 1.

    A request is one instruction of one warp. It touches some sectors of 32 bytes in global memory:
    4 where each of 32 threads reads the float beside its neighbour's, 32 where all are far apart, 1
    where all read the same. In shared memory it takes some wavefronts: one at best for up to 4
    bytes a thread, two for 8 and four for 16; a bank conflict adds to them. Copies that pass the
    registers by (`cp.async`, TMA) are in neither, only in the bytes of DRAM.

    `theoretical_occupancy` is the part of a multiprocessor's warps that fit at once, `occupancy`
    the part that was there on average, both 0 to 1. `registers` are a thread's. `flops` are float32
    operations of ordinary cores, a fused multiply-add counted as 2.
    """

    call: Call
    launch: int
    name: str
    grid: Dim
    block: Dim
    ms: float
    load_requests: int
    load_sectors: int
    store_requests: int
    store_sectors: int
    dram_read_bytes: int
    dram_write_bytes: int
    shared_load_requests: int
    shared_load_wavefronts: int
    shared_store_requests: int
    shared_store_wavefronts: int
    occupancy: float
    theoretical_occupancy: float
    registers: int
    flops: int

    @property
    def sectors_per_load(self) -> float | None:
        """Sectors a request of the loads from global memory; None where there are none."""
        return _ratio(self.load_sectors, self.load_requests)

    @property
    def sectors_per_store(self) -> float | None:
        """Sectors a request of the stores to global memory; None where there are none."""
        return _ratio(self.store_sectors, self.store_requests)

    @property
    def wavefronts_per_load(self) -> float | None:
        """Wavefronts a request of the loads from shared memory; None where there are none."""
        return _ratio(self.shared_load_wavefronts, self.shared_load_requests)

    @property
    def wavefronts_per_store(self) -> float | None:
        """Wavefronts a request of the stores to shared memory; None where there are none."""
        return _ratio(self.shared_store_wavefronts, self.shared_store_requests)

    @property
    def dram_bytes(self) -> int:
        return self.dram_read_bytes + self.dram_write_bytes


_RATIOS = ("sectors_per_load", "sectors_per_store", "wavefronts_per_load", "wavefronts_per_store")


def _ratio(amount: int, requests: int) -> float | None:
    return amount / requests if requests else None


# ---- counting ------------------------------------------------------------------------------------


def count(
    rung: str, pass_: str, B: int, N: int, D: int, tier: str = "ieee", *, limit_s: float = 300
) -> list[Kernel]:
    """The launches of one `info_nce(..., reduction="none")`, in order, those of cuBLAS and PyTorch
    among them.

    pass_: "forward", or "both" for all three gradients too. tier: as for `info_nce`. limit_s: how
    long ncu may take. Operands are normalised random rows: query and positive (B, D), negatives
    (N, D).

    Raises ValueError for arguments that name nothing and for a metric that ncu does not have here,
    CountersUnavailable where nothing can be counted, RuntimeError with ncu's own words where the
    call failed, and what `build` raises.
    """
    chosen = ladder.rung(rung)
    for name, value, choices in (("pass_", pass_, PASSES), ("tier", tier, tuple(DTYPES))):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
    if not torch.cuda.is_available():
        raise CountersUnavailable("PyTorch sees no NVIDIA GPU, and only a GPU has its counters")
    ncu = find_ncu()
    if chosen.is_kernel:
        chosen.build("cuda")  # compilers are started here and not under ncu
    sizes = [str(size) for size in (B, N, D)]
    program = [sys.executable, "-m", "infonce_kernels.bench.profiled", rung, pass_, tier, *sizes]
    text = profile(ncu, program, limit_s)
    call = Call(
        rung, pass_, tier, B, N, D, torch.cuda.get_device_name(), _driver(),
        torch.version.cuda or "", _version(ncu), datetime.date.today().isoformat(),
        source_hash(rung),
    )  # fmt: skip
    return parse(text, call)


def find_ncu() -> str:
    """Path of Nsight Compute's command line: on PATH, in `$CUDA_HOME`, in /usr/local/cuda or where
    its own installer puts it. Raises CountersUnavailable."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    toolkits = [f"{home}/bin" for home in [*homes, "/usr/local/cuda"]]
    installed = sorted(map(str, Path("/opt/nvidia/nsight-compute").glob("*")), reverse=True)
    path = shutil.which("ncu", path=os.pathsep.join([*os.get_exec_path(), *toolkits, *installed]))
    if path is None:
        raise CountersUnavailable(
            "ncu was not found: install NVIDIA Nsight Compute, which the CUDA toolkit contains, "
            "and put its folder on PATH"
        )
    return path


def profile(ncu: str, program: list[str], limit_s: float = 300) -> str:
    """What ncu reports of the kernels that `program` launches between its calls of
    cudaProfilerStart and cudaProfilerStop: messages and CSV, as `parse` takes it.

    ncu: its path. Raises CountersUnavailable and RuntimeError as `count` does.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = [
            ncu, "--profile-from-start", "off", "--target-processes", "application-only",
            "--cache-control", "all", "--clock-control", "none",
            "--metrics", ",".join(_UNITS), "--csv", "--page", "raw", "--print-units", "base",
            "--log-file", str(log), *program,
        ]  # fmt: skip
        code, said = _run(command, limit_s)
        text = log.read_text(encoding="utf-8") if log.exists() else ""
    if code == 0 and re.search(r'^"ID",', text, re.MULTILINE):
        return text
    raise _failure(text + said)


def _run(command: list[str], limit_s: float) -> tuple[int, str]:
    """Exit status and output. ncu gets a session of its own: it ends with all that it started."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(
                    f"ncu took longer than {limit_s:g} s: count a smaller size, or raise limit_s"
                ) from None
            raise
    return process.returncode, output


def _failure(output: str) -> RuntimeError:
    if "ERR_NVGPUCTRPERM" in output:
        return CountersUnavailable(
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root, start the "
            "container with --cap-add=SYS_ADMIN, or have the driver loaded with "
            "NVreg_RestrictProfilingToAdminUsers=0; see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        )
    if "LibraryNotLoaded" in output:
        return CountersUnavailable(
            "ncu cannot reach the GPU's counters (LibraryNotLoaded): sandboxed containers such as "
            "gVisor's hide them; run on the machine itself or in an ordinary container"
        )
    last = "\n".join(output.strip().splitlines()[-20:])
    return RuntimeError(f"ncu counted nothing. It and the program said last:\n{last}")


def _version(ncu: str) -> str:
    output = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"Version (\S+)", output)
    return match[1] if match else output.strip()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.splitlines()[0]


# ---- what ncu prints -----------------------------------------------------------------------------

_DURATION = "gpu__time_duration.sum"
_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
# Fields that are counts. A load or store whose predicate is false in every thread of the warp goes
# nowhere, hence "pred_on_any".
_COUNTS = {
    "load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    "load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "store_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",),
    "store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_write_bytes": ("dram__bytes_write.sum",),
    "shared_load_requests": (
        "smsp__inst_executed_op_shared_ld_pred_on_any.sum",
        "smsp__inst_executed_op_ldsm_pred_on_any.sum",  # tiles for the tensor cores
    ),
    "shared_load_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
    "shared_store_requests": ("smsp__inst_executed_op_shared_st_pred_on_any.sum",),
    "shared_store_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
    "registers": ("launch__registers_per_thread",),
}
_FLOPS = {  # a thread's instruction: how many operations it is
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2,
}
_GRID = tuple(f"launch__grid_dim_{axis}" for axis in "xyz")
_BLOCK = tuple(f"launch__block_dim_{axis}" for axis in "xyz")
# Every metric that is asked for, and by what names its unit may go where it could be another.
_UNITS: dict[str, tuple[str, ...] | None] = {
    _DURATION: ("ns", "nsecond"),
    _OCCUPANCY: ("%",),
    _THEORETICAL: ("%",),
    **dict.fromkeys([*chain(*_COUNTS.values()), *_FLOPS, *_GRID, *_BLOCK]),
    **dict.fromkeys(["dram__bytes_read.sum", "dram__bytes_write.sum"], ("byte",)),
}


def parse(text: str, call: Call) -> list[Kernel]:
    """The kernels in what ncu prints with `--csv --page raw --print-units base`.

    A line of headings, a line of units and a line a launch, each field in quotation marks; ncu's
    messages begin with "==". Raises ValueError naming the metric that is missing or has another
    unit.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 2:
        raise ValueError(f"no CSV in what ncu printed:\n{text[-2000:]}")
    headings, units, *rows = csv.reader(lines)
    unit = dict(zip(headings, units, strict=True))
    for metric, allowed in _UNITS.items():
        if metric not in unit:
            raise ValueError(f"ncu reports no {metric}: this ncu or GPU has no such metric")
        if allowed and unit[metric] not in allowed:
            raise ValueError(f"{metric} comes in {unit[metric]!r}, not in {allowed[0]!r}")
    launches = (dict(zip(headings, row, strict=True)) for row in rows)
    return [_parse_launch(values, call, number) for number, values in enumerate(launches, 1)]


def _parse_launch(values: dict[str, str], call: Call, number: int) -> Kernel:
    def value(metric: str) -> float:
        try:
            return float(values[metric].replace(",", ""))  # some locales group the digits
        except ValueError:
            raise ValueError(
                f"ncu has no value of {metric} for {values['Kernel Name']}, but {values[metric]!r}"
            ) from None

    def dim(metrics: tuple[str, ...]) -> Dim:
        x, y, z = (int(value(metric)) for metric in metrics)
        return x, y, z

    return Kernel(
        call,
        number,
        short_name(values["Kernel Name"]),
        dim(_GRID),
        dim(_BLOCK),
        ms=value(_DURATION) / 1e6,
        occupancy=value(_OCCUPANCY) / 100,
        theoretical_occupancy=value(_THEORETICAL) / 100,
        flops=sum(int(value(metric)) * each for metric, each in _FLOPS.items()),
        **{field: sum(int(value(m)) for m in metrics) for field, metrics in _COUNTS.items()},
    )


def short_name(demangled: str) -> str:
    """A kernel's name without return type, parameters, namespaces and the types of its template's
    numbers: `void a::k<(bool)1, (int)4>(int *)` -> `k<true, 4>`."""
    name = function_name(demangled)
    name = name.replace("(bool)0", "false").replace("(bool)1", "true")
    name = re.sub(r"\((?:unsigned )?(?:int|long|short|char)\)(?=-?\d)", "", name)
    return re.sub(r"(?:\w+|<unnamed>|\(anonymous namespace\))::", "", name)


# ---- beside the cost model -----------------------------------------------------------------------


@dataclass(frozen=True)
class Total:
    """A quantity of a whole call: as measured, and as the rung's cost model predicts it."""

    name: str
    measured: int
    predicted: int

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return _ratio(self.measured, self.predicted)


def by_call(kernels: Iterable[Kernel]) -> dict[Call, list[Kernel]]:
    """The launches of each call."""
    calls: dict[Call, list[Kernel]] = {}
    for kernel in kernels:
        calls.setdefault(kernel.call, []).append(kernel)
    return calls


def totals(kernels: list[Kernel]) -> list[Total]:
    """Launches, bytes of DRAM traffic and float32 FLOPs of one call, against the cost model."""
    call = kernels[0].call
    cost = ladder.rung(call.rung).cost(call.pass_, call.B, call.N, call.D)
    return [
        Total("launches", len(kernels), cost.launches),
        Total("DRAM bytes", sum(kernel.dram_bytes for kernel in kernels), cost.bytes),
        Total("FLOPs", sum(kernel.flops for kernel in kernels), cost.flops),
    ]


def title(call: Call) -> str:
    """For tables and figures: what was counted, on what and when."""
    older = ", older source" if call.is_stale else ""
    return (
        f"{call.rung}, {call.pass_}, B={call.B} N={call.N} D={call.D}, {call.tier}; "
        f"counted on {call.gpu}, {call.date}{older}"
    )


_NAME = 60  # characters shown: PyTorch's own names are whole sentences
_HEADINGS = (
    "blocks x\nthreads",
    "\nms",
    "sectors\nload/store",
    "DRAM MB\nread/write",
    "wavefronts\nload/store",
    "warps\n%",
    "\nregs",
    "\nFLOP",
)
_LEGEND = """\
Sectors of global memory a request: 4 at best for floats, 32 at worst. Wavefronts of shared memory a
request: at best 1 for up to 4 bytes a thread, 2 for 8, 4 for 16. Warps: resident on average, of the
most that fit, both in % of the hardware's. FLOPs: float32, outside the tensor cores. Caches are
flushed before each kernel."""


def render(kernels: list[Kernel]) -> RenderableType:
    """The launches of one call and its totals, for a terminal of 100 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("\nkernel", min_width=24)  # the one that wraps where room is short
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for kernel in kernels:
        table.add_row(*_cells(kernel))
    lines = [_sentence(total) for total in totals(kernels)]
    return Group(Text(title(kernels[0].call)), table, *map(Text, [*lines, "", _LEGEND]))


def _cells(kernel: Kernel) -> list[str]:
    name = kernel.name
    return [
        escape(name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"),
        f"{math.prod(kernel.grid)} x {math.prod(kernel.block)}",
        f"{kernel.ms:.4f}" if kernel.ms < 100 else f"{kernel.ms:.1f}",
        f"{_digits(kernel.sectors_per_load)}/{_digits(kernel.sectors_per_store)}",
        f"{_digits(kernel.dram_read_bytes / 1e6)}/{_digits(kernel.dram_write_bytes / 1e6)}",
        f"{_digits(kernel.wavefronts_per_load)}/{_digits(kernel.wavefronts_per_store)}",
        f"{100 * kernel.occupancy:.0f}/{100 * kernel.theoretical_occupancy:.0f}",
        str(kernel.registers),
        _scaled(kernel.flops),
    ]


def _digits(value: float | None) -> str:
    """Two decimals, fewer where they are zeros or do not matter: 0.06, 4, 16.5, 671."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")


def _scaled(value: int) -> str:
    """Three digits: 12, 671 M."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * unit:
            return f"{value / unit:#.3g}".rstrip(".") + f" {name}"
    return str(value)


def _sentence(total: Total) -> str:
    ratio = "" if total.ratio is None else f", a ratio of {total.ratio:.2f}"
    measured, predicted = _scaled(total.measured), _scaled(total.predicted)
    return f"{total.name}: {measured} measured, {predicted} predicted{ratio}"


def to_dicts(kernels: Iterable[Kernel]) -> list[dict[str, object]]:
    """Each call with its launches and totals, for a script to read."""
    return [
        {
            "call": {name.rstrip("_"): value for name, value in vars(call).items()},
            "launches": [_to_dict(kernel) for kernel in launches],
            "totals": [{**vars(total), "ratio": total.ratio} for total in totals(launches)],
        }
        for call, launches in by_call(kernels).items()
    ]


def _to_dict(kernel: Kernel) -> dict[str, object]:
    counted = {name: value for name, value in vars(kernel).items() if name != "call"}
    return {**counted, **{name: getattr(kernel, name) for name in _RATIOS}}


# ---- records -------------------------------------------------------------------------------------


def write(kernels: Iterable[Kernel], path: str | Path) -> None:
    """Puts launches into a CSV file, one a line; those of the same calls that it held go."""
    path = Path(path)
    kernels = list(kernels)
    counted = {kernel.call.key for kernel in kernels}
    kept = read(path) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for kernel in [*(k for k in kept if k.call.key not in counted), *kernels]:
            values = {**vars(kernel.call), **vars(kernel)}
            writer.writerow(_text(values[name]) for name in _COLUMNS.values())


def read(path: str | Path) -> list[Kernel]:
    """The launches in a CSV file that `write` made, in its order."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        return [_read_line(line) for line in csv.DictReader(file)]


def load_latest() -> list[Kernel]:
    """The newest record of counts that ships with the package. Raises FileNotFoundError."""
    date = len("2026-12-01" + SUFFIX)
    paths = sorted(records.FOLDER.glob(f"*{SUFFIX}.csv"), key=lambda path: path.stem[-date:])
    if not paths:
        raise FileNotFoundError(
            f"{records.FOLDER} holds no counts; `infonce counters --record` makes some"
        )
    return read(paths[-1])


_CALL = {field.name: field.type for field in dataclasses.fields(Call)}
_KERNEL = {field.name: field.type for field in dataclasses.fields(Kernel) if field.name != "call"}
# Heading -> field. What was counted comes first, where and when last.
_FIRST = list(_CALL)[:6]
_COLUMNS = {
    {"pass_": "pass", "name": "kernel"}.get(name, name): name
    for name in [*_FIRST, *_KERNEL, *list(_CALL)[6:]]
}


def _text(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _read_line(line: dict[str, str]) -> Kernel:
    text = {field: line[heading] for heading, field in _COLUMNS.items()}
    call = Call(**{name: _value(type_, text[name]) for name, type_ in _CALL.items()})
    return Kernel(call, **{name: _value(type_, text[name]) for name, type_ in _KERNEL.items()})


def _value(type_: object, text: str) -> object:
    return tuple(map(int, text.split("x"))) if type_ == Dim else type_(text)
