"""What lessons show of the record, against the files themselves."""

import csv

import pytest

from infonce_kernels.bench import records
from infonce_kernels.lessons import recorded


def lines(pattern):
    (path,) = records.FOLDER.glob(pattern)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_times_are_those_of_the_file():
    (row,) = [
        line
        for line in lines("*[0-9].csv")
        if [line[k] for k in ("name", "pass", "tier", "B", "D", "N")]
        == ["v2_shared", "both", "ieee", "8192", "512", "81920"]
    ]
    shown = recorded.times(["v2_shared"], (8192, 512, 81920), "both").splitlines()
    assert shown[0].startswith("recorded on NVIDIA H200")
    name, cold, wall, *_ = shown[2].split()
    assert name == "v2_shared"
    assert float(cold) == pytest.approx(float(row["cold_ms"]), rel=0.005)
    assert float(wall) == pytest.approx(float(row["wall_ms"]), rel=0.005)


def test_a_time_that_is_not_there_says_why():
    shown = recorded.times(["v1_naive"], (16384, 512, 163840)).splitlines()[2]
    assert shown.startswith("v1_naive") and "over the time limit" in shown


def test_peers_are_shown_with_what_they_leave_out():
    shown = recorded.peers((4096, 512, 40960)).splitlines()
    (line,) = [
        line
        for line in lines("*[0-9].csv")
        if [line[k] for k in ("name", "pass", "B", "D", "N")]
        == ["liger_sm90", "forward", "4096", "512", "40960"]
    ]
    at = next(k for k, text in enumerate(shown) if text.startswith("liger_sm90"))
    assert float(shown[at].split()[2]) == pytest.approx(float(line["cold_ms"]), rel=0.005)
    assert "without the query's own positive" in shown[at + 1]
    assert any(text.startswith("memeff") and "needs N = B" in text for text in shown)


def test_what_was_never_measured_is_named():
    with pytest.raises(LookupError, match="no v3_fused, forward, ieee at B=3, D=5, N=7"):
        recorded.row("v3_fused", (3, 5, 7))
    with pytest.raises(LookupError, match="no counters of v9"):
        recorded.counted("v9")


def test_naive_loads_cost_what_can_be_derived_by_hand():
    # Of the two loads of a multiply-add one takes a row a lane, 32 sectors, and one the same
    # float for all lanes, 1 sector. The store goes to another row for each lane.
    kernel = recorded.counted("v1_naive")["similarities_kernel"]
    assert kernel.sectors_per_load == 16.5 and kernel.sectors_per_store == 32
    assert kernel.load_requests == 2 * 256 * 2560 * 512 // 32
    table = recorded.sectors("v1_naive").splitlines()
    assert table[2].split()[:3] == ["similarities_kernel", "16.50", "32.00"]


def test_tiled_loads_are_coalesced_and_reads_from_shared_memory_are_two_an_fma():
    kernel = recorded.counted("v2_shared")["product_kernel"]
    assert kernel.sectors_per_load == kernel.sectors_per_store == 4
    assert kernel.shared_load_requests == 2 * 256 * 2560 * 512 // 32
