import subprocess
from pathlib import Path

import pytest

from infonce_kernels.build import nvcc
from infonce_kernels.build.errors import compiler_failed, excerpt, first_error
from infonce_kernels.build.source import load

# Each line that is wrong, and what a compiler must say of it: the error's own line and column.
WRONG = """#include "my header.h"
#line 1 "mine.cu"
int good;
\tint x = undeclared + 1;
int y = also_undeclared;
"""


def log_of(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, env={"LC_ALL": "C"} | PATH
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my header.h").write_text("int from_header;\n")
    (tmp_path / "wrong.cu").write_text(WRONG)
    return tmp_path


def test_the_first_error_of_gxx(folder: Path, gxx: str) -> None:
    error = first_error(log_of(gxx, "-fsyntax-only", "-x", "c++", "wrong.cu", cwd=folder))
    assert (error.file, error.line) == ("mine.cu", 2)
    assert "'undeclared' was not declared" in error.message


def test_the_first_error_of_nvcc(folder: Path, compiler: nvcc.Nvcc) -> None:
    error = first_error(log_of(compiler.path, "-cubin", "wrong.cu", cwd=folder))
    assert (error.file, error.line) == ("mine.cu", 2)
    assert error.message == 'identifier "undeclared" is undefined'


def test_nvccs_caret_is_a_column(tmp_path: Path, compiler: nvcc.Nvcc) -> None:
    (tmp_path / "wrong.cu").write_text("int good;\n  int x = 1 2;\n")
    error = first_error(log_of(compiler.path, "-cubin", "wrong.cu", cwd=tmp_path))
    assert (error.line, error.column) == (2, 13)


def test_a_missing_header_is_found_in_both(tmp_path: Path, gxx: str, compiler: nvcc.Nvcc) -> None:
    (tmp_path / "wrong.cu").write_text("\n#include <absent.h>\n")
    for command in ((gxx, "-fsyntax-only", "-x", "c++"), (compiler.path, "-cubin")):
        error = first_error(log_of(*command, "wrong.cu", cwd=tmp_path))
        assert (error.file, error.line) == ("wrong.cu", 2)
        assert error.message == "absent.h: No such file or directory"


def test_errors_of_the_assembler_and_the_driver(tmp_path: Path, compiler: nvcc.Nvcc) -> None:
    (tmp_path / "big.cu").write_text(
        "__global__ void big(int* y) { __shared__ int x[20000]; "
        "x[threadIdx.x] = *y; __syncthreads(); *y = x[*y]; }\n"
    )
    error = first_error(log_of(compiler.path, "-cubin", "-arch=sm_90", "big.cu", cwd=tmp_path))
    assert error.message.startswith("ptxas: Entry function 'big(int*)' uses too much shared data")
    error = first_error(log_of(compiler.path, "-cubin", "-arch=sm_11", "big.cu", cwd=tmp_path))
    assert error.message.startswith("nvcc: ") and "sm_11" in error.message


def test_an_error_of_the_linker(tmp_path: Path, gxx: str) -> None:
    (tmp_path / "wrong.cpp").write_text("int absent(); int main() { return absent(); }\n")
    assert (
        "undefined reference to `absent()'"
        in first_error(log_of(gxx, "wrong.cpp", cwd=tmp_path)).message
    )


def test_an_error_inside_a_header_is_told_at_the_learners_line(tmp_path: Path, gxx: str) -> None:
    """A template of the standard library fails because of line 3."""
    text = '#include <memory>\nstruct S { S(int); };\nauto p = std::make_unique<S>("no");\n'
    (tmp_path / "mine.cu").write_text(text)
    log = log_of(gxx, "-fsyntax-only", "-x", "c++", "mine.cu", cwd=tmp_path)
    assert not first_error(log).file.endswith("mine.cu")
    error = compiler_failed(log, gxx, load(text, "mine").line, "mine.cu")
    assert (error.file, error.line) == ("mine.cu", 3)
    assert str(error).startswith("mine.cu:3: error: ")
    assert 'auto p = std::make_unique<S>("no");' in str(error)


def test_an_unknown_log_is_shown_by_its_end() -> None:
    log = "\n".join(f"line {i}" for i in range(100))
    error = compiler_failed(log, "/somewhere/c++", lambda file, line: None, "mine.cu")
    assert "line 99" in str(error) and "line 79" not in str(error)
    assert "/somewhere/c++" in str(error)
    assert (error.log, error.compiler) == (log, "/somewhere/c++")


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("int x = y;", 9, "   12 | int x = y;\n      |         ^\n"),
        ("\tx", 2, "   12 | \tx\n      | \t^\n"),
        ("int x;", None, "   12 | int x;\n"),
    ],
)
def test_the_caret_stands_under_its_column(text: str, column: int | None, expected: str) -> None:
    assert excerpt(text, 12, column) == expected
