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


def test_a_path_with_a_brace_is_a_path(tmp_path: Path) -> None:
    write(tmp_path / "x{y}", k__cu="int x;")
    assert source.load(str(tmp_path / "x{y}" / "k.cu")).text == "int x;"


def test_plain_pytorch_has_no_kernel_text() -> None:
    with pytest.raises(ValueError, match=r"'v0_reference' is .*plain PyTorch.* no kernel text"):
        source.load("v0_reference")


def test_what_is_no_str_or_path_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^source is a rung's name.* not NoneType$"):
        source.load(None)


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\0b"])
def test_a_name_is_of_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=r"^name .* does not print"):
        source.load("int x;\n", name=name)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "main.cu").write_text('\ufeff#include "a.cuh"\n', encoding="utf-8")
    (tmp_path / "a.cuh").write_text("\ufeff#pragma once\nint x;\n", encoding="utf-8")
    loaded = source.load(tmp_path / "main.cu")
    assert [file.name for file in loaded.main.files()] == ["main.cu", "a.cuh"]
    assert "\ufeff" not in loaded.main.flatten()
    assert source.load("\ufeffint x;\n").text == "int x;\n"


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


def compiles(path: Path, gxx: str) -> str:
    """What g++ says of the flattened file: nothing where all is well."""
    flat = path.with_name("flat.cpp")
    flat.write_text(source.load(path).main.flatten())
    command = [gxx, "-std=c++17", "-fsyntax-only", "-Werror", str(flat)]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_a_header_under_a_false_condition_comes_later(tmp_path: Path, gxx: str) -> None:
    write(
        tmp_path,
        main__cu=f"""#if 0
#include "a.cuh"
#endif
#include "a.cuh"
#include "b.cuh"
int value = a + b; {here(6, "main.cu")}""",
        a__cuh=f"#pragma once\nint a = 1; {here(2, 'a.cuh')}\n",
        b__cuh='#pragma once\n#include "a.cuh"\nint b = a;\n',
    )
    assert compiles(tmp_path / "main.cu", gxx) == ""


@pytest.mark.parametrize(
    "guard",
    [
        "#pragma once\n{}",
        "// a comment\n#ifndef {name}\n#define {name}\n{}#endif\n",
        "#if !defined({name})\n# define {name} 1\n{}#endif\n",
    ],
)
def test_guarded_headers_may_include_each_other(tmp_path: Path, gxx: str, guard: str) -> None:
    a, b = '#include "b.cuh"\nint a;\n', '#include "a.cuh"\nint b;\n'
    write(
        tmp_path,
        main__cu='#include "a.cuh"\n#include "b.cuh"\nint sum = a + b;\n',
        a__cuh=guard.format(a, name="A_CUH"),
        b__cuh=guard.format(b, name="B_CUH"),
    )
    assert compiles(tmp_path / "main.cu", gxx) == ""


def test_headers_of_headers_do_not_multiply(tmp_path: Path) -> None:
    """Each includes all before it: by every path there would be two to the twentieth."""
    for i in range(20):
        includes = "".join(f'#include "h{j}.cuh"\n' for j in range(i))
        write(tmp_path, **{f"h{i}__cuh": f"#pragma once\n{includes}int x{i};\n"})
    write(tmp_path, main__cu='#include "h19.cuh"\n')
    assert len(list(source.load(tmp_path / "main.cu").main.files())) == 21


@pytest.mark.parametrize("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_a_header_of_the_compilers_path_is_hashed(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"{tmp_path / 'none'}:{tmp_path / 'mine'}")
    write(tmp_path / "mine", far__cuh="int x;\n")
    before = source.load('#include "far.cuh"\n')
    write(tmp_path / "mine", far__cuh="int y;\n")
    assert source.load('#include "far.cuh"\n').digest() != before.digest()
    # A toolkit's headers stay the compiler's.
    write(tmp_path / "mine", cuda_runtime__h="")
    assert source.load('#include "far.cuh"\n').main.includes == ()


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
