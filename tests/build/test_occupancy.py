import subprocess
from itertools import product
from pathlib import Path

import pytest

from infonce_kernels.build import nvcc, occupancy
from infonce_kernels.build.occupancy import LIMITS


@pytest.mark.parametrize(
    ("arch", "block", "registers", "shared", "blocks", "warps", "limited_by"),
    [
        # 8 warps a block: 64 / 8.
        ("sm_90", 256, 32, 0, 8, 64, ("warps", "registers")),
        # 1 warp a block: 32 blocks is all a multiprocessor takes.
        ("sm_90", 32, 16, 0, 32, 32, ("blocks",)),
        # 255 registers round up to 256: 8192 a warp, 2 warps in each quarter of 16384.
        ("sm_90", 256, 255, 0, 1, 8, ("registers",)),
        # 40 registers: 1280 a warp, 12 warps a quarter, 48 warps; 6 blocks of 8.
        ("sm_80", 256, 40, 0, 6, 48, ("registers",)),
        # 100 KiB and 1 KiB of the system's: two fit in 228 KiB.
        ("sm_90", 128, 32, 100 * 1024, 2, 8, ("shared memory",)),
        # 100 KiB a multiprocessor, 10 + 1 a block.
        ("sm_86", 128, 32, 10 * 1024, 9, 36, ("shared memory",)),
        # No reserved KiB before 8.0: 64 / 16.
        ("sm_75", 64, 32, 16 * 1024, 4, 8, ("shared memory",)),
        # 33 threads take 2 warps.
        ("sm_89", 33, 16, 0, 24, 48, ("warps", "blocks")),
        # More than a block may have at all.
        ("sm_80", 128, 32, 164 * 1024, 0, 0, ("shared memory",)),
        # 1024 threads of 72 registers would need 73728 of the 65536.
        ("sm_80", 1024, 72, 0, 0, 0, ("registers",)),
    ],
)
def test_examples_worked_by_hand(
    arch: str,
    block: int,
    registers: int,
    shared: int,
    blocks: int,
    warps: int,
    limited_by: tuple[str, ...],
) -> None:
    found = occupancy(arch, block, registers, shared)
    assert (found.blocks, found.warps, found.limited_by) == (blocks, warps, limited_by)


def test_named_barriers_limit_blocks_from_hopper_on() -> None:
    assert occupancy("sm_90", 32, 16, barriers=16).blocks == 4  # 64 a multiprocessor
    assert occupancy("sm_90", 32, 16, barriers=16).limited_by == ("barriers",)
    assert occupancy("sm_80", 32, 16, barriers=16).blocks == 32


def test_it_reads_as_a_sentence() -> None:
    assert str(occupancy("sm_90a", 256, 40)) == (
        "75%: 6 blocks, 48 of 64 warps a multiprocessor, limited by registers"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sm_90", 0, 32), "1 to 1024 threads, got 0"),
        (("sm_90", 1025, 32), "1 to 1024 threads, got 1025"),
        (("sm_90", 32, -1), "negative"),
        (("sm_999", 32, 32), "no limits are known for arch 'sm_999'; known: sm_75, sm_80"),
        (("90", 32, 32), "not of the form 'sm_90'"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        occupancy(*arguments)


PROGRAM = """
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cuda_occupancy.h>

int main() {
  int major, minor, warps, block, registers, barriers;
  size_t per_sm, per_block, reserved, shared;
  while (scanf("%d %d %d %zu %zu %zu %d %d %zu %d", &major, &minor, &warps, &per_sm, &per_block,
               &reserved, &block, &registers, &shared, &barriers) == 10) {
    cudaOccDeviceProp device;
    device.computeMajor = major; device.computeMinor = minor; device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = warps * 32; device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536; device.warpSize = 32; device.sharedMemPerBlock = 49152;
    device.sharedMemPerMultiprocessor = per_sm; device.numSms = 1;
    device.sharedMemPerBlockOptin = per_block; device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes function = {};
    function.maxThreadsPerBlock = 1024; function.numRegs = registers;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = per_block; function.numBlockBarriers = barriers;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, block,
                                                         shared);
    printf("%d\\n", status ? -status : result.activeBlocksPerMultiprocessor);
  }
}
"""


def test_it_agrees_with_nvidias_own_calculator(
    compiler: nvcc.Nvcc, gxx: str, tmp_path: Path
) -> None:
    """cuda_occupancy.h is given the limits of the guide's table and works out the rest."""
    include = compiler.home / "include"
    if not (include / "cuda_occupancy.h").is_file():
        pytest.skip("this toolkit has no cuda_occupancy.h")
    (tmp_path / "occupancy.cpp").write_text(PROGRAM)
    program = tmp_path / "occupancy"
    command = [gxx, "-w", f"-I{include}", str(tmp_path / "occupancy.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    blocks = [1, 32, 33, 96, 128, 160, 256, 384, 512, 1000, 1024]
    registers = [16, 24, 32, 37, 40, 64, 80, 128, 168, 255]
    shared = [0, 100, 1024, 5000, 8192, 20000, 48 * 1024, 60000]
    cases = list(product(LIMITS, blocks, registers, shared, [0, 1, 4]))
    lines = []
    for (major, minor), block, regs, bytes_, barriers in cases:
        limits = LIMITS[major, minor]
        device = (major, minor, limits.warps, limits.shared, limits.shared_per_block)
        kernel = (limits.shared_reserved, block, regs, bytes_, barriers)
        lines.append(" ".join(map(str, device + kernel)))
    output = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, check=True
    ).stdout
    truth = dict(zip(cases, map(int, output.split()), strict=True))
    ours = {
        case: occupancy(f"sm_{case[0][0]}{case[0][1]}", *case[1:4], barriers=case[4]).blocks
        for case in cases
    }
    wrong = {case: (ours[case], truth[case]) for case in cases if ours[case] != truth[case]}
    assert len(set(truth.values())) > 10
    assert wrong == {}
