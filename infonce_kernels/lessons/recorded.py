"""What the record says, for lessons that must be readable on a machine without a GPU."""

from collections.abc import Sequence
from functools import cache

from infonce_kernels.bench import counters, records
from infonce_kernels.bench.counters import Kernel
from infonce_kernels.bench.records import Record, Row
from infonce_kernels.bench.sizes import CENTRES, Size
from infonce_kernels.bench.subjects import PASS_NAMES, TIER_NAMES


@cache
def record() -> Record:
    """The newest record that ships with the package."""
    return records.latest()


def row(name: str, size: Size, pass_: str = "forward", tier: str = "ieee") -> Row:
    """One measurement at (B, D, N). Raises LookupError where the record has none."""
    B, D, N = size
    found = record().row(name, pass_, tier, B, N, D)
    if found is None:
        raise LookupError(f"the record has no {name}, {pass_}, {tier} at B={B}, D={D}, N={N}")
    return found


def times(
    names: Sequence[str],
    size: Size = CENTRES["small"],
    pass_: str = "forward",
    tier: str = "ieee",
) -> str:
    """A table of milliseconds by each clock, and what they are beside eager and the limit."""
    rows = [row(name, size, pass_, tier) for name in names]
    B, D, N = size
    lines = [
        f"{record().stamp}: B={B}, D={D}, N={N}, {TIER_NAMES[tier]}, {PASS_NAMES[pass_]}",
        f"{'milliseconds':14}{'GPU':>9}{'graph':>9}{'wall':>9}{'limit':>9}{'% of limit':>12}"
        f"{'x eager':>9}",
    ]
    eager = row("eager", size, pass_, tier)
    return "\n".join([*lines, *(_line(one, eager) for one in rows)])


def _line(one: Row, eager: Row) -> str:
    if not one.ok:
        return f"{one.name:14}  {one.status}"
    figures = (one.cold_ms, one.graph_ms, one.wall_ms, one.limit_ms)
    shown = "".join(f"{'' if ms is None else format(ms, '.3g'):>9}" for ms in figures)
    return f"{one.name:14}{shown}{one.fraction:12.0%}{eager.cold_ms / one.cold_ms:9.2f}"


def peers(size: Size, pass_: str = "forward", tier: str = "bf16") -> str:
    """A table of the other packages at (B, D, N), what they lack, and eager and `info_nce`."""
    B, D, N = size
    found = record().select(kind="peer", pass_=pass_, tier=tier, B=B, D=D, N=N)
    rows = [row("eager", size, pass_, tier), row("auto", size, pass_, tier), *found]
    lines = [
        f"{record().stamp}: B={B}, D={D}, N={N}, {TIER_NAMES[tier]}, {PASS_NAMES[pass_]}",
        f"{'':28}{'ms':>8}{'MB':>8}",
    ]
    for one in rows:
        name = " ".join(filter(None, (one.name, one.version)))
        shown = f"{one.cold_ms:8.3g}{one.peak_bytes / 1e6:8.1f}" if one.ok else f"  {one.status}"
        lines.append(f"{name:28}{shown}")
        if one.ok and one.leaves_out:
            lines.append(f"    without {one.leaves_out}")
        if one.note:
            lines.append(f"    {one.note}")
    return "\n".join(lines)


def counted(rung: str) -> dict[str, Kernel]:
    """What ncu counted in each kernel of a rung's forward pass at the original sizes, by name.

    Raises LookupError where no record has the rung.
    """
    kernels = {
        kernel.name.split("<")[0]: kernel
        for kernel in counters.load_latest()
        if (kernel.call.rung, kernel.call.pass_, kernel.call.tier) == (rung, "forward", "ieee")
        and CENTRES["small"] == (kernel.call.B, kernel.call.D, kernel.call.N)
    }
    if not kernels:
        raise LookupError(f"no counters of {rung} are recorded")
    return kernels


def sectors(rung: str) -> str:
    """A table of what each kernel's loads and stores cost in global memory."""
    kernels = counted(rung)
    call = next(iter(kernels.values())).call
    lines = [
        f"counted on {call.gpu}, {call.date}: B={call.B}, D={call.D}, N={call.N}",
        f"{'kernel':22}{'sectors a load':>16}{'a store':>9}{'DRAM read, MB':>15}"
        f"{'warps there':>13}",
    ]
    lines += [
        f"{name:22}{kernel.sectors_per_load:16.2f}{kernel.sectors_per_store:9.2f}"
        f"{kernel.dram_read_bytes / 1e6:15.1f}{kernel.occupancy:13.0%}"
        for name, kernel in kernels.items()
    ]
    return "\n".join(lines)
