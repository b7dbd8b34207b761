"""A kernel's text: where it comes from, the headers it quotes, and its content hash."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infonce_kernels import kernels

# The ladder's first rung, which has no kernel text.
_PLAIN_PYTORCH = "v0_reference"
_QUOTED_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b.*$", re.MULTILINE)
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b", re.MULTILINE)
_INCLUDE_GUARD = re.compile(
    r"\s*#[ \t]*(?:ifndef[ \t]+|if[ \t]*![ \t]*defined[ \t]*\(?[ \t]*)(\w+)[ \t]*\)?[ \t]*\n"
    r"\s*#[ \t]*define[ \t]+\1\b"
)
_COMMENT_OR_LITERAL = re.compile(
    r"""
      (?P<comment> //(?:\\\n|[^\n])* | /\*.*?\*/ )
    | R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
    | "(?:\\.|[^"\\\n])*"
    | '(?:\\.[^'\n]*|[^'\\\n])'
    """,
    re.VERBOSE | re.DOTALL,
)


def without_comments(text: str) -> str:
    """The text with comments turned into blanks: every line and column stays where it was."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0]) if match["comment"] else match[0]

    return _COMMENT_OR_LITERAL.sub(blank, text)


@dataclass(frozen=True)
class SourceFile:
    """One file. `includes` maps the index of a line `#include "x.cuh"` to that file, or to None
    where the preprocessor would find it empty. `once` is the macro that stands for the file's
    `#pragma once`, if it has one."""

    name: str
    text: str
    includes: tuple[tuple[int, "SourceFile | None"], ...] = ()
    once: str | None = None

    def files(self) -> Iterator["SourceFile"]:
        """This file and all that it includes."""
        yield self
        for _, included in self.includes:
            if included is not None:
                yield from included.files()

    def flatten(self, rewrite: Callable[[str, str], str] | None = None) -> str:
        """One text with the quoted headers in place of their includes.

        `#line` keeps every file's own name and numbering in the compiler's messages. One text can
        go anywhere, whatever blanks the folders of its headers have in their names.
        rewrite: (text, name) -> text with as many lines, applied to each file.
        """
        text = rewrite(self.text, self.name) if rewrite else self.text
        lines = text.split("\n")
        for index, included in self.includes:
            body = included.flatten(rewrite) if included is not None else ""
            lines[index] = f"{body}\n{line_directive(index + 2, self.name)}"
        lines = [line_directive(1, self.name), *_without_trailing_empty(lines)]
        if self.once is not None:  # one text has no files, so a macro does what the pragma did
            lines = [f"#ifndef {self.once}", f"#define {self.once}", *lines, "#endif"]
        return "\n".join([*lines, ""])


def _without_trailing_empty(lines: list[str]) -> list[str]:
    return lines[:-1] if lines and not lines[-1] else lines


def line_directive(line: int, name: str) -> str:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line {line} "{quoted}"'


@dataclass(frozen=True)
class KernelSource:
    """CUDA C++ text with a name. `main.name` is the file name that messages use."""

    name: str
    main: SourceFile

    @property
    def filename(self) -> str:
        return self.main.name

    @property
    def text(self) -> str:
        return self.main.text

    def line(self, file: str, number: int) -> str | None:
        """Line `number` (from 1) of one of the files, or None where there is no such line."""
        for source in self.main.files():
            if source.name == file:
                lines = source.text.splitlines()
                return lines[number - 1] if 0 < number <= len(lines) else None
        return None

    def digest(self) -> str:
        """SHA-256 over the names and texts of all files."""
        return hashlib.sha256(self.main.flatten().encode()).hexdigest()


def load(source: str | Path, name: str | None = None) -> KernelSource:
    """The kernel source that `source` means.

    source: a rung's name, the path of a `.cu` file, or the CUDA C++ text itself (what contains a
    newline, or a brace and does not end with .cu or .cuh). Headers included in quotes are looked
    for beside the file, then beside the rungs, then in the folders of CPATH and
    CPLUS_INCLUDE_PATH. name: what to call it; by default the rung's, the file's, or "kernel".
    Raises TypeError where `source` is neither str nor Path, ValueError for a str that is none of
    these or a `name` that does not print on one line, FileNotFoundError for a path without a file.
    """
    if not isinstance(source, str | Path):
        raise TypeError(
            "source is a rung's name, the path of a .cu file or CUDA C++ text, "
            f"not {type(source).__name__}"
        )
    if isinstance(source, str) and _is_text(source):
        name = _printable(name or "kernel")
        return KernelSource(name, _read(source.removeprefix(_BOM), f"{name}.cu", [kernels.FOLDER]))
    path = _path(source)
    text = path.read_text(encoding="utf-8-sig")
    folders = [path.absolute().parent, kernels.FOLDER]
    return KernelSource(_printable(name or path.stem), _read(text, _printable(path.name), folders))


_BOM = "\ufeff"  # some editors begin a file with it; compilers refuse it inside one


def _is_text(source: str) -> bool:
    return "\n" in source or ("{" in source and not source.endswith((".cu", ".cuh")))


def _printable(name: str) -> str:
    """A newline would end the `#line` that carries the name to the compiler's messages."""
    if not name.isprintable():
        raise ValueError(f"name {name!r} has a newline or another character that does not print")
    return name


def _path(source: str | Path) -> Path:
    if isinstance(source, str) and source in kernels.names():
        return kernels.path(source)
    if isinstance(source, Path) or source.endswith((".cu", ".cuh")):
        return Path(source).expanduser()
    if source == _PLAIN_PYTORCH:
        raise ValueError(
            f"{source!r} is the ladder's plain PyTorch rung: it has no kernel text to build; the "
            f"rungs that are kernels are {', '.join(kernels.names())}"
        )
    raise ValueError(
        f"{source!r} is not a rung ({', '.join(kernels.names())}), not the path of a .cu file, "
        "and not CUDA C++ text"
    )


def _read(text: str, name: str, folders: list[Path]) -> SourceFile:
    return _Reader([*folders, *_include_path()]).follow(text, name)


def _include_path() -> list[Path]:
    """The folders that the environment gives to compilers, whose headers must be part of the hash.
    A toolkit's or the C++ library's own folder is left to the compiler: its headers belong to it.
    """
    variables = [os.environ.get(name, "") for name in ("CPATH", "CPLUS_INCLUDE_PATH")]
    folders = [Path(name).absolute() for value in variables for name in value.split(":") if name]
    own = ("cuda_runtime.h", "stdlib.h", "cstdlib")
    return [f for f in folders if not any((f / header).exists() for header in own)]


class _Reader:
    """Follows the quoted headers of one source.

    Conditions are not evaluated: what stands inside an `#if` may be included or not. So a header
    with `#pragma once` is left out only where it was surely included before.
    """

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders
        self._once: dict[Path, str] = {}  # the macro of each file that says #pragma once
        self._guarded: set[Path] = set()  # these, and the files with an include guard
        self._done: set[Path] = set()  # files of `_once` that no condition can have left out

    def follow(
        self,
        text: str,
        name: str,
        open_files: tuple[Path, ...] = (),
        certain: bool = True,
        once: str | None = None,
    ) -> SourceFile:
        """Find the quoted headers of one file. A header that is nowhere is left to the compiler,
        which has folders of its own. open_files: those that led here; certain: none of them did so
        under a condition."""
        text = text.replace("\r\n", "\n")
        code = without_comments(text)
        folders = [*(file.parent for file in reversed(open_files)), *self._folders]
        includes: list[tuple[int, SourceFile | None]] = []
        for match in _QUOTED_INCLUDE.finditer(code):
            found = _find(match[1], folders)
            if found is None:
                continue
            index = code.count("\n", 0, match.start())
            if found in open_files and found not in self._guarded:
                raise ValueError(
                    f"{name}:{index + 1}: {match[1]} includes itself; add #pragma once"
                )
            if found in open_files or found in self._done:
                includes.append((index, None))
                continue
            sure = certain and not _inside_condition(code[: match.start()])
            includes.append((index, self._header(found, match[1], open_files, sure)))
        return SourceFile(name, text, tuple(includes), once)

    def _header(
        self, path: Path, name: str, open_files: tuple[Path, ...], certain: bool
    ) -> SourceFile:
        text = path.read_text(encoding="utf-8-sig")
        code = without_comments(text.replace("\r\n", "\n"))
        if _PRAGMA_ONCE.search(code):
            # Numbered, not named by its folder: the same texts elsewhere have the same hash.
            self._once.setdefault(path, f"INFONCE_KERNELS_ONCE_{len(self._once) + 1}")
            text = _PRAGMA_ONCE.sub("", text)
        if path in self._once or _INCLUDE_GUARD.match(code):
            self._guarded.add(path)
        once = self._once.get(path)
        file = self.follow(text, name, (*open_files, path), certain, once)
        if certain and once is not None:
            self._done.add(path)
        return file


def _inside_condition(code: str) -> bool:
    """Whether an `#if` is open at the end of this code."""
    found = [match[1] for match in _CONDITIONAL.finditer(code)]
    return 2 * found.count("endif") < len(found)


def _find(include: str, folders: list[Path]) -> Path | None:
    return next((path.resolve() for f in folders if (path := f / include).is_file()), None)
