"""The tokens of CUDA C++, as far as the rewriter needs to tell them apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

# One alternative for each kind of C++ token that may hide the others; the rest is one character.
_TOKEN = re.compile(
    r"""
      //(?:\\\n|[^\n])*                                   # comments
    | /\*.*?(?:\*/|\Z)
    | (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"     # raw string
    | (?:u8|[uUL])?"(?:\\.|[^"\\\n])*"
    | (?:u8|[uUL])?'(?:\\.|[^'\\\n])+'
    | \.?\d(?:'?[\w.])*                                   # number, with digit separators
    | \w+ | <<< | >>> | :: | -> | \s+ | .
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(slots=True)
class Token:
    text: str
    line: int

    @property
    def is_blank(self) -> bool:
        return self.text.isspace() or self.text.startswith(("//", "/*"))

    @property
    def is_word(self) -> bool:
        return self.text[0].isalpha() or self.text[0] == "_"


def tokenize(source: str) -> list[Token]:
    """The tokens of ``source``, blanks and comments included: joined, they give it back."""
    tokens: list[Token] = []
    line = 1
    for match in _TOKEN.finditer(source):
        tokens.append(Token(match[0], line))
        line += match[0].count("\n")
    return tokens
