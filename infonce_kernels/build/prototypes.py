"""The `extern "C"` launchers of a kernel file, read from its text.

Python needs each parameter's name and type to check and convert arguments; parsing the few forms
that a launcher takes costs less than a C++ parser, and what it cannot read it refuses by name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import BuildError, error_at
from .source import KernelSource, SourceFile, without_comments

# C++ spellings -> the one name that the launcher's tables use.
_SCALARS = {
    "bool": "bool",
    "char": "int8",
    "signed char": "int8",
    "int8_t": "int8",
    "unsigned char": "uint8",
    "uint8_t": "uint8",
    "short": "int16",
    "int16_t": "int16",
    "unsigned short": "uint16",
    "uint16_t": "uint16",
    "int": "int32",
    "int32_t": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "uint32_t": "uint32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "long long int": "int64",
    "int64_t": "int64",
    "ptrdiff_t": "int64",
    "unsigned long": "uint64",
    "unsigned long long": "uint64",
    "uint64_t": "uint64",
    "size_t": "uint64",
    "float": "float32",
    "double": "float64",
}
_POINTEES = _SCALARS | {
    "void": "void",
    "half": "float16",
    "__half": "float16",
    "half2": "float16",
    "__half2": "float16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat162": "bfloat16",
    "__nv_bfloat162": "bfloat16",
    "float2": "float32",
    "float4": "float32",
    "double2": "float64",
    "int2": "int32",
    "int4": "int32",
}
_STREAM = "cudaStream_t"
_RETURNS = {"cudaError_t", "int"}
# A kernel with C linkage is not for the CPU to call.
_DEVICE = {"__global__", "__device__"}
_NO_MEANING = r"(?:\b(?:inline|static|__host__|const|volatile|struct)\b|\bstd\s*::)\s*"
_RESTRICT = r"\b(?:__restrict__|__restrict|restrict)\b"
_EXTERN_C = re.compile(r'\bextern\s*"C"\s*(\{)?')
_HEADER = re.compile(r"[^;{}()=#]*?\b(\w+)\s*\(")


@dataclass(frozen=True)
class Parameter:
    """A launcher's parameter. `type` is its C++ type as written, without `__restrict__`; `kind` is
    "pointer", "scalar" or "stream"; `element` is the type pointed to or passed, by a name such as
    "float32", "bfloat16", "int32", or "void"."""

    name: str
    type: str
    kind: str
    element: str

    @property
    def writable(self) -> bool:
        """Whether the launcher may write through this pointer: it is none to const."""
        return self.kind == "pointer" and "const" not in self.type.partition("*")[0].split()


@dataclass(frozen=True)
class Prototype:
    """A launcher's name, its parameters in order, and where it is defined."""

    name: str
    parameters: tuple[Parameter, ...]
    file: str
    line: int


def launchers(source: KernelSource) -> list[Prototype]:
    """Every `extern "C"` host function that the source defines, in order.

    Raises BuildError naming file and line where one returns anything but cudaError_t or int, or has
    a parameter that Python cannot pass.
    """
    found = (prototype for file in source.main.files() for prototype in _in_file(file))
    return list(dict.fromkeys(found))  # a header may be there twice, under conditions


def _in_file(file: SourceFile) -> Iterator[Prototype]:
    code = without_comments(file.text)
    for match in _EXTERN_C.finditer(code):
        if match[1] is None:
            yield from _function(file, code, match.end(), match.start())
        else:
            yield from _block(file, code, match.end())


def _block(file: SourceFile, code: str, start: int) -> Iterator[Prototype]:
    """The functions of `extern "C" { ... }`: whatever is defined at its own level."""
    end = _closing(code, start - 1)
    position = start
    while match := re.compile(r"[^\s;}]").search(code, position, end):
        position = match.start()
        yield from _function(file, code, position, position)
        semicolon, brace = code.find(";", position, end), code.find("{", position, end)
        if brace >= 0 and (semicolon < 0 or brace < semicolon):
            position = _closing(code, brace) + 1
        elif semicolon >= 0:
            position = semicolon + 1
        else:
            return


def _function(file: SourceFile, code: str, start: int, report: int) -> Iterator[Prototype]:
    """The function definition at `start`, if there is one and it runs on the CPU."""
    header = _HEADER.match(code, start)
    if header is None:
        return
    end = _closing(code, header.end() - 1)
    if not re.compile(r"\s*(?:noexcept\s*)?\{").match(code, end + 1):
        return  # a declaration
    returns = code[start : header.start(1)]
    if _DEVICE & set(re.findall(r"\w+", returns)):
        return
    line = code.count("\n", 0, report) + 1
    name = header[1]
    result = " ".join(re.sub(_NO_MEANING, "", returns).split())
    if result not in _RETURNS:
        raise _error(
            file,
            line,
            f"launcher {name} returns {result or 'nothing'}; let it return cudaError_t "
            "(`return cudaGetLastError();`), so that a failed launch is seen",
        )
    parameters = _split(code[header.end() : end])
    yield Prototype(
        name, tuple(_parameter(file, line, name, text) for text in parameters), file.name, line
    )


def _closing(code: str, opening: int) -> int:
    """Index of the bracket that closes the one at `opening`; the text's end if none does."""
    pairs = {"(": ")", "{": "}"}
    opens, closes = code[opening], pairs[code[opening]]
    depth = 0
    for match in re.compile(
        rf'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|[{opens}{closes}]'
    ).finditer(code, opening):
        depth += (match[0] == opens) - (match[0] == closes)
        if depth == 0:
            return match.start()
    return len(code)


def _split(parameters: str) -> list[str]:
    """The parameters' texts, split at commas outside any bracket."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(parameters):
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append(parameters[start:index])
            start = index + 1
    parts.append(parameters[start:])
    parts = [" ".join(part.split()) for part in parts]
    return [] if parts in ([""], ["void"]) else parts


def _parameter(file: SourceFile, line: int, launcher: str, text: str) -> Parameter:
    declaration = re.sub(_RESTRICT, "", text.partition("=")[0]).strip()
    match = re.fullmatch(r"(.*?[\s*&])\s*(\w+)\s*(\[\s*\w*\s*\])?", declaration)
    if match is None or match[2] in _POINTEES or match[2] == "const":
        raise _error(file, line, f"launcher {launcher}: parameter {text!r} has no name")
    type_, name = match[1].strip() + ("*" if match[3] else ""), match[2]
    type_ = re.sub(r"\s*([*&])\s*", r"\1", type_)
    type_ = re.sub(r"\s+", " ", type_)
    bare = " ".join(re.sub(_NO_MEANING, "", type_).split()).replace(" *", "*")
    if bare == _STREAM:
        return Parameter(name, type_, "stream", "void")
    if bare in _SCALARS:
        return Parameter(name, type_, "scalar", _SCALARS[bare])
    if bare.endswith("*") and bare[:-1] in _POINTEES:
        return Parameter(name, type_, "pointer", _POINTEES[bare[:-1]])
    raise _error(
        file,
        line,
        f"launcher {launcher}: parameter {name!r} has type {type_!r}, which Python cannot pass; "
        "use a pointer to a number type, void*, an integer, float, double, bool or cudaStream_t",
    )


def _error(file: SourceFile, line: int, message: str) -> BuildError:
    return error_at(file.name, line, message, file.text)
