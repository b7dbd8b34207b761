"""Submissions are complete, stand on their own, and compute what the original model does."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infonce_kernels import build, export, kernels, reference
from infonce_kernels.build import BackendUnavailable, nvcc
from infonce_kernels.export import DEFAULT_RUNG, HARNESSES, write
from tests.export.submission import MODEL, MODEL_NEW, constants, namespace, with_extension

FILES = {
    "gpucodeforces": {"example_torchcode.py", "example_cudacode.py", "run_code.py", "prompt.txt"},
    "kernelbench": {"model.py", "model_new.py", "README.md"},
}
SUBMISSIONS = [
    pytest.param(name, rung, id=f"{name}-{rung}")
    for name, harness in HARNESSES.items()
    for rung in harness.takes()
]
every_submission = pytest.mark.parametrize(("harness", "rung"), SUBMISSIONS)
ROOT = Path(__file__).resolve().parents[2]


@every_submission
def test_the_folder_is_made_with_the_files_of_the_form(
    harness: str, rung: str, tmp_path: Path
) -> None:
    folder = tmp_path / "of a user" / "submission"
    written = write(harness, folder, rung)
    assert {path.name for path in written} == FILES[harness]
    assert sorted(folder.rglob("*")) == sorted(written)


def test_the_original_design_is_the_default(tmp_path: Path) -> None:
    for harness in HARNESSES:
        write(harness, tmp_path / harness)
        write(harness, tmp_path / f"{harness} by name", "v3_fused")
        for name in FILES[harness]:
            text = (tmp_path / harness / name).read_text("utf-8")
            assert text == (tmp_path / f"{harness} by name" / name).read_text("utf-8")


@every_submission
def test_it_runs_without_this_package(harness: str, rung: str, tmp_path: Path) -> None:
    own = {"example_torchcode", "example_cudacode"}
    for path in write(harness, tmp_path, rung):
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module] if isinstance(node, ast.ImportFrom) else _names(node)
                assert {n.split(".")[0] for n in names} <= {"torch", *own, *sys.stdlib_module_names}
                assert not isinstance(node, ast.ImportFrom) or node.level == 0


def _names(node: ast.Import) -> list[str]:
    return [alias.name for alias in node.names]


@every_submission
def test_the_kernel_text_is_the_rungs_own(harness: str, rung: str, tmp_path: Path) -> None:
    write(harness, tmp_path, rung)
    exported = constants(tmp_path / MODEL_NEW[harness])["KERNEL"].splitlines()
    header = (kernels.FOLDER / "infonce.cuh").read_text("utf-8").splitlines()
    for lines in (kernels.source(rung).splitlines(), header):
        kept = [x for x in lines if x not in ('#include "infonce.cuh"', "#pragma once")]
        position = iter(exported)
        assert [line for line in kept if line not in position] == []  # each, in this order
    assert not [x for x in exported if re.match(r'#\s*(line|pragma|include\s*")', x)]


@every_submission
def test_our_words_are_none_that_the_static_checker_refuses(
    harness: str, rung: str, tmp_path: Path
) -> None:
    """Not even in a comment or a docstring, which a stricter checker might read."""
    write(harness, tmp_path, rung)
    path = tmp_path / MODEL_NEW[harness]
    text, kernel = path.read_text("utf-8"), constants(path)["KERNEL"]
    ours = text.replace(kernel, "")
    refused = r"\b(try|except|pass|threading|multiprocessing|concurrent|_make_subclass)\b"
    assert not re.search(refused, ours)
    assert not re.search(r"class .*Tensor\)", ours)
    assert "__global__" in text and "load_inline" in text
    # The checker drops these two kinds of comment, and the rung's own may say "pass".
    assert not re.search(refused, re.sub(r"(//|#).*", "", kernel))


def test_the_default_rung_has_none_of_them_in_a_comment_either(tmp_path: Path) -> None:
    write("kernelbench", tmp_path)
    assert not re.search(r"\b(try|except|pass)\b", (tmp_path / "model_new.py").read_text("utf-8"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("harness", HARNESSES)
def test_the_exported_model_is_the_original_to_the_last_bit(
    harness: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    write(harness, tmp_path)
    exported = namespace(tmp_path / MODEL[harness])
    assert exported["get_init_inputs"]() == [0.1]
    torch.manual_seed(42)
    inputs = exported["get_inputs"]()
    torch.manual_seed(42)
    assert all(map(torch.equal, inputs, exported["get_inputs"]()))  # the harness's seed decides
    assert [tuple(x.shape) for x in inputs] == [(256, 512), (256, 512), (2560, 512)]
    assert all(torch.allclose(x.norm(dim=1), torch.ones(len(x))) for x in inputs)

    inputs = [x.to(dtype) for x in inputs]
    loss = exported["Model"](0.07)(*inputs)
    assert loss.dtype == dtype and loss.shape == ()
    assert torch.equal(loss, reference.Model(0.07)(*inputs))
    assert torch.equal(exported["Model"]()(*inputs), reference.Model()(*inputs))


class Emulated:
    """The compiled function of a submission, with the kernel text in the emulator.

    It stands for the C++ binding, and gives the launcher what that gives.
    """

    def __init__(self, kernel: str) -> None:
        self.launcher = build(kernel, "emulator").launchers["infonce_forward"]
        self.third: Tensor | None = None

    def __call__(
        self, query: Tensor, positive: Tensor, third: Tensor, temperature: float
    ) -> Tensor:
        self.third = third
        names = {p.name for p in self.launcher.parameters if not p.writable}
        (B, D), multiplies = query.shape, "negatives" in names
        N = third.shape[0 if multiplies else 1]
        loss = torch.full((B,), torch.nan)
        tensors = dict(query=query, positive=positive, loss=loss)
        tensors |= {"negatives" if multiplies else "similarities": third}
        if multiplies:
            tensors |= dict(similarities=torch.empty(B, N), statistics=torch.empty(3, B))
        scalars = dict(temperature=temperature, temperature_tensor=None, B=B, N=N, D=D)
        self.launcher.call({k: x.float().contiguous() for k, x in tensors.items()} | scalars)
        return loss.mean().to(query.dtype)


@every_submission
def test_model_new_is_right(
    harness: str, rung: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(harness, tmp_path, rung)
    function = Emulated(constants(tmp_path / MODEL_NEW[harness])["KERNEL"])
    names, asked = with_extension(tmp_path / MODEL_NEW[harness], function, monkeypatch)
    assert asked["functions"] == ["infonce_mean_loss"]

    original = namespace(tmp_path / MODEL[harness])
    model, model_new = (
        kind(*original["get_init_inputs"]()) for kind in (original["Model"], names["ModelNew"])
    )
    torch.manual_seed(42)
    inputs = original["get_inputs"]()
    loss = model_new(*inputs)
    truth = reference.truth(*inputs, 0.1).mean().item()
    assert loss.item() == pytest.approx(truth, rel=1e-6)
    assert torch.allclose(loss, model(*inputs), rtol=1e-5, atol=1e-5)
    multiplies = rung in ("v1_naive", "v2_shared")
    assert torch.equal(function.third, inputs[2] if multiplies else inputs[0] @ inputs[2].T)

    half = [x.bfloat16() for x in inputs]
    loss = model_new(*half)
    assert loss.dtype == torch.bfloat16
    assert torch.allclose(loss, model(*half), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rung", [DEFAULT_RUNG, "v2_shared"])
def test_nvcc_takes_kernel_and_binding(rung: str, tmp_path: Path) -> None:
    """All that load_inline compiles, for the device: its compiler checks the host's code too."""
    try:
        compiler = nvcc.find()
    except BackendUnavailable as missing:
        pytest.skip(str(missing))
    write("gpucodeforces", tmp_path / "submission", rung)
    text = constants(tmp_path / "submission" / "example_cudacode.py")
    source = tmp_path / "cuda.cu"
    source.write_text(text["DECLARATION"] + text["KERNEL"] + text["BINDING"])
    # A CPU build of PyTorch has CUDA's headers but for one, which its build generates.
    generated = tmp_path / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    generated.parent.mkdir(parents=True)
    generated.touch()
    torch_headers = Path(torch.__file__).parent / "include"
    folders = [tmp_path, torch_headers, torch_headers / "torch" / "csrc" / "api" / "include"]
    command = [compiler.path, "-cubin", "-arch=sm_90", "-std=c++20", "--expt-relaxed-constexpr"]
    command += ["-include", "torch/types.h", *(f"-isystem={folder}" for folder in folders)]
    done = subprocess.run(
        [*command, source, "-o", tmp_path / "cuda.cubin"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    """run_code.py of a submission on the CPU, with a ModelNew that is given."""
    write("gpucodeforces", tmp_path)
    monkeypatch.setattr(Tensor, "cuda", lambda x: x)
    monkeypatch.setattr(nn.Module, "cuda", lambda model: model)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def run(model: type[nn.Module], model_new: type[nn.Module]) -> tuple[bool, float, str]:
        for name, contents in {
            "example_torchcode": namespace(tmp_path / "example_torchcode.py") | {"Model": model},
            "example_cudacode": {"ModelNew": model_new},
        }.items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name, module)
        aligned, speedup = namespace(tmp_path / "run_code.py")["run_benchmark"]()
        return aligned, speedup, capsys.readouterr().out

    yield run


def _model(result: Tensor) -> type[nn.Module]:
    class Constant(nn.Module):
        calls = 0

        def __init__(self, temperature: float) -> None:
            super().__init__()

        def forward(self, query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
            type(self).calls += 1
            return result

    return Constant


def test_run_code_accepts_a_right_loss_and_times_both_models(benchmark: Any) -> None:
    model, model_new = _model(torch.tensor(8.0)), _model(torch.tensor(8.00008))
    aligned, speedup, output = benchmark(model, model_new)
    assert aligned
    assert "Aligned at rtol = atol = 1e-05: yes" in output
    assert f"Speedup: {speedup:.2f}x" in output
    assert model.calls == model_new.calls == 1 + 100 + 1000


@pytest.mark.parametrize("wrong", [torch.tensor(8.001), torch.tensor(torch.nan), torch.ones(1) * 8])
def test_run_code_rejects_a_wrong_loss(benchmark: Any, wrong: Tensor) -> None:
    aligned, _, output = benchmark(_model(torch.tensor(8.0)), _model(wrong))
    assert not aligned
    assert "Aligned at rtol = atol = 1e-05: NO" in output


def test_the_readme_names_the_files(tmp_path: Path) -> None:
    write("kernelbench", tmp_path)
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert set(re.findall(r"\bmodel\w*\.py\b", readme)) == {"model.py", "model_new.py"}
    assert "v3_fused" in readme


def test_the_prompt_shows_the_model(tmp_path: Path) -> None:
    write("gpucodeforces", tmp_path)
    code = re.search(r"```python\n(.*?)```", (tmp_path / "prompt.txt").read_text("utf-8"), re.S)[1]
    (tmp_path / "shown.py").write_text(code)
    shown, model = namespace(tmp_path / "shown.py"), namespace(tmp_path / "example_torchcode.py")
    torch.manual_seed(0)
    inputs = shown["get_inputs"]()
    torch.manual_seed(0)
    assert all(map(torch.equal, inputs, model["get_inputs"]()))
    loss = shown["Model"](*shown["get_init_inputs"]())(*inputs)
    assert torch.equal(loss, model["Model"](*model["get_init_inputs"]())(*inputs))


def test_unknown_harness(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="harness='mlperf' is not one of gpucodeforces, kernel"):
        write("mlperf", tmp_path)


@pytest.mark.parametrize("harness", HARNESSES)
def test_a_rung_that_does_not_exist_or_has_no_kernel(harness: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rung='v99' is not on the ladder; there are v0_ref"):
        write(harness, tmp_path, "v99")
    with pytest.raises(
        ValueError, match=r"rung='v0_reference' cannot go to \w+: .* no kernel; choose .*v3_fused"
    ):
        write(harness, tmp_path, "v0_reference")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def edited_v3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of rung v3, to edit."""
    folder = tmp_path / "kernels"
    shutil.copytree(kernels.FOLDER, folder)
    monkeypatch.setattr(kernels, "FOLDER", folder)
    return folder / "v3_fused.cu"


def test_the_text_decides_what_gpucodeforces_cannot_take(edited_v3: Path, tmp_path: Path) -> None:
    text = edited_v3.read_text("utf-8")
    edited_v3.write_text(
        text.replace("  s_sum[t] = value;", "  s_sum[t] = __shfl_sync(~0u, value, 0);")
    )
    with pytest.raises(
        ValueError,
        match=r"rung='v3_fused' cannot go to GPUCodeForces: .*`s_sum\[t\] = __shfl_sync\(~0u, value"
        r", 0\);`; choose one of v1_naive, v2_shared",
    ):
        write("gpucodeforces", tmp_path / "submission")
    assert not (tmp_path / "submission").exists()
    assert write("kernelbench", tmp_path / "submission")


def test_the_text_decides_what_kernelbench_cannot_take(edited_v3: Path, tmp_path: Path) -> None:
    text = edited_v3.read_text("utf-8")
    edited_v3.write_text(text.replace("// Phase 1:", "/* first pass */ // Phase 1:"))
    with pytest.raises(
        ValueError, match=r"cannot go to KernelBench: .*the word `pass`: `/\* first"
    ):
        write("kernelbench", tmp_path / "submission")


@pytest.mark.parametrize("harness", HARNESSES)
def test_a_launcher_that_wants_more(harness: str, edited_v3: Path, tmp_path: Path) -> None:
    text = edited_v3.read_text("utf-8")
    edited_v3.write_text(
        text.replace("float* loss, float temp", "float* loss, half* mask, float temp")
    )
    with pytest.raises(
        ValueError,
        match=r"its infonce_forward takes `half\* mask`, which .* choose one of v1_naive",
    ):
        write(harness, tmp_path / "submission")


def test_nothing_of_the_user_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("mine")
    with pytest.raises(
        ValueError, match=r"folder='.*' is not empty.* name a new or an empty folder"
    ):
        write("kernelbench", tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "submission"):
        with pytest.raises(
            ValueError, match=r"folder='.*' cannot be written \(.+\): name a folder"
        ):
            write("kernelbench", folder)


def test_templates_ship_with_the_package() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = configuration["tool"]["setuptools"]["package-data"]["infonce_kernels"]
    templates = sorted((Path(export.__file__).parent / "templates").iterdir())
    assert {name for h in HARNESSES.values() for name in h.files.values()} <= {
        path.name for path in templates
    }
    for path in templates:
        assert any(fnmatch(f"export/templates/{path.name}", pattern) for pattern in patterns)
