"""A written submission, looked at the way a harness would: as text and as a namespace."""

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils import cpp_extension

MODEL = {"gpucodeforces": "example_torchcode.py", "kernelbench": "model.py"}
MODEL_NEW = {"gpucodeforces": "example_cudacode.py", "kernelbench": "model_new.py"}


def constants(path: Path) -> dict[str, str]:
    """The strings that a Python file assigns to names of its own."""
    assignments = [x for x in ast.parse(path.read_text("utf-8")).body if isinstance(x, ast.Assign)]
    return {
        x.targets[0].id: x.value.value
        for x in assignments
        if isinstance(x.value, ast.Constant) and isinstance(x.value.value, str)
    }


def namespace(path: Path) -> dict[str, Any]:
    """What is in a Python file once it has run."""
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), names)
    return names


def with_extension(
    path: Path, infonce_mean_loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A file with ModelNew, run with a compiled function that is given; and what it told
    load_inline."""
    asked: dict[str, Any] = {}

    def load_inline(**arguments: Any) -> SimpleNamespace:
        asked.update(arguments)
        return SimpleNamespace(infonce_mean_loss=infonce_mean_loss)

    monkeypatch.setattr(cpp_extension, "load_inline", load_inline)
    return namespace(path), asked
