"""Submissions under harnesses of their two forms, in an empty folder, without this package.

`pytest -s` shows the speed-ups.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infonce_kernels.build import nvcc
from infonce_kernels.export import DEFAULT_RUNG, write

HARNESS = Path(__file__).parent / "harness"
# One rung whose product is PyTorch's, and one that multiplies itself.
RUNGS = [DEFAULT_RUNG, "v2_shared"]
pytestmark = [pytest.mark.cuda, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What load_inline needs, and no path to this package."""
    compiler = nvcc.find(int(torch.version.cuda.partition(".")[0]))
    ninja = str(Path(nvcc.find_ninja()).parent)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "CUDA_HOME": str(compiler.home),
        "PATH": os.pathsep.join([os.environ.get("PATH", ""), ninja]),
        "TORCH_EXTENSIONS_DIR": str(tmp_path_factory.mktemp("extensions")),
    }


def run(folder: Path, environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def judge(harness: str, folder: Path, environment: dict[str, str], *arguments: str) -> dict:
    script = shutil.copy(HARNESS / f"{harness}.py", folder.parent)
    verdict = json.loads(run(folder, environment, script, *arguments).splitlines()[-1])
    ms, ms_new = verdict["ms"]
    print(
        f"\n{harness} {' '.join(arguments[2:])}: {ms:.4f} -> {ms_new:.4f} ms, "
        f"speed-up {verdict['speedup']:.2f}, difference {verdict['difference']:.1e}"
    )
    return verdict


@pytest.mark.parametrize("rung", RUNGS)
def test_gpucodeforces(rung: str, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "submission"
    write("gpucodeforces", folder, rung)
    verdict = judge("gpucodeforces", folder, environment, str(folder))
    assert verdict["aligned"]
    assert verdict["dtypes"] == ["torch.float32"] * 2
    assert verdict["shapes"] == [[], []]

    hidden = "import sys, runpy; sys.modules['infonce_kernels'] = None; sys.path.insert(0, '.'); "
    output = run(
        folder, environment, "-c", hidden + "runpy.run_path('run_code.py', run_name='__main__')"
    )
    print(output)
    assert "Aligned at rtol = atol = 1e-05: yes" in output
    speedup = float(re.search(r"^Speedup: ([\d.]+)x$", output, re.MULTILINE)[1])
    # Two programs that time the same calls; other work on the machine moves both.
    assert 1 / 3 < speedup / verdict["speedup"] < 3


@pytest.mark.parametrize(
    ("rung", "precision", "dtype"),
    [
        (DEFAULT_RUNG, "fp32", "torch.float32"),
        (DEFAULT_RUNG, "bf16", "torch.bfloat16"),
        (DEFAULT_RUNG, "fp16", "torch.float16"),
        ("v2_shared", "bf16", "torch.bfloat16"),
    ],
)
def test_kernelbench(
    rung: str, precision: str, dtype: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "submission"
    write("kernelbench", folder, rung)
    verdict = judge("kernelbench", folder, environment, "model.py", "model_new.py", precision)
    assert verdict["aligned"]
    assert verdict["dtypes"] == [dtype] * 2
    assert verdict["shapes"] == [[], []]
