"""Kernel text in a lesson: one function of a file, or how two functions differ."""

import difflib
import re

from IPython.display import Code
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from infonce_kernels import kernels, source


class Listing(Code):
    """Highlighted text whose long lines scroll: wrapped in mid-word, code is hard to read."""

    def _repr_html_(self) -> str:
        style = "white-space: pre; overflow-x: auto"
        formatter = HtmlFormatter(noclasses=True, nobackground=True, prestyles=style)
        return highlight(self.data, get_lexer_by_name(self.language), formatter)


def header(name: str) -> Code:
    """Shows a header that the rungs share, whole."""
    return Listing((kernels.FOLDER / name).read_text(encoding="utf-8"), language="cuda")


def function(rung: str, name: str) -> Code:
    """Shows function `name` of a rung with its comment, as the file has it."""
    return Listing(function_text(source(rung), name), language="cuda")


def changes(before: tuple[str, str], after: tuple[str, str]) -> Code:
    """Shows how a function changed from one rung to another; each given as (rung, function)."""
    texts = [function_text(source(rung), name).splitlines() for rung, name in (before, after)]
    names = [f"{rung}: {name}" for rung, name in (before, after)]
    return Listing("\n".join(difflib.unified_diff(*texts, *names, lineterm="")), language="diff")


def function_text(text: str, name: str) -> str:
    """The definition of function `name` in CUDA C++ text, with the comment lines above it.

    Raises ValueError where there is none.
    """
    lines = text.splitlines()
    opening = re.compile(rf"^(?!\s|//).*\b{re.escape(name)}\(|^\s+{re.escape(name)}\(")
    starts = [
        k
        for k, line in enumerate(lines)
        if opening.search(line) and not line.rstrip().endswith(";")
    ]
    if not starts:
        raise ValueError(f"no function {name!r} is defined in this text")
    start = starts[0]
    end, depth = start, 0
    while depth > 0 or "{" not in "".join(lines[start:end]):
        depth += lines[end].count("{") - lines[end].count("}")
        end += 1
    while start > 0 and lines[start - 1].startswith(("//", "template", "__global__")):
        start -= 1
    return "\n".join(lines[start:end])
