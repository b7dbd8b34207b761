import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# Emulated kernels compile on first use, which no deadline foresees; CI repeats the same examples.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", parent=settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


# Whether a test's own part passed, for fixtures that ask afterwards.
PASSED_CALL = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[PASSED_CALL] = report.passed
    return report


def no_cuda() -> str | None:
    """Say why tests marked `cuda` cannot run here; None where they can."""
    if torch.version.cuda is None:
        return "PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch sees no NVIDIA GPU"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := no_cuda():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason=reason))
