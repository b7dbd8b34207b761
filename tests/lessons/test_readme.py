"""README's part that comes from the record."""

import dataclasses
import re

import matplotlib
import pytest

from infonce_kernels import plots
from infonce_kernels.bench import records
from infonce_kernels.lessons import ROOT, readme


@pytest.fixture(scope="module")
def record():
    return records.latest()


def test_readme_is_what_the_record_says(record):
    text = readme.README.read_text("utf-8")
    assert readme.update(text, record) == text, "run `make sync`"


def test_the_figure_is_what_the_record_says(record, tmp_path):
    drawn = plots.speedup(record).save(tmp_path / "speedup.svg")
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if drawn.read_bytes() != readme.FIGURE.read_bytes() and matplotlib.__version__ != pinned[1]:
        pytest.skip("another matplotlib draws other lines")
    assert drawn.read_text() == readme.FIGURE.read_text(), "run `make sync`"


def test_a_changed_time_changes_the_table(record):
    text = readme.README.read_text("utf-8")
    rows = [
        dataclasses.replace(row, cold_ms=row.cold_ms * 2)
        if row.key == ("auto", "forward", "ieee", 256, 512, 2560)
        else row
        for row in record
    ]
    changed = readme.update(text, records.Record(record.path, rows))
    (line,) = set(changed.splitlines()) - set(text.splitlines())
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    before = record.row("auto", "forward", "ieee", 256, 2560, 512).cold_ms
    eager = record.row("eager", "forward", "ieee", 256, 2560, 512).cold_ms
    assert float(cells[5]) == pytest.approx(2 * before, rel=0.01)
    assert float(cells[6]) == pytest.approx(eager / before / 2, rel=0.05)
    strongest = record.row("strongest", "forward", "ieee", 256, 2560, 512).cold_ms
    assert float(cells[8]) == pytest.approx(strongest / before / 2, rel=0.05)


def test_what_failed_says_so(record):
    rows = [
        dataclasses.replace(row, status="out of memory", cold_ms=None)
        if row.key == ("eager", "both", "ieee", 16384, 512, 163840)
        else row
        for row in record
    ]
    section = readme.section(records.Record(record.path, rows))
    lines = [li for li in section.splitlines() if li.startswith("| 16384, 512, 163840 | float32")]
    _, both = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert (both[2], both[6]) == ("out of memory", "–")
    assert float(both[8]) > 0


def test_where_it_loses_is_where_readme_says(record):
    def ms(name, pass_, tier, B, N, D=512):
        return record.row(name, pass_, tier, B, N, D).cold_ms

    for size in ((256, 2560), (4096, 40960), (16384, 163840)):
        assert ms("compile", "both", "ieee", *size) < ms("auto", "both", "ieee", *size)
    for N in (65536, 262144, 1048576):
        plain = min(ms(name, "both", "ieee", 256, N) for name in ("eager", "strongest"))
        assert plain < ms("auto", "both", "ieee", 256, N)
    for pass_ in ("forward", "both"):
        assert ms("auto", pass_, "bf16", 256, 2560) < ms("eager", pass_, "bf16", 256, 2560)
        assert ms("auto", pass_, "bf16", 1024, 10240) > ms("eager", pass_, "bf16", 1024, 10240)


def test_without_markers_nothing_is_written():
    with pytest.raises(ValueError, match=r"README\.md has no <!-- from the record"):
        readme.update("# another text", records.latest())
