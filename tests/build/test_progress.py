import re

import pytest

from infonce_kernels.build import show_progress
from infonce_kernels.build.progress import progress


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFONCE_KERNELS_QUIET", raising=False)


def test_the_line_appears_at_once_and_ends_with_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress("building v1_naive for the emulator"):
        assert capsys.readouterr().err == "building v1_naive for the emulator ... "
    captured = capsys.readouterr()
    assert re.fullmatch(r"\d+\.\d s\n", captured.err)
    assert captured.out == ""


def test_a_failure_ends_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), progress("building"):
        raise ZeroDivisionError
    assert capsys.readouterr().err == "building ... failed\n"


def test_it_can_be_silenced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert show_progress(False) is True
    with progress("building"):
        pass
    assert show_progress(True) is False
    monkeypatch.setenv("INFONCE_KERNELS_QUIET", "1")
    with progress("building"):
        pass
    assert capsys.readouterr().err == ""
