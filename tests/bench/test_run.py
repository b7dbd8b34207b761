import math

import pytest
import torch

from infonce_kernels.bench import records, run, subjects
from infonce_kernels.bench.records import Writer
from infonce_kernels.bench.subjects import COMPILE, EAGER, STRONGEST, Subject
from infonce_kernels.loss import info_nce
from infonce_kernels.reference import Model

SMALL = (16, 8, 40)


def subject(name, loss, **options):
    return Subject(name, "peer", lambda tier, temperature: loss, ("ieee", "bf16"), **options)


def rows(of, machine, timer, sizes=(SMALL,), tiers=("ieee",), passes=("forward",)):
    return list(run.sweep(run.entries(of, tiers, passes, sizes), machine, timer))


def test_every_combination_that_makes_sense_is_an_entry():
    todo = run.entries((EAGER, subjects.RUNGS[1]), ("ieee", "bf16"), ("forward", "both"), [SMALL])
    assert [(e.subject.name, e.tier, e.pass_) for e in todo] == [
        ("eager", "ieee", "forward"), ("v1_naive", "ieee", "forward"),
        ("eager", "ieee", "both"), ("v1_naive", "ieee", "both"),
        ("eager", "bf16", "forward"), ("eager", "bf16", "both"),
    ]  # fmt: skip


def test_compile_is_measured_where_it_is_told():
    swept = [SMALL, (256, 512, 2560)]
    assert len(run.entries((COMPILE,), ("ieee",), ("forward",), swept)) == 2
    todo = run.entries((COMPILE,), ("ieee",), ("forward",), swept, compile_at={swept[1]})
    assert [entry.size for entry in todo] == [(256, 512, 2560)]


@pytest.mark.parametrize("pass_", ["forward", "both"])
@pytest.mark.parametrize("tier", ["ieee", "tf32", "bf16"])
def test_plain_pytorch_is_right_in_every_tier(machine, timer, on_cpu, tier, pass_):
    for row in rows((EAGER, STRONGEST), machine, timer, tiers=(tier,), passes=(pass_,)):
        assert row.status == "ok"
        assert 0 <= row.error < {"ieee": 1e-5, "tf32": 1e-5, "bf16": 0.05}[tier]
        assert row.note == ""
        assert row.dtype == ("bfloat16" if tier == "bf16" else "float32")
        assert (row.cold_ms, row.graph_ms, row.wall_ms, row.peak_bytes) == (1.0, 1.0, 1.0, 4096)


def test_auto_names_the_rung_that_ran():
    (entry,) = run.entries((subjects.AUTO,), ("ieee",), ("forward",), [SMALL])
    assert entry.ran == "v3_fused"
    assert entry.cost == run.ladder.rung("v3_fused").forward_cost(16, 40, 8)


def test_costs_are_counted_in_the_bytes_of_the_dtype():
    ieee, bf16 = run.entries((EAGER,), ("ieee", "bf16"), ("forward",), [SMALL])
    assert ieee.cost.bytes == 2 * bf16.cost.bytes
    assert ieee.flops == bf16.flops == 2 * 16 * 40 * 8
    ieee, bf16 = run.entries((subjects.AUTO,), ("ieee", "bf16"), ("forward",), [SMALL])
    # Query, positive and negatives are read as bfloat16 and written as float32 besides.
    assert bf16.cost.bytes - ieee.cost.bytes == (2 + 4) * (16 + 16 + 40) * 8


def test_what_nobody_predicted_has_no_cost():
    (both,) = run.entries((STRONGEST,), ("ieee",), ("both",), [SMALL])
    assert both.cost is None and both.flops == 6 * 16 * 40 * 8


def test_a_kernel_that_turns_wrong_after_ten_calls_is_caught(machine, timer, on_cpu):
    calls = []

    def loss(query, positive, negatives):
        calls.append(1)
        return Model(0.1)(query, positive, negatives) * (1 if len(calls) <= 10 else 1.001)

    first, second = rows((subject("turns", loss), EAGER), machine, timer)
    assert first.status == "wrong: error 1.0e-03"
    assert first.error == pytest.approx(1e-3, rel=0.01)
    assert second.status == "ok"


def test_a_wrong_gradient_is_caught(machine, timer, on_cpu):
    def loss(query, positive, negatives):
        return Model(0.1)(query, positive.detach(), negatives) + 0 * positive.sum()

    (row,) = rows((subject("detached", loss),), machine, timer, passes=("both",))
    assert row.status == "wrong: error 1.0e+00"  # of the positive's gradient nothing is left


def test_a_missing_gradient_is_caught(machine, timer, on_cpu):
    def loss(query, positive, negatives):
        return Model(0.1)(query, positive.detach(), negatives)

    (row,) = rows((subject("detached", loss),), machine, timer, passes=("both",))
    assert row.status == "wrong: error inf"


def test_a_wrong_query_among_right_ones_is_caught(machine, timer, on_cpu):
    def each(query, positive, negatives):
        losses = info_nce(query, positive, negatives, 0.1, reduction="none")
        return losses * torch.where(torch.arange(len(losses)) == 3, 1.01, 1.0)

    mean = Model(0.1)
    (row,) = rows(
        (subject("one_wrong", mean, each=lambda tier, temperature: each),), machine, timer
    )
    assert row.status == "wrong: error 1.0e-02"


def test_what_float64_cannot_check_is_not_called_right(machine, timer, on_cpu, monkeypatch):
    def out_of_memory(*arguments):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(run.check, "expected", out_of_memory)
    (row,) = rows((EAGER,), machine, timer)
    assert row.status.startswith("not checked") and not row.ok


def test_a_call_that_waits_for_the_gpu_is_marked(machine, timer, on_cpu):
    timer.waited = True
    (row,) = rows((EAGER,), machine, timer)
    assert row.ok and row.graph_ms is None
    assert row.note == "the call waits for the GPU: cold has the CPU's time in it"


def test_operands_that_do_not_fit_are_rows_and_the_sweep_goes_on(
    machine, timer, on_cpu, monkeypatch
):
    draw = run.operands

    def operands(B, D, N):
        if N > 100:
            raise torch.OutOfMemoryError("no room")
        return draw(B, D, N)

    monkeypatch.setattr(run, "operands", operands)
    found = rows((EAGER, STRONGEST), machine, timer, sizes=[(16, 8, 400), SMALL])
    assert [row.status for row in found[:2]] == ["out of memory: the operands do not fit"] * 2
    assert [row.ok for row in found[2:]] == [True, True]


def test_a_lost_gpu_ends_the_sweep_after_the_row_that_broke_it(machine, timer, on_cpu):
    def illegal(query, positive, negatives):
        timer.lost = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def synchronize():
        if getattr(timer, "lost", False):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    timer.synchronize = synchronize
    found = []
    with pytest.raises(run.GpuLost, match=r"wild at B, D, N = \(16, 8, 40\)"):
        todo = run.entries((subject("wild", illegal), EAGER), ("ieee",), ("forward",), [SMALL])
        for row in run.sweep(todo, machine, timer):
            found.append(row)
    assert [row.status.split(":")[0] for row in found] == ["failed"]


def test_a_wrong_graph_is_caught(machine, timer, on_cpu, monkeypatch):
    monkeypatch.setattr(
        timer, "graph", lambda call, seconds: (timer.cold(call, seconds), 1.01 * call())
    )
    (row,) = rows((EAGER,), machine, timer)
    assert row.status == "wrong: error 1.0e-02"


def test_a_kernel_that_turns_wrong_after_the_graph_is_caught(machine, timer, on_cpu, monkeypatch):
    graphs = []
    model = Model(0.1)

    def graph(call, seconds):
        result = timer.cold(call, seconds), call()
        graphs.append(1)
        return result

    monkeypatch.setattr(timer, "graph", graph)
    turns = subject("turns", lambda *operands: model(*operands) * (1.001 if graphs else 1))
    (row,) = rows((turns,), machine, timer)
    assert row.status == "wrong: error 1.0e-03"


def test_a_nan_among_results_is_the_error(machine, timer, on_cpu, monkeypatch):
    def graph(call, seconds):
        return timer.cold(call, seconds), call() * torch.nan

    monkeypatch.setattr(timer, "graph", graph)
    (row,) = rows((EAGER,), machine, timer)
    assert row.status == "wrong: error nan" and math.isnan(row.error)


def test_failures_are_rows_and_the_sweep_goes_on(machine, timer, on_cpu):
    def out_of_memory(query, positive, negatives):
        raise torch.OutOfMemoryError("tried to allocate a great deal")

    def broken(query, positive, negatives):
        raise RuntimeError("no such instruction\nand a long trace")

    cannot = dict(cannot=lambda B, N, D, pass_: f"needs N = B, not {N} = {B}")
    found = rows(
        (
            subject("hungry", out_of_memory),
            subject("broken", broken),
            subject("in_batch", None, **cannot),
            EAGER,
        ),
        machine, timer,
    )  # fmt: skip
    assert [row.status for row in found] == [
        "out of memory",
        "failed: RuntimeError: no such instruction",
        "needs N = B, not 40 = 16",
        "ok",
    ]
    assert all(row.cold_ms is None for row in found[:3])


def test_a_call_over_the_limit_is_not_repeated_and_larger_ones_are_foretold(machine, timer, on_cpu):
    timer.seconds = 0.5
    sizes = [(16, 8, 40), (16, 8, 120), (16, 8, 600)]
    found = rows((EAGER,), machine, timer, sizes=sizes)
    # 0.5 s a call, then three times and five times the work of the one before.
    assert [row.status for row in found] == ["ok", "ok", found[2].status]
    assert found[2].status == "over the time limit: 2.5 s a call, foretold from a smaller size"
    timer.seconds = 1.5
    (row,) = rows((EAGER,), machine, timer)
    assert row.status == "over the time limit: 1.5 s a call"


def test_what_was_measured_before_an_interruption_is_kept(machine, timer, on_cpu, tmp_path):
    def interrupted(query, positive, negatives):
        raise KeyboardInterrupt

    writer = Writer(tmp_path / "gpu.csv", machine)
    todo = run.entries((EAGER, subject("stop", interrupted)), ("ieee",), ("forward",), [SMALL])
    with pytest.raises(KeyboardInterrupt):
        for row in run.sweep(todo, machine, timer):
            writer.write(row)
    assert [row.name for row in records.read(writer.path)] == ["eager"]


def test_measuring_leaves_pytorch_s_setting_as_it_was(machine, timer, on_cpu):
    before = torch.backends.cuda.matmul.allow_tf32
    seen = []

    def loss(query, positive, negatives):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return Model(0.1)(query, positive, negatives)

    spy = Subject("spy", "peer", lambda tier, temperature: loss, ("ieee", "tf32"))
    rows((spy,), machine, timer, tiers=("tf32",))
    assert set(seen) == {True} and torch.backends.cuda.matmul.allow_tf32 == before
    seen.clear()
    rows((spy,), machine, timer, tiers=("ieee",))
    assert set(seen) == {False}
