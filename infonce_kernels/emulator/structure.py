"""Which functions a CUDA text defines, and the mistakes that only their qualifiers show.

nvcc knows device code from host code; a C++ compiler that sees one language does not. So what nvcc
refuses for that reason is refused here, before the compiler runs. Text is read as it stands: a
function that a macro defines, or whose qualifiers a macro hides, is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from infonce_kernels.emulator.tokens import Token

_OPENING = {"(": ")", "[": "]", "{": "}"}
_WITH_PARENTHESES = {"__launch_bounds__", "__align__", "__attribute__", "alignas", "__maxnreg__"}
_KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "alignof", "decltype", "noexcept"}
_DEVICE_ONLY = re.compile(
    r"threadIdx|blockIdx|blockDim|gridDim|__syncthreads(?:_\w+)?|__syncwarp|__activemask"
    r"|__shfl(?:_\w+)?_sync|__(?:ballot|any|all)_sync|__(?:match|reduce)_\w+_sync"
)
_ENDS_THE_PROCESS = {"exit", "_exit", "_Exit", "quick_exit", "abort"}


class StructureError(Exception):
    """A mistake at a line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass
class Function:
    """A function's definition; `body` and `end` are the indices of its braces' tokens."""

    name: str
    line: int
    head: list[str]  # its tokens before the body, without blanks
    body: int
    extern_c: bool
    end: int = -1
    parameters: list[str] = field(default_factory=list)  # the words between the parentheses

    @property
    def is_kernel(self) -> bool:
        return "__global__" in self.head

    @property
    def is_device(self) -> bool:
        return self.is_kernel or "__device__" in self.head

    @property
    def is_known(self) -> bool:
        """Whether its qualifiers are all in sight: no macro's name stands in the head."""
        words = [*self._before_name(), self.name]
        return not any(re.fullmatch(r"[A-Z][A-Z0-9_]{2,}", word) for word in words)

    def _before_name(self) -> list[str]:
        return self.head[: self.head.index(self.name)] if self.name in self.head else self.head

    @property
    def is_launcher(self) -> bool:
        """Whether Python may call it: a host function that returns an error code."""
        returns = {"int", "cudaError_t", "cudaError"} & set(self._before_name())
        return self.extern_c and not self.is_device and bool(returns) and self.is_known


@dataclass
class Structure:
    functions: list[Function]
    kernels: set[str]  # names of all __global__ functions, those only declared too

    def around(self, index: int) -> Function | None:
        """The function whose body holds the token at `index`."""
        return next((f for f in self.functions if f.body < index < f.end), None)


def directive_lines(source: str) -> set[int]:
    """The lines of preprocessor directives, with those that a backslash joins to them."""
    found: set[int] = set()
    joined = False
    for number, text in enumerate(source.split("\n"), 1):
        if joined or text.lstrip().startswith("#"):
            found.add(number)
            joined = text.rstrip().endswith("\\")
    return found


def _alternative_lines(source: str) -> set[int]:
    """The lines that another branch of the same #if replaces: one branch of each is read."""
    found: set[int] = set()
    branches: list[str] = []
    for number, text in enumerate(source.split("\n"), 1):
        directive = re.match(r"\s*#\s*(\w+)\s*(.*)", text)
        match directive[1] if directive else "":
            case "if" | "ifdef" | "ifndef":
                is_false = directive is not None and re.match(r"0\s*$", directive[2])
                branches.append("removed" if is_false else "first")
            case "else" | "elif" if branches:
                branches[-1] = "first" if branches[-1] == "removed" else "other"
            case "endif" if branches:
                branches.pop()
            case _ if any(branch != "first" for branch in branches):
                found.add(number)
    return found


def analyse(source: str, tokens: Sequence[Token]) -> Structure:
    """The functions of a text. Raises StructureError where braces do not balance."""
    directives = directive_lines(source)
    skipped = directives | _alternative_lines(source)
    if _has_unbalanced_macro(tokens, directives):
        return Structure([], set())
    code = [i for i, t in enumerate(tokens) if not t.is_blank and t.line not in skipped]
    return _Scan(tokens, code).run()


def _has_unbalanced_macro(tokens: Sequence[Token], directives: set[int]) -> bool:
    texts = [t.text for t in tokens if t.line in directives]
    return texts.count("{") != texts.count("}")


class _Scan:
    """Reads declarations; bodies are passed over, but for a sign that one is not closed."""

    def __init__(self, tokens: Sequence[Token], code: Sequence[int]) -> None:
        self.tokens = tokens
        self.code = code
        self.result = Structure([], set())
        self.scopes: list[tuple[str, int]] = []  # kind, and the line of its head
        self.head: list[int] = []

    def run(self) -> Structure:
        place = 0
        parentheses = 0
        while place < len(self.code):
            index = self.code[place]
            text = self.tokens[index].text
            parentheses += (text in "([") - (text in ")]")
            if parentheses > 0:
                self.head.append(index)
            elif text == "{":
                place = self._open(place)
            elif text == "}":
                if not self.scopes:
                    raise StructureError(self.tokens[index].line, "this } closes nothing")
                self.scopes.pop()
                self.head = []
            elif text == ";":
                self._declaration()
                self.head = []
            else:
                self.head.append(index)
            place += 1
        if self.scopes:
            kind, line = self.scopes[-1]
            raise StructureError(line, f"no }} closes the {kind} that begins here")
        return self.result

    def _texts(self) -> list[str]:
        return [self.tokens[i].text for i in self.head]

    def _declaration(self) -> None:
        texts = self._texts()
        if "__global__" in texts:
            self.result.kernels.add(_name(texts)[0])

    def _open(self, place: int) -> int:
        """A brace at the scope of declarations; returns the place to go on from."""
        texts = self._texts()
        line = self.tokens[self.head[0] if self.head else self.code[place]].line
        self_c = texts[-2:] == ["extern", '"C"']
        if "namespace" in texts or self_c:
            self.scopes.append(('extern "C" block' if self_c else "namespace", line))
            self.head = []
            return place
        name, at = _name(texts)
        if not name:
            if {"struct", "class", "union"} & set(texts) and "=" not in texts:
                self.scopes.append(("struct", line))
                self.head = []
                return place
            return self._close(place, "braces", line)
        function = Function(
            name, self.tokens[self.head[at]].line, texts, self.code[place], self._extern_c(texts)
        )
        function.parameters = [t for t in texts[at + 1 :] if re.match(r"[A-Za-z_]", t)]
        end = self._close(place, f"function {name}", function.line)
        function.end = self.code[end]
        self.result.functions.append(function)
        if function.is_kernel:
            self.result.kernels.add(name)
        self.head = []
        return end

    def _extern_c(self, texts: list[str]) -> bool:
        return '"C"' in texts or any(kind.startswith("extern") for kind, _ in self.scopes)

    def _close(self, place: int, what: str, line: int) -> int:
        depth = 0
        for end in range(place, len(self.code)):
            token = self.tokens[self.code[end]]
            depth += (token.text == "{") - (token.text == "}")
            if depth == 0:
                return end
            following = self.tokens[self.code[end + 1]].text if end + 1 < len(self.code) else ""
            if token.text == "__global__" or (token.text == "extern" and following == '"C"'):
                raise StructureError(
                    line,
                    f"a }} is missing in the {what} that begins here: in line {token.line} the "
                    "next function begins inside it",
                )
        raise StructureError(line, f"a }} is missing in the {what} that begins here")


def _name(texts: list[str]) -> tuple[str, int]:
    """The name of the function that a declaration's head declares, and its place; "" for none."""
    start = 0
    for i, text in enumerate(texts):
        if text in ("__global__", "__device__"):
            start = i
    depth = angles = 0
    found = ("", -1)
    for i in range(start, len(texts)):
        text = texts[i]
        previous = texts[i - 1] if i > start else ""
        if depth == 0 and text == "<" and (previous == "template" or angles):
            angles += 1
        elif depth == 0 and angles and set(text) == {">"}:
            angles -= len(text)
        elif text == "(":
            is_name = re.fullmatch(r"[A-Za-z_]\w*", previous) and previous not in _KEYWORDS
            if depth == 0 and not angles and is_name and previous not in _WITH_PARENTHESES:
                found = (previous, i - 1)
                if start:
                    return found
            depth += 1
        elif text == ")":
            depth -= 1
        elif depth == 0 and not angles and text in ("=", ":") and "operator" not in texts:
            return found if text == ":" else ("", -1)
    return found


def check(structure: Structure, tokens: Sequence[Token]) -> None:
    """Raises StructureError for what nvcc refuses, or a GPU cannot do, in a function's body."""
    defined = {function.name for function in structure.functions if not function.is_kernel}
    for function in structure.functions:
        body = [t for t in tokens[function.body + 1 : function.end] if not t.is_blank]
        texts = [token.text for token in body]
        is_host = not function.is_device and function.is_known and "__device__" not in texts
        for i, token in enumerate(body):
            if not token.is_word or (i and texts[i - 1] in (".", "->")):
                continue
            if token.text in structure.kernels - defined and _is_called(texts, i):
                raise StructureError(
                    token.line,
                    f"a __global__ function must be launched: {token.text}<<<grid, block>>>(...)",
                )
            if is_host and _DEVICE_ONLY.fullmatch(token.text):
                raise StructureError(
                    token.line,
                    f"{token.text} exists in device code only, and {function.name} is a host "
                    "function: mark it __device__ or __global__",
                )
            ends = token.text in _ENDS_THE_PROCESS - defined and texts[i + 1 : i + 2] == ["("]
            if function.is_device and ends:
                raise StructureError(
                    token.line,
                    f"{token.text}() does not exist in device code: return ends a thread, "
                    "__trap() the launch",
                )


def _is_called(texts: list[str], i: int) -> bool:
    """Whether the name at i is followed by `(`, or by `<...>(`."""
    if texts[i + 1 : i + 2] == ["("]:
        return True
    if texts[i + 1 : i + 2] != ["<"]:
        return False
    depth = 0
    for j in range(i + 1, len(texts)):
        if texts[j] in (";", "{", "<<<"):
            return False
        depth += (texts[j] == "<") - (len(texts[j]) if set(texts[j]) == {">"} else 0)
        if depth <= 0:
            return depth == 0 and texts[j + 1 : j + 2] == ["("]
    return False


def launched_plain_function(structure: Structure, kernel: str) -> Function | None:
    """The function that a launch names, if the text shows that it is not __global__."""
    match = re.fullmatch(r"(?:(?:\w+\s*)?::\s*)*(\w+)\s*(?:<.*>)?", kernel.strip(), re.DOTALL)
    if match is None or match[1] in structure.kernels:
        return None
    found = [f for f in structure.functions if f.name == match[1]]
    return found[0] if found and all(f.is_known for f in found) else None


_RUN_TIME = re.compile(r"blockDim|gridDim|threadIdx|blockIdx")


def run_time_size(
    structure: Structure, tokens: Sequence[Token], index: int, size: str
) -> str | None:
    """The word in an array's size that has its value only at run time, where that is in sight."""
    function = structure.around(index)
    if function is None:
        return None
    before = [t.text for t in tokens[function.body : index] if not t.is_blank]
    words = re.findall(r"[A-Za-z_]\w*", size)
    return next((word for word in words if _is_run_time(function, before, word)), None)


def _is_run_time(function: Function, before: list[str], word: str) -> bool:
    """Whether the word is a built-in variable, a parameter, or a variable that depends on one."""
    if _RUN_TIME.fullmatch(word) or _is_parameter(function, word):
        return True
    for i, text in enumerate(before[:-1]):
        if text == word and before[i + 1] == "=":
            end = before.index(";", i) if ";" in before[i:] else len(before)
            depends = any(
                _is_run_time(function, before[:i], other) for other in before[i + 2 : end]
            )
            return depends or not _is_constant(before, i)
    return False


def _is_parameter(function: Function, word: str) -> bool:
    head = function.head
    begin = head.index(function.name) if function.name in head else 0
    return any(
        head[i] == word and head[i + 1] in (",", ")") and re.fullmatch(r"\w+", head[i - 1])
        for i in range(begin + 2, len(head) - 1)
    )


def _is_constant(texts: list[str], i: int) -> bool:
    """Whether `const` or `constexpr` stands in the declaration of the name at i."""
    for text in reversed(texts[:i]):
        if text in (";", "{", "}"):
            return False
        if text in ("const", "constexpr", "enum"):
            return True
    return False
