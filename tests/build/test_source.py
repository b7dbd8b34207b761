import subprocess
from pathlib import Path

import pytest

from infonce_kernels import kernels
from infonce_kernels.build import source


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def here(line: int, file: str) -> str:
    """C++ that compiles only on that line of that file."""
    return f'static_assert(__LINE__ == {line} && __builtin_strcmp(__FILE__, "{file}") == 0);'


def test_a_rung_a_path_and_a_text_are_told_apart(tmp_path: Path) -> None:
    rung = kernels.names()[0]
    assert source.load(rung).text == kernels.source(rung)
    assert source.load(rung).filename == f"{rung}.cu"
    write(tmp_path, **{"my kernel__cu": "int x;"})
    mine = source.load(tmp_path / "my kernel.cu")
    assert (mine.name, mine.filename, mine.text) == ("my kernel", "my kernel.cu", "int x;")
    assert source.load(str(tmp_path / "my kernel.cu")) == mine
    text = source.load("int f() { return 1; }", name="mine")
    assert (text.name, text.filename) == ("mine", "mine.cu")


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"'v99_faster' is not a rung.*{kernels.names()[0]}"):
        source.load("v99_faster")
    with pytest.raises(FileNotFoundError, match=r"absent\.cu"):
        source.load(tmp_path / "absent.cu")


def test_the_compiler_sees_every_file_under_its_own_name_and_lines(
    tmp_path: Path, gxx: str
) -> None:
    write(
        tmp_path / "with blank",
        main__cu=f"""// line 1
#include "first.cuh"
{here(3, "main.cu")}
/* #include "absent.cuh"
*/
#if 0
#include "first.cuh"
#endif
#include "guarded.h"
#include "guarded.h"
#include <cstdint>
int value = first + second + guarded; {here(12, "main.cu")}
const char* text = "//"; {here(13, "main.cu")}""",
        first__cuh=f"""#pragma once
#include "inner/second.cuh"
{here(3, "first.cuh")}
int first = 1;
""",
        guarded__h=f"""#ifndef GUARDED
#define GUARDED
{here(3, "guarded.h")}
int guarded = 3;
#endif""",
    )
    write(
        tmp_path / "with blank" / "inner",
        second__cuh=f'{here(1, "inner/second.cuh")}\n#include "beside.cuh"\n',
        beside__cuh=f"#pragma once\n{here(2, 'beside.cuh')}\nint second = 2;\n",
    )
    flat = tmp_path / "elsewhere.cpp"
    flat.write_text(source.load(tmp_path / "with blank" / "main.cu").main.flatten())
    command = [gxx, "-std=c++17", "-fsyntax-only", "-Werror", str(flat)]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_a_rewrite_reaches_every_file_once(tmp_path: Path) -> None:
    write(tmp_path, main__cu='#include "a.cuh"\nint x;\n', a__cuh="int y;\n")
    seen = []

    def rewrite(text: str, name: str) -> str:
        seen.append(name)
        return text.replace("int", "long")

    flat = source.load(tmp_path / "main.cu").main.flatten(rewrite)
    assert sorted(seen) == ["a.cuh", "main.cu"]
    assert "long x;" in flat and "long y;" in flat


def test_text_includes_what_lies_beside_the_rungs() -> None:
    header = next(kernels.FOLDER.glob("*.cuh"))
    loaded = source.load(f'#include "{header.name}"\nint x;\n')
    assert [file.name for file in loaded.main.files()] == ["kernel.cu", header.name]


def test_a_header_that_includes_itself_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, main__cu='\n#include "a.cuh"\n', a__cuh='int x;\n#include "a.cuh"\n')
    with pytest.raises(ValueError, match=r"a\.cuh:2: a\.cuh includes itself; add #pragma once"):
        source.load(tmp_path / "main.cu")


def test_the_hash_follows_the_texts_and_not_the_place(tmp_path: Path) -> None:
    def digest(folder: str, header: str) -> str:
        write(tmp_path / folder, main__cu='#include "a.cuh"\n', a__cuh=header)
        return source.load(tmp_path / folder / "main.cu").digest()

    assert digest("one", "int x;") == digest("two", "int x;")
    assert digest("one", "int x;") != digest("two", "int y;")


def test_a_line_is_found_by_file_and_number(tmp_path: Path) -> None:
    write(tmp_path, main__cu='#include "a.cuh"\nint x;\n', a__cuh="#pragma once\nint y;\n")
    loaded = source.load(tmp_path / "main.cu")
    assert loaded.line("main.cu", 2) == "int x;"
    assert loaded.line("a.cuh", 2) == "int y;"
    assert loaded.line("main.cu", 3) is None
    assert loaded.line("/usr/include/math.h", 1) is None


def test_comments_become_blanks_and_literals_stay() -> None:
    text = """int a; // "not a string
char q = '"'; /* two
lines */ int b; const char* s = "/* no comment */"; auto r = R"x(// neither )" )x"; // end"""
    stripped = source.without_comments(text)
    assert [len(line) for line in stripped.split("\n")] == [len(x) for x in text.split("\n")]
    kept = """int a;
char q = '"';
         int b; const char* s = "/* no comment */"; auto r = R"x(// neither )" )x";"""
    assert [line.rstrip() for line in stripped.split("\n")] == kept.split("\n")
