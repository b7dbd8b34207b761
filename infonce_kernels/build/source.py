"""A kernel's text: where it comes from, the headers it quotes, and its content hash."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infonce_kernels import kernels

_QUOTED_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b.*$", re.MULTILINE)
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
    where `#pragma once` makes it empty."""

    name: str
    text: str
    includes: tuple[tuple[int, "SourceFile | None"], ...] = ()

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
        return "\n".join([line_directive(1, self.name), *_without_trailing_empty(lines), ""])


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
    newline or a brace). Headers included in quotes are looked for beside the file, then beside the
    rungs. name: what to call it; by default the rung's, the file's, or "kernel".
    Raises ValueError for a name that is neither, FileNotFoundError for a path without a file.
    """
    if isinstance(source, str) and ("\n" in source or "{" in source):
        name = name or "kernel"
        return KernelSource(name, _read(source, f"{name}.cu", [kernels.FOLDER]))
    path = _path(source)
    text = path.read_text(encoding="utf-8")
    folders = [path.absolute().parent, kernels.FOLDER]
    return KernelSource(name or path.stem, _read(text, path.name, folders))


def _path(source: str | Path) -> Path:
    if isinstance(source, str) and source in kernels.names():
        return kernels.path(source)
    if isinstance(source, Path) or source.endswith((".cu", ".cuh")):
        return Path(source).expanduser()
    raise ValueError(
        f"{source!r} is not a rung ({', '.join(kernels.names())}), not the path of a .cu file, "
        "and not CUDA C++ text"
    )


def _read(text: str, name: str, folders: list[Path]) -> SourceFile:
    return _follow(text, name, folders, once=set(), open_files=())


def _follow(
    text: str, name: str, folders: list[Path], once: set[Path], open_files: tuple[Path, ...]
) -> SourceFile:
    """Find the quoted headers of one file. A header that is nowhere is left to the compiler, which
    has folders of its own. `once` holds the files that said `#pragma once`."""
    text = text.replace("\r\n", "\n")
    code = without_comments(text)
    includes: list[tuple[int, SourceFile | None]] = []
    for match in _QUOTED_INCLUDE.finditer(code):
        found = _find(match[1], folders)
        if found is None:
            continue
        index = code.count("\n", 0, match.start())
        if found in once:
            includes.append((index, None))
            continue
        if found in open_files:
            raise ValueError(f"{name}:{index + 1}: {match[1]} includes itself; add #pragma once")
        included = found.read_text(encoding="utf-8")
        if _PRAGMA_ONCE.search(without_comments(included)):
            once.add(found)
            included = _PRAGMA_ONCE.sub("", included)
        header_folders = [found.parent, *folders]
        inner = _follow(included, match[1], header_folders, once, (*open_files, found))
        includes.append((index, inner))
    return SourceFile(name, text, tuple(includes))


def _find(include: str, folders: list[Path]) -> Path | None:
    return next((path.resolve() for f in folders if (path := f / include).is_file()), None)
