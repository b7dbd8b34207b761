"""Records: one row a measurement, in CSV; one entry a run of the benchmark, in JSON beside it.

A row is tied to the kernel's text by a hash and to the machine by its run, so a figure can always
say where it comes from. Both files are written as the measuring goes on: what was measured stays,
however it ends.
"""

import csv
import dataclasses
import hashlib
import io
import json
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from infonce_kernels import ladder
from infonce_kernels.bench.subjects import DTYPES
from infonce_kernels.build.source import load as load_source
from infonce_kernels.build.source import without_comments

FOLDER = Path(__file__).parents[1] / "results"
OK = "ok"


@dataclass(frozen=True)
class Run:
    """One run of the benchmark: the machine, and the ceilings that it measured itself.

    `copy_tbps` counts bytes read and written by a large copy; `matrix_tflops` has the best rate of
    PyTorch's matrix product over several shapes, by tier. `peak_tbps` is the memory's clock times
    its bus width, which nothing can exceed.
    """

    number: int
    date: str
    gpu: str
    driver: str
    cuda: str
    torch: str
    python: str
    clocks: str
    commit: str
    timer: str
    l2: str
    peak_tbps: float
    copy_tbps: float
    matrix_tflops: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One measurement: times in milliseconds, each the median with the 20th and 80th percentiles.

    `cold`: CUDA events around a call, L2 flushed before it. `graph`: the same for the replay of a
    CUDA graph of the call, which takes the CPU out. `wall`: the host's clock over back-to-back
    calls without a flush, what a training loop pays. `sustained`: the mean of a second of such
    calls, where power limits. What was not measured is None, and `status` says why.

    `error` is the largest relative error of the loss, of a rung's every query and, in norm, of the
    gradients, against float64 after the timed calls. `peak_bytes` is what a call allocates at most
    beyond its inputs. `model_...` is the rung's prediction; where none says what moves, its bytes
    are None. `ran` is the rung that "auto" chose. `note` is what else one must know to read the
    figures.
    """

    run: Run
    kind: str
    name: str
    ran: str
    version: str
    pass_: str
    tier: str
    dtype: str
    B: int
    D: int
    N: int
    status: str
    cold_ms: float | None = None
    cold_p20_ms: float | None = None
    cold_p80_ms: float | None = None
    graph_ms: float | None = None
    graph_p20_ms: float | None = None
    graph_p80_ms: float | None = None
    wall_ms: float | None = None
    wall_p20_ms: float | None = None
    wall_p80_ms: float | None = None
    sustained_ms: float | None = None
    calls: int | None = None
    error: float | None = None
    peak_bytes: int | None = None
    model_launches: int | None = None
    model_bytes: int | None = None
    model_flops: int | None = None
    leaves_out: str = ""
    note: str = ""
    source_hash: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What was measured, whenever it was."""
        return (self.name, self.pass_, self.tier, self.B, self.D, self.N)

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def tflops(self) -> float | None:
        """Achieved TFLOP/s: those of the cost model over the cold time."""
        return _rate(self.model_flops, self.cold_ms)

    @property
    def tbps(self) -> float | None:
        """Achieved TB/s: the cost model's bytes over the cold time.

        None where the device's memory cannot have moved them in that time: they came from a cache.
        """
        rate = _rate(self.model_bytes, self.cold_ms)
        return rate if rate is not None and rate <= self.run.peak_tbps else None

    @property
    def limit_ms(self) -> float | None:
        """The least time that any implementation needs at this run's ceilings.

        The same for all that solve the same problem in the same tier: that of the FLOPs or of the
        operands' bytes, the longer.
        """
        matrix = self.run.matrix_tflops.get(self.tier)
        if matrix is None:
            return None
        itemsize = DTYPES[self.tier].itemsize
        least = ladder.least(self.pass_, self.B, self.N, self.D, itemsize)
        return 1e-9 * max(least.bytes / self.run.copy_tbps, least.flops / matrix)

    @property
    def fraction(self) -> float | None:
        """`limit_ms` over the cold time: how much of the time is what no one can do without."""
        if self.limit_ms is None or self.cold_ms is None:
            return None
        return self.limit_ms / self.cold_ms

    @property
    def is_stale(self) -> bool:
        """Whether the kernel's text has changed since it was measured."""
        return bool(self.source_hash) and self.source_hash != source_hash(self.ran or self.name)

    def to_dict(self) -> dict[str, object]:
        """The row with what follows from it, for a script to read."""
        columns = {**_columns(self), "run": dataclasses.asdict(self.run)}
        derived = ("tbps", "tflops", "limit_ms", "fraction")
        return {**columns, **{name: getattr(self, name) for name in derived}}


def _rate(amount: int | None, ms: float | None) -> float | None:
    return None if amount is None or not ms else amount / ms * 1e-9


class Record:
    """What a file holds: of each measurement the newest row, or the newest that succeeded.

    Raises ValueError where the rows are of several GPUs: they do not compare.
    """

    def __init__(self, path: Path, rows: list[Row]) -> None:
        if len(gpus := {row.run.gpu for row in rows}) > 1:
            raise ValueError(f"{path} mixes {' and '.join(sorted(gpus))}: a file a GPU")
        newest: dict[tuple[object, ...], Row] = {}
        for row in rows:
            if row.ok or not (row.key in newest and newest[row.key].ok):
                newest[row.key] = row
        self.path = path
        self.rows = list(newest.values())

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, **wanted: object) -> list[Row]:
        """Rows whose fields have these values; a tuple gives several.

        record.select(name=("eager", "v3_fused"), pass_="forward", D=512)
        """
        return [row for row in self.rows if all(_matches(row, *item) for item in wanted.items())]

    def row(self, name: str, pass_: str, tier: str, B: int, N: int, D: int) -> Row | None:
        """The row of one measurement, or None where it is not in the record."""
        return self._by_key.get((name, pass_, tier, B, D, N))

    @cached_property
    def _by_key(self) -> dict[tuple[object, ...], Row]:
        return {row.key: row for row in self.rows}

    @property
    def stamp(self) -> str:
        """For figures: "recorded on NVIDIA H200, 2026-12-01"; says so where the text is older."""
        if not self.rows:
            return "an empty record"
        dates = sorted({row.run.date for row in self.rows})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        one_of_each = {(row.ran or row.name, row.source_hash): row for row in self.rows}.values()
        older = ", older source" if any(row.is_stale for row in one_of_each) else ""
        return f"recorded on {self.rows[0].run.gpu}, {when}{older}"


def _matches(row: Row, name: str, wanted: object) -> bool:
    value = getattr(row, name)
    return value in wanted if isinstance(wanted, tuple) else value == wanted


def name(gpu: str, date: str, suffix: str = "") -> str:
    """The file name of what was measured on a GPU on a date."""
    return f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower())}-{date}{suffix}.csv"


def latest() -> Record:
    """The newest record that ships with the package. Raises FileNotFoundError where none does."""
    paths = sorted(FOLDER.glob("*.csv"), key=lambda path: path.stem[-len("2026-12-01") :])
    paths = [path for path in paths if path.with_suffix(".json").exists()]
    if not paths:
        raise FileNotFoundError(f"{FOLDER} holds no record; `infonce bench --record` makes one")
    return read(paths[-1])


def read(path: str | Path) -> Record:
    """The record in a CSV file with its runs in the JSON file beside it.

    Raises FileNotFoundError where either is not there, ValueError naming what is no record's.
    """
    path = Path(path)
    runs = {run.number: run for run in read_runs(path)}
    rows = []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for line in (lines := csv.DictReader(file)):
            try:
                rows.append(_parse(line, runs))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{path}, line {lines.line_num} is no row of a record: "
                    f"{type(error).__name__}: {error}"
                ) from error
    return Record(path, rows)


def read_runs(path: Path) -> list[Run]:
    """The runs of the record in CSV file `path`. Raises FileNotFoundError, and ValueError for a
    JSON file that is something else."""
    runs = path.with_suffix(".json")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and a record is a .csv file")
    if not runs.exists():
        raise FileNotFoundError(f"{runs} is missing: it says on what machine {path.name} was made")
    try:
        return [_run(**run) for run in json.loads(runs.read_text(encoding="utf-8"))]
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{runs} does not describe the runs of a record: {error}") from error


def _run(**fields: object) -> Run:
    """A run whose numbers are numbers, so that no figure stumbles over them later."""
    run = Run(**fields)
    rates = {tier: float(rate) for tier, rate in dict(run.matrix_tflops).items()}
    return dataclasses.replace(
        run,
        number=int(run.number),
        peak_tbps=float(run.peak_tbps),
        copy_tbps=float(run.copy_tbps),
        matrix_tflops=rates,
    )


def prepare(path: Path, gpu: str) -> None:
    """Makes sure, before anything is measured, that a run on `gpu` can be appended to `path`.

    The folder is made where it is missing. Raises ValueError and OSError naming what is in the way.
    """
    if path.suffix != ".csv":
        raise ValueError(f"record {path} must end in .csv: its runs go into a .json beside it")
    if _is_begun(path):
        with path.open(encoding="utf-8") as file:
            if next(csv.reader(file), None) != _CSV:
                raise ValueError(f"{path} has other columns than this version: use a new file")
        if others := {row.run.gpu for row in read(path)} - {gpu}:
            raise ValueError(f"{path} is of {', '.join(others)} and this is {gpu}: use a new file")
        if not path.read_bytes().endswith(b"\n"):
            raise ValueError(f"{path} ends in the middle of a line: complete it or take it out")
    elif path.with_suffix(".json").exists():
        raise ValueError(f"{path.with_suffix('.json')} is there without {path.name}: remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8"):
        pass


def _is_begun(path: Path) -> bool:
    """Whether there is more than the empty file that a run which never came to a row leaves."""
    return path.exists() and (path.is_dir() or path.stat().st_size > 0)


class Writer:
    """Appends a run to a record, row by row. Makes the file where there is none.

    `run` is the given one under the next number of this record.
    """

    def __init__(self, path: str | Path, run: Run) -> None:
        self.path = Path(path)
        runs = self.path.with_suffix(".json")
        before = read_runs(self.path) if runs.exists() else []
        number = 1 + max((run.number for run in before), default=0)
        self.run = dataclasses.replace(run, number=number)
        text = json.dumps([dataclasses.asdict(r) for r in [*before, self.run]], indent=1)
        # Whole or not at all: a file cut in the middle would lose every run.
        temporary = runs.with_suffix(".new")
        temporary.write_text(text + "\n", "utf-8")
        temporary.replace(runs)
        if not _is_begun(self.path):
            self._append(_CSV)

    def write(self, row: Row) -> None:
        columns = _columns(row)
        self._append([_text(columns[name]) for name in _CSV])

    def _append(self, cells: list[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(line.getvalue())  # in one piece, so that a kill leaves no half of a line


_FIELDS = {f.name: f for f in dataclasses.fields(Row)}
_CSV = [name.rstrip("_") for name in _FIELDS]  # "pass" is a keyword of Python, not of CSV


def _columns(row: Row) -> dict[str, object]:
    values = {name.rstrip("_"): getattr(row, name) for name in _FIELDS}
    return {**values, "run": row.run.number}


def _text(value: object) -> str:
    if value is None:
        return ""
    # Five digits: the spread of the best timer is in the fourth.
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _parse(line: dict[str, str], runs: dict[int, Run]) -> Row:
    if None in line or None in line.values():
        raise ValueError("it has more or fewer columns than the first line")
    values = {
        name: _value(f.type, line[name.rstrip("_")]) for name, f in _FIELDS.items() if name != "run"
    }
    return Row(run=runs[int(line["run"])], **values)


def _value(type_: object, text: str) -> object:
    if isinstance(type_, types.UnionType):  # `float | None`
        return type_.__args__[0](text) if text else None
    return type_(text)


def source_hash(name: str) -> str:
    """SHA-256 (16 digits) of a rung's text and headers without comments and blanks; "" for one
    that is plain PyTorch and for what is no rung."""
    if name not in ladder.names() or not ladder.rung(name).is_kernel:
        return ""
    files = load_source(name).main.files()
    bare = "".join("".join(without_comments(file.text).split()) for file in files)
    return hashlib.sha256(bare.encode()).hexdigest()[:16]
