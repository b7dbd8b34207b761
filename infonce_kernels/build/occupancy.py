"""How many blocks of a kernel one multiprocessor holds.

Limits: CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per
Compute Capability". Allocation rules, which the guide leaves out: `cuda_occupancy.h`, which NVIDIA
ships with the toolkit; a test compares the two.
"""

from dataclasses import dataclass

WARP = 32
_REGISTERS_PER_SM = 65536
_REGISTERS_PER_THREAD = 255
_REGISTER_UNIT = 256  # registers are given to a warp in units of 256
_SUB_PARTITIONS = 4  # each with a quarter of the registers
_THREADS_PER_BLOCK = 1024


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor has. Shared memory in bytes; from compute capability 8.0 on each
    block costs 1 KiB more than it asks for, which the system keeps. `barriers` are the hardware's
    barriers, 0 where they do not limit (before 9.0)."""

    warps: int
    blocks: int
    shared: int
    shared_per_block: int
    shared_unit: int = 128
    shared_reserved: int = 1024
    barriers: int = 0


_KIB = 1024
LIMITS = {
    (7, 5): Limits(32, 16, 64 * _KIB, 64 * _KIB, shared_unit=256, shared_reserved=0),
    (8, 0): Limits(64, 32, 164 * _KIB, 163 * _KIB),
    (8, 6): Limits(48, 16, 100 * _KIB, 99 * _KIB),
    (8, 7): Limits(48, 16, 164 * _KIB, 163 * _KIB),
    (8, 9): Limits(48, 24, 100 * _KIB, 99 * _KIB),
    (9, 0): Limits(64, 32, 228 * _KIB, 227 * _KIB, barriers=64),
    (10, 0): Limits(64, 32, 228 * _KIB, 227 * _KIB, barriers=64),
    (10, 3): Limits(64, 32, 228 * _KIB, 227 * _KIB, barriers=64),
    (12, 0): Limits(48, 24, 100 * _KIB, 99 * _KIB, barriers=24),
    (12, 1): Limits(48, 24, 100 * _KIB, 99 * _KIB, barriers=24),
}


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of one multiprocessor, and what limits them."""

    blocks: int
    warps: int
    max_warps: int
    limited_by: tuple[str, ...]

    @property
    def fraction(self) -> float:
        """Resident warps as a part of those the hardware can hold, 0 to 1."""
        return self.warps / self.max_warps

    def __str__(self) -> str:
        return (
            f"{self.fraction:.0%}: {self.blocks} blocks, {self.warps} of {self.max_warps} warps a "
            f"multiprocessor, limited by {' and '.join(self.limited_by)}"
        )


def capability(arch: str) -> tuple[int, int]:
    """`"sm_90a"` -> (9, 0). Raises ValueError where `arch` is not of that form."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not digits.isdecimal() or len(digits) < 2:
        raise ValueError(f"arch {arch!r} is not of the form 'sm_90'")
    return int(digits[:-1]), int(digits[-1])


def occupancy(
    arch: str, block: int, registers: int, shared: int = 0, *, barriers: int = 1
) -> Occupancy:
    """Occupancy of blocks of `block` threads.

    registers: a thread's. shared: bytes a block, static and dynamic together; more than 48 KiB
    needs the kernel's opt-in. barriers: hardware barriers a block (1 for __syncthreads).
    Raises ValueError for a block size outside 1 to 1024, negative sizes or an unknown `arch`.
    """
    limits = LIMITS.get(capability(arch))
    if limits is None:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in LIMITS)
        raise ValueError(f"no limits are known for arch {arch!r}; known: {known}")
    if not 1 <= block <= _THREADS_PER_BLOCK:
        raise ValueError(f"block holds 1 to {_THREADS_PER_BLOCK} threads, got {block}")
    if min(registers, shared, barriers) < 0:
        raise ValueError("registers, shared and barriers cannot be negative")
    warps = -(-block // WARP)
    blocks = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": _by_registers(warps, registers),
        "shared memory": _by_shared(limits, shared),
    }
    if barriers and limits.barriers:
        blocks["barriers"] = limits.barriers // barriers
    fewest = min(blocks.values())
    limited_by = tuple(name for name, count in blocks.items() if count == fewest)
    return Occupancy(fewest, fewest * warps, limits.warps, limited_by)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _by_registers(warps: int, registers: int) -> int:
    if registers == 0:
        return _REGISTERS_PER_SM
    if registers > _REGISTERS_PER_THREAD:
        return 0
    per_warp = _round_up(registers * WARP, _REGISTER_UNIT)
    resident = _REGISTERS_PER_SM // _SUB_PARTITIONS // per_warp * _SUB_PARTITIONS
    return resident // warps


def _by_shared(limits: Limits, shared: int) -> int:
    if shared > limits.shared_per_block:
        return 0
    allocated = _round_up(shared + limits.shared_reserved, limits.shared_unit)
    return limits.shared // allocated if allocated else limits.shared
