"""The exceptions of `build`, and the first error of a compiler's log in the learner's own terms."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .demangle import demangle


class BackendUnavailable(RuntimeError):
    """A backend cannot run on this machine; the text says what is missing and what mends it."""


class LaunchError(RuntimeError):
    """A launcher returned an error. `code` is its cudaError_t; in the emulator `__cause__` holds
    what went wrong, with kernel, line, block and thread."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class BuildError(RuntimeError):
    """A kernel could not be built.

    `file` and `line` are the learner's own, where the compiler named one; `log` is everything that
    the compiler printed; `compiler` is its path, with that of the host compiler under nvcc.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        log: str = "",
        compiler: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.log = log
        self.compiler = compiler


@dataclass(frozen=True)
class Diagnostic:
    """One error of a compiler's log. `index` is its line in the log; line and column count from 1,
    and are None where the compiler gave none."""

    index: int
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None


_PATTERNS = [
    # g++, clang++ and the preprocessor that nvcc calls:  f.cu:3:11: error: 'foo' was not declared
    r"(?P<file>[^\s:][^:]*):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<message>.*)",
    # nvcc's front end:  f.cu(3): error: identifier "foo" is undefined
    r"(?P<file>\S.*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<message>.*)",
    # ptxas names the line of its own temporary PTX, which says nothing to the learner.
    r"(?P<tool>ptxas) .*, line \d+; (?:error|fatal)\s*: (?P<message>.*)",
    r"(?P<tool>ptxas|nvcc|nvlink|cudafe\+\+|cicc) (?:error|fatal)\s*: (?P<message>.*)",
    # The compiler or linker itself, without a line:  g++: error: unrecognized option
    r"(?P<tool>\S*(?:\+\+|gcc|clang|cc1plus|ld)(?:-[\d.]+)?): (?:fatal )?error: (?P<message>.*)",
    r"(?P<tool>\S*ld): .*(?P<message>(?:undefined reference|cannot find|multiple definition).*)",
    r".*?: (?P<message>undefined reference to .*)",
    # The shell that ninja calls, or the system:  /nonexistent/g++: not found
    r"(?P<message>.*: (?:not found|No such file or directory|Permission denied))",
]
_ERROR = [re.compile(f"^{pattern}$") for pattern in _PATTERNS]
# What led to a header's error:  "In file included from f.cu:2:" or "f.cu:9:3:   required from"
_CONTEXT = re.compile(
    r"^(?:In file included from |\s+from )?(?P<file>[^\s:][^:]*):(?P<line>\d+)[:,]"
)


def first_error(log: str) -> Diagnostic | None:
    """The first error in a compiler's log, or None where none is recognised."""
    lines = log.splitlines()
    for index, text in enumerate(lines):
        match = next(filter(None, (pattern.match(text) for pattern in _ERROR)), None)
        if match is None:
            continue
        found = match.groupdict()
        tool = f"{found['tool']}: " if found.get("tool") else ""
        message = tool + re.sub(r"_Z\w+", lambda name: demangle(name[0]), found["message"])
        if not found.get("line"):
            return Diagnostic(index, message)
        column = found.get("column")
        return Diagnostic(
            index,
            message,
            found["file"],
            int(found["line"]),
            int(column) if column else _nvcc_column(lines[index + 1 : index + 3]),
        )
    return None


def _nvcc_column(echo: list[str]) -> int | None:
    """The column that nvcc's caret marks: it echoes the source line, two blanks further in."""
    if len(echo) == 2 and echo[1].strip() == "^":
        return max(echo[1].index("^") - 1, 1)
    return None


def error_at(file: str, line: int, message: str, text: str) -> BuildError:
    """An error that we found ourselves, in the form of a compiler's. text: the whole file's."""
    shown = excerpt(text.splitlines()[line - 1], line, None).rstrip("\n")
    return BuildError(f"{file}:{line}: error: {message}\n{shown}", file=file, line=line)


def compiler_failed(
    log: str, compiler: str, learner_line: Callable[[str, int], str | None], title: str
) -> BuildError:
    """The BuildError for a failed compilation.

    compiler: path of the compiler that ran, for the message. learner_line: (file, line) -> text of
    that line, or None where the file is not the learner's. title: what was built, "v1_naive.cu".
    """
    error = first_error(log)
    if error is None:
        tail = "\n".join(log.strip().splitlines()[-20:]) or "(it printed nothing)"
        return BuildError(
            f"{title}: {compiler} failed. Its last lines:\n{tail}", log=log, compiler=compiler
        )
    lines = log.splitlines()
    file, line, shown = _locate(error, lines, learner_line)
    where = f"{file}:{line}" if file else title
    elsewhere = error.file is not None and error.file != file
    position = f" ({Path(error.file).name}:{error.line})" if error.file and elsewhere else ""
    if error.file is None:
        shown = _said_before(lines[: error.index])
    message = f"{where}: error: {error.message}{position}\n{shown}compiler: {compiler}"
    return BuildError(message, file=file, line=line, log=log, compiler=compiler)


def _said_before(lines: list[str]) -> str:
    """What stands before an error without a line, where the reason often is: what the host compiler
    said, before nvcc's "failed to preprocess". ninja's echo of the commands is left out."""
    noise = re.compile(r"\s*$|ptxas info|Error building extension|FAILED: |\[\d+/\d+\] |.{400}")
    kept = [line for line in lines if not noise.match(line)]
    return "".join(f"{line}\n" for line in kept[-20:])


def _locate(
    error: Diagnostic, log: list[str], learner_line: Callable[[str, int], str | None]
) -> tuple[str | None, int | None, str]:
    """File, line and excerpt in the learner's source; of an error inside a system header, the
    place that led there."""
    if error.file is None or error.line is None:
        return None, None, ""
    text = learner_line(error.file, error.line)
    if text is not None:
        return error.file, error.line, excerpt(text, error.line, _caret(text, error))
    for context in log[: error.index][::-1] + log[error.index :]:
        match = _CONTEXT.match(context)
        if match and (text := learner_line(match["file"], int(match["line"]))) is not None:
            return match["file"], int(match["line"]), excerpt(text, int(match["line"]), None)
    return error.file, error.line, ""


def _caret(text: str, error: Diagnostic) -> int | None:
    """Column of the error in the learner's line. The emulator's rewrite shifts columns, so the name
    that the message quotes is looked for near the compiler's column."""
    column = error.column or 1
    quoted = re.search(r"""['"](\w+)['"]""", error.message)
    if quoted:
        name = re.compile(rf"\b{quoted[1]}\b")
        places = [match.start() + 1 for match in name.finditer(text)]
        if places:
            return min(places, key=lambda place: abs(place - column))
    if error.column is None:
        return None
    return min(column, len(text) + 1)


def excerpt(text: str, line: int, column: int | None) -> str:
    """A source line as compilers show it, with a caret under `column` (from 1) if there is one."""
    shown = f"{line:5} | {text}\n"
    if column is not None:
        # Tabs are kept, so that the caret stands right whatever their width.
        shown += "      | " + re.sub(r"[^\t]", " ", text[: column - 1]) + "^\n"
    return shown
