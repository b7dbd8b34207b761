"""CUDA C++ into plain C++, line by line.

A C++ compiler cannot parse three things of CUDA: a launch ``k<<<grid, block>>>(x)``, a
``__shared__`` variable, and an ``extern __shared__`` array. :func:`rewrite` turns them into calls
of ``include/cuemu/language.h`` and puts a guard against faults into every launcher. Every other
character stays where it is, so that the compiler's messages, the debugger's lines and the
emulator's errors name the lines of the learner's file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from infonce_kernels.emulator import structure
from infonce_kernels.emulator.tokens import Token, tokenize
from infonce_kernels.emulator.unsupported import UnsupportedFeature, find_unsupported

_OPENING = {"(": ")", "[": "]", "{": "}"}
_SPECIFIERS = ("extern", "static", "volatile", "const")


def rewrite(source: str, filename: str) -> str:
    """Plain C++ for the CUDA text ``source``.

    The result is a ``#line`` directive followed by as many lines as ``source`` has. ``filename`` is
    the name that errors will show.

    Raises:
        UnsupportedFeature: the text uses a part of CUDA that the emulator does not run.
        SyntaxError: a launch or a ``__shared__`` declaration cannot be understood, braces do not
            balance, or device code and host code are mixed up.
    """
    tokens = tokenize(source)
    try:
        known = structure.analyse(source, tokens)
        find_unsupported(source, filename, tokens)
        structure.check(known, tokens)
    except structure.StructureError as error:
        raise SyntaxError(f"{filename}:{error.line}: {error}") from None
    escaped = filename.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line 1 "{escaped}"\n' + _Rewriter(source, filename, tokens, known).run()


class _Rewriter:
    def __init__(
        self, source: str, filename: str, tokens: list[Token], known: structure.Structure
    ) -> None:
        self.filename = filename
        self.tokens = tokens
        self.structure = known
        self.launcher_bodies = {f.body for f in known.functions if f.is_launcher}
        self.position = 0
        self.output: list[str] = []
        self.scopes: list[str] = []  # "namespace" or "other", one for each open brace
        self.directive_lines = structure.directive_lines(source)
        self.file_scope_arrays: dict[str, str] = {}  # extern __shared__ name -> element type

    def run(self) -> str:
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            match token.text:
                case "__noinline__":
                    # A macro would also hit the system headers' __attribute__((__noinline__)).
                    self._replace("__attribute__((noinline))")
                case "__shared__":
                    self._shared_declaration()
                case "<<<":
                    self._launch()
                case "{":
                    self.scopes.append("namespace" if self._opens_namespace() else "other")
                    self._copy()
                    if self.position - 1 in self.launcher_bodies:
                        self.output.append(" CUEMU_GUARD_LAUNCHER")
                case "}":
                    if self.scopes:
                        self.scopes.pop()
                    self._copy()
                case name if name in self.file_scope_arrays and not self._is_member():
                    element = self.file_scope_arrays[name]
                    self._replace(f"(::cuemu::dynamic_shared<{element}>())")
                case _:
                    self._copy()
        return "".join(self.output)

    # ---- moving over the tokens ----------------------------------------------------------------

    def _copy(self) -> None:
        self._replace(self.tokens[self.position].text)

    def _replace(self, text: str) -> None:
        self.output.append(text)
        self.position += 1

    def _error(self, message: str, line: int) -> SyntaxError:
        return SyntaxError(f"{self.filename}:{line}: {message}")

    def _line_text(self, line: int) -> str:
        """The line as C++; inside a macro, that of the macro's use."""
        return "__LINE__" if line in self.directive_lines else str(line)

    def _last_output(self, index: int | None = None) -> int:
        """The index of the last piece of output before ``index`` that is not blank, or -1."""
        index = len(self.output) if index is None else index
        for i in range(index - 1, -1, -1):
            if self.output[i] and not Token(self.output[i], 0).is_blank:
                return i
        return -1

    def _is_member(self) -> bool:
        last = self._last_output()
        return last >= 0 and self.output[last] in (".", "->", "::")

    def _opens_namespace(self) -> bool:
        """Whether the brace at hand opens a namespace or an extern "C" block."""
        last = self._last_output()
        before = self._last_output(last) if last >= 0 else -1
        texts = [self.output[i] for i in (last, before) if i >= 0]
        if texts and texts[0] == '"C"':
            return True
        while last >= 0 and (self.output[last] == "::" or Token(self.output[last], 0).is_word):
            if self.output[last] == "namespace":
                return True
            last = self._last_output(last)
        return False

    def _find(self, text: str, start: int) -> int:
        """The index of the next ``text`` outside any brackets that open after ``start``."""
        depth = 0
        for i in range(start, len(self.tokens)):
            current = self.tokens[i].text
            if depth == 0 and current == text:
                return i
            depth += (current in _OPENING) - (current in _OPENING.values())
        raise self._error(f"no {text} follows", self.tokens[start].line)

    def _text(self, begin: int, end: int) -> str:
        return "".join(token.text for token in self.tokens[begin:end])

    # ---- launches ------------------------------------------------------------------------------

    def _launch(self) -> None:
        line = self.tokens[self.position].line
        kernel = self._take_kernel(line)
        self._require_kernel(kernel, line)
        end = self._find(">>>", self.position + 1)
        configuration = self._text(self.position + 1, end)
        opening = end + 1
        while opening < len(self.tokens) and self.tokens[opening].is_blank:
            opening += 1
        if opening == len(self.tokens) or self.tokens[opening].text != "(":
            raise self._error("a launch needs its arguments in parentheses after >>>", line)
        closing = self._find(")", opening + 1)
        arguments = self._text(opening + 1, closing)
        blanks = self._text(end + 1, opening)
        name = " ".join(kernel.replace("\\\n", " ").split())
        self.output.append(
            f"::cuemu::launch(::cuemu::LaunchConfig(CUEMU_STRING({name}), __FILE__, "
            f"{self._line_text(line)}, {configuration}), "
            f"[&](auto... cuemu_arguments) {{ {kernel}(cuemu_arguments...); }}{blanks}"
            + (f", {self._null_as_pointer(opening + 1, closing)}" if arguments.strip() else "")
            + ")"
        )
        self.position = closing + 1

    def _require_kernel(self, name: str, line: int) -> None:
        plain = structure.launched_plain_function(self.structure, name)
        if plain is not None:
            raise self._error(
                f"{plain.name} cannot be launched: it is not declared __global__ (line "
                f"{plain.line})",
                line,
            )

    def _null_as_pointer(self, begin: int, end: int) -> str:
        """The arguments; NULL, an integer to a template, becomes nullptr."""
        return "".join(
            "nullptr" if token.text == "NULL" else token.text for token in self.tokens[begin:end]
        )

    def _take_kernel(self, line: int) -> str:
        """Removes the name of the launched kernel from the end of the output."""
        i = self._last_output()
        if i < 0:
            raise self._error("a launch without a kernel's name", line)
        begin = self._begin_of_name(i)
        while True:
            before = self._last_output(begin)
            if before >= 0 and self.output[before] == "template":
                before = self._last_output(before)
            if before < 0 or self.output[before] not in ("::", ".", "->"):
                break
            begin = before
            left = self._last_output(before)
            if left < 0 or not re.fullmatch(r"\w+|[>)\]]+", self.output[left]):
                break
            if self.output[left] in ("return", "else", "do"):
                break
            begin = self._begin_of_name(left)
        kernel = "".join(self.output[begin:])
        del self.output[begin:]
        return kernel.rstrip() if "\n" not in kernel[len(kernel.rstrip()) :] else kernel

    def _begin_of_name(self, i: int) -> int:
        """The first index of ``name``, ``name<...>``, ``name[...]`` or ``(...)`` that ends at i."""
        if self.output[i] not in (">", ">>>", ")", "]"):
            before = self._last_output(i)
            while before > 1 and self.output[before - 1 : before + 1] == ["#", "#"]:
                i = self._last_output(before - 1)  # a name that a macro pastes: a##b
                before = self._last_output(i)
            return i
        j = i
        angles = brackets = 0
        while j >= 0:
            piece = self.output[j]
            if piece in (")", "]", "}"):
                brackets += 1
            elif piece in _OPENING:
                brackets -= 1
            elif brackets == 0 and set(piece) == {">"}:
                angles += len(piece)
            elif brackets == 0 and set(piece) == {"<"}:
                angles -= len(piece)
            if brackets == 0 and (angles == 0 or not self.output[i].startswith(">")):
                break
            j -= 1
        if self.output[i] == ")":
            return j
        name = self._last_output(j)
        return self._begin_of_name(name) if self.output[i] == "]" else name

    # ---- shared memory -------------------------------------------------------------------------

    def _shared_declaration(self) -> None:
        line = self.tokens[self.position].line
        end = self._find(";", self.position + 1)
        before = self._remove_specifiers()
        is_extern = "extern" in before
        qualifiers = [word for word in before if word in ("volatile", "const")]
        words = self.tokens[self.position + 1 : end]
        newline = "\\\n" if line in self.directive_lines else "\n"
        newlines = newline * self._text(self.position + 1, end).count("\n")
        pieces = [" " if t.is_blank else t.text for t in words]
        if "extern" in pieces:
            pieces.remove("extern")
            is_extern = True
        alignment, pieces = _take_alignment(pieces)
        pieces = [p for p in pieces if p != "static"]
        if "=" in pieces:
            raise self._error("CUDA forbids an initialiser on a __shared__ variable", line)
        base, declarators = _split_declaration(" ".join(qualifiers) + " " + "".join(pieces).strip())
        if not declarators:
            raise self._error("this __shared__ declaration cannot be understood", line)
        statements: list[str] = []
        if "{" in base:  # a struct defined right here
            statements = [f"using cuemu_type_{declarators[0].name} = {base}"]
            base = f"cuemu_type_{declarators[0].name}"
        if is_extern:
            statements += [self._extern_array(base, d, line) for d in declarators]
        else:
            statements += [self._variable(base, d, alignment, line) for d in declarators]
        self.output.append("; ".join(s for s in statements if s) + newlines)
        self.position = end

    def _remove_specifiers(self) -> list[str]:
        """Removes the words that may stand before ``__shared__``, and returns them."""
        words: list[str] = []
        while (last := self._last_output()) >= 0 and self.output[last] in _SPECIFIERS:
            words.insert(0, self.output[last])
            self.output[last] = ""
        return words

    def _in_function(self) -> bool:
        return "other" in self.scopes

    def _extern_array(self, base: str, declarator: _Declarator, line: int) -> str:
        if not re.fullmatch(r"\[\s*\]", declarator.dimensions):
            raise self._error("extern __shared__ must declare an array without a size: x[]", line)
        element = base + declarator.stars
        if not self._in_function():
            self.file_scope_arrays[declarator.name] = element
            return ""
        return f"{element}* const {declarator.name} = ::cuemu::dynamic_shared<{element}>()"

    def _variable(self, base: str, declarator: _Declarator, alignment: str, line: int) -> str:
        if not self._in_function():
            raise UnsupportedFeature(
                self.filename,
                line,
                "a __shared__ variable outside a function",
                "declare it in the kernel, and pass a pointer to the functions that use it",
            )
        size = declarator.dimensions
        if word := structure.run_time_size(self.structure, self.tokens, self.position, size):
            raise self._error(
                f"the size of {declarator.name}{size} must be a compile-time constant, and {word} "
                f"is not: use extern __shared__ {base} {declarator.name}[], and give its bytes at "
                "the launch",
                line,
            )
        kind = f"{base}{declarator.stars}{size}"
        name = declarator.name
        return (
            f"struct cuemu_{name}; auto& {name} = ::cuemu::shared<{kind}, cuemu_{name}>"
            f'("{name}", {alignment or 0}, __FILE__, {self._line_text(line)})'
        )


@dataclass(frozen=True)
class _Declarator:
    stars: str
    name: str
    dimensions: str


def _take_alignment(pieces: list[str]) -> tuple[str, list[str]]:
    """Removes ``__align__(n)``, ``alignas(n)`` or ``__attribute__((aligned(n)))``; returns n."""
    for i, piece in enumerate(pieces):
        if piece not in ("__align__", "alignas", "__attribute__"):
            continue
        begin = pieces.index("(", i)
        depth = 0
        for end in range(begin, len(pieces)):
            depth += (pieces[end] == "(") - (pieces[end] == ")")
            if depth == 0:
                break
        inside = "".join(pieces[begin : end + 1])
        if piece == "__attribute__":
            inside = re.sub(r"\(\s*\(\s*(?:__)?aligned(?:__)?\s*(.*)\)\s*\)", r"\1", inside)
        elif piece == "alignas" and not re.search(r"\d|sizeof|alignof|[A-Z_]{3,}", inside):
            inside = f"alignof{inside}" if inside.strip("() ") else inside
        return inside, pieces[:i] + pieces[end + 1 :]
    return "", pieces


def _split_declaration(text: str) -> tuple[str, list[_Declarator]]:
    """``float a[N], *b`` into ``float`` and its declarators: none if the text is no declaration."""
    parts = list(_split_commas(re.sub(r"\s+", " ", text)))
    first = re.fullmatch(r"(.*[\w>}\s])??\s*((?:\*\s*)*)\b(\w+)\s*((?:\[.*\])?)\s*", parts[0])
    if not first or not first[1]:
        return "", []
    declarators = [_Declarator(first[2].replace(" ", ""), first[3], first[4])]
    for part in parts[1:]:
        match = re.fullmatch(r"\s*((?:\*\s*)*)(\w+)\s*((?:\[.*\])?)\s*", part)
        if not match:
            return "", []
        declarators.append(_Declarator(match[1].replace(" ", ""), match[2], match[3]))
    return first[1].strip(), declarators


def _split_commas(text: str) -> Iterator[str]:
    """The parts between the commas that stand outside any brackets."""
    depth = begin = 0
    for i, character in enumerate(text):
        depth += (character in "<([{") - (character in ">)]}")
        if character == "," and depth == 0:
            yield text[begin:i]
            begin = i + 1
    yield text[begin:]
