"""A rung and its headers as one text that reads from top to bottom."""

from infonce_kernels.build.source import SourceFile, load

_WIDTH = 120


def flat_text(rung: str) -> str:
    """The text of `rung` with its quoted headers in place of their includes.

    Unlike what the build compiles it has no `#line`: no message has to name the original files.
    """
    return _inline(load(rung).main)


def _inline(file: SourceFile) -> str:
    lines = file.text.rstrip("\n").split("\n")
    for index, header in file.includes:
        # A header that is None stands further up.
        lines[index] = _framed(header, file.name) if header is not None else ""
    return "\n".join([*lines, ""])


def _framed(header: SourceFile, file: str) -> str:
    return f"\n{_rule(header.name)}\n{_inline(header)}\n{_rule(file)}"


def _rule(name: str) -> str:
    return f"// ---- {name} ".ljust(_WIDTH, "-")
