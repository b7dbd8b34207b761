"""What a harness would not take, looked for in the kernel text itself."""

import re
from collections.abc import Sequence

from infonce_kernels.build.source import without_comments

# What only NVIDIA's hardware or compiler has, and what holds for warps of 32 threads alone.
_NVIDIA_ONLY = [
    ("PTX", r"\b(?:asm|__asm|__asm__)\b"),
    (
        "a warp-wide operation",
        r"\b__(?:shfl|ballot|any|all|match|vote|activemask|syncwarp|reduce)(?:_\w+)?\b",
    ),
    ("a name that speaks of warps", r"(?i:\b\w*warp\w*\b)"),
    (
        "arithmetic with 32 threads a warp",
        r"[%/]\s*32[uU]?\b|&\s*31[uU]?\b|>>\s*5\b|\b0[xX][fF]{8}",
    ),
    ("a tensor-core operation", r"(?<![A-Za-z])(?:wg|w)?mma(?![A-Za-z])|\bnvcuda\b|ldmatrix"),
    ("tensor memory", r"\btcgen05|(?i:\b(?:cu)?tensor_?map)"),
    ("an asynchronous copy or barrier", r"\bcp_async|\bmbarrier|\b__pipeline_|\bcuda::\w+"),
    ("thread-block clusters", r"(?i:\b\w*cluster\w*)|\bcooperative_groups\b"),
    ("code for one architecture", r"\b__CUDA_ARCH(?:__|_\w+)|\bsetmaxnreg\b"),
    (
        "a header of NVIDIA's own",
        r"#[ \t]*include[ \t]*<(?!cuda_(?:runtime|fp16|bf16)\.h>|\w+>)[^>]*>",
    ),
]
# KernelBench's static checker: a fallback to PyTorch, a class that does nothing, work moved out of
# the timed part, a tensor that computes later.
_CHEATS = [
    ("the word `try` or `except`", r"\b(?:try|except)\b"),
    ("the word `pass`", r"\bpass\b"),
    ("threads of the host", r"\bthreading\b|\bmultiprocessing\b|\bconcurrent\.futures\b"),
    ("a subclass of Tensor", r"\bclass\s+\w+.*\((?:torch\.)?Tensor\)|_make_subclass"),
]


def not_portable(text: str) -> str | None:
    """Why GPUCodeForces, whose machines are not NVIDIA's, cannot take this CUDA C++ text."""
    found = _first(without_comments(text), _NVIDIA_ONLY)
    return f"its machines are not NVIDIA's, but {found}" if found else None


def static_check(text: str) -> str | None:
    """Why KernelBench's static checker would refuse this text: CUDA C++, or a whole source file.

    It takes the rest of a line after `//` or `#` for a comment, and no other comment for one.
    """
    code = re.sub(r"(?://|#).*", "", text)
    if found := _first(code, _CHEATS):
        return f"its static checker refuses it: {found}"
    return None if "__global__" in code else "it has no __global__ function"


def _first(text: str, patterns: Sequence[tuple[str, str]]) -> str | None:
    for what, pattern in patterns:
        if match := re.search(pattern, text):
            line = text.count("\n", 0, match.start())
            return f"there is {what}: `{' '.join(text.splitlines()[line].split())}`"
    return None
