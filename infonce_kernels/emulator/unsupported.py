"""The parts of CUDA that the emulator does not run, each with an error of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from infonce_kernels.emulator.tokens import Token


class UnsupportedFeature(Exception):
    """A kernel text uses something that the emulator does not run.

    Attributes:
        filename, line: where.
        feature: what.
        remedy: what to do instead.
    """

    def __init__(self, filename: str, line: int, feature: str, remedy: str) -> None:
        super().__init__(f"{filename}:{line}: the CPU emulator does not run {feature}; {remedy}")
        self.filename = filename
        self.line = line
        self.feature = feature
        self.remedy = remedy


_ON_A_GPU = "run this kernel on a GPU (backend='cuda')"

# What an identifier gives away: pattern, feature, remedy. Names of CUDA C++ Programming Guide 13.0.
_IDENTIFIERS = [
    (r"asm|__asm__|__asm", "inline PTX (asm)", f"use CUDA's intrinsics, or {_ON_A_GPU}"),
    (r"wgmma\w*|warpgroup_\w+", "wgmma (Hopper's warp-group matrix instructions)", _ON_A_GPU),
    (r"wmma|nvcuda", "tensor-core fragments (nvcuda::wmma)", _ON_A_GPU),
    (
        r"(?:CU|cu)[tT]ensorMap\w*|cp_async_bulk\w*|cuTensorMapEncode\w*",
        "TMA (tensor maps and bulk copies)",
        f"copy through registers, or {_ON_A_GPU}",
    ),
    (
        r"\w*mbarrier\w*",
        "mbarrier (asynchronous barriers)",
        f"use __syncthreads(), or {_ON_A_GPU}",
    ),
    (
        r"__pipeline_\w+|memcpy_async\w*|make_pipeline",
        "asynchronous copies (pipelines, memcpy_async)",
        f"load and store, then __syncthreads(), or {_ON_A_GPU}",
    ),
    (
        r"__cluster_dims__|this_cluster|cluster_group|__cluster\w+|cudaLaunchKernelEx\w*"
        r"|cudaLaunchAttributeClusterDimension",
        "thread-block clusters",
        f"let each block work alone, or {_ON_A_GPU}",
    ),
    (
        r"cudaTextureObject_t|texture|tex[123]D\w*|texCubemap\w*|cudaCreateTextureObject"
        r"|cudaBindTexture\w*",
        "textures",
        "read the array through a pointer",
    ),
    (
        r"cudaSurfaceObject_t|surf(?:[123]D|Cubemap)\w*|cudaCreateSurfaceObject",
        "surfaces",
        "write the array through a pointer",
    ),
    (
        r"cudaLaunchCooperativeKernel\w*",
        "cooperative launches (grid.sync)",
        "split the kernel in two launches",
    ),
    (r"cudaLaunchKernel", "cudaLaunchKernel", "launch with kernel<<<grid, block>>>(...)"),
    (
        r"cudaGraph\w*|cudaStreamBeginCapture|cudaStreamEndCapture",
        "CUDA graphs",
        "launch the kernels one by one",
    ),
]
# Legacy warp functions: removed since Volta, where a warp's lanes no longer run in step.
_LEGACY = {
    "__shfl": "__shfl_sync(mask, ...)",
    "__shfl_up": "__shfl_up_sync(mask, ...)",
    "__shfl_down": "__shfl_down_sync(mask, ...)",
    "__shfl_xor": "__shfl_xor_sync(mask, ...)",
    "__ballot": "__ballot_sync(mask, ...)",
    "__any": "__any_sync(mask, ...)",
    "__all": "__all_sync(mask, ...)",
}
_IDENTIFIER = [(re.compile(pattern), feature, remedy) for pattern, feature, remedy in _IDENTIFIERS]

_INCLUDES = [
    (r"cub/.*", "CUB", "write the reduction or scan out"),
    (r"thrust/.*", "Thrust", "write the loop out as a kernel"),
    (
        r"cuda/(?:barrier|pipeline)|cuda_pipeline.*",
        "asynchronous barriers and pipelines",
        "use __syncthreads()",
    ),
    (r"cuda/.*|nv/target", "libcu++ (cuda::, cuda::std)", "use plain C++ or CUDA's intrinsics"),
    (r"mma\.h", "tensor-core fragments (nvcuda::wmma)", _ON_A_GPU),
    (r"cute/.*|cutlass/.*", "CUTLASS", _ON_A_GPU),
    (r"cublas.*|cudnn.*|curand.*|cufft.*|cusparse.*", "NVIDIA's libraries", _ON_A_GPU),
    (
        r"torch/.*|ATen/.*|c10/.*|pybind11/.*",
        "PyTorch's headers",
        "keep to plain CUDA C++: launchers take pointers, sizes and a stream",
    ),
    (r"cuda_fp8\.h|cuda_fp6\.h|cuda_fp4\.h", "8-bit and smaller floating types", _ON_A_GPU),
    (r"cuda\.h", "the driver API", "include <cuda_runtime.h>"),
]
_INCLUDE = [(re.compile(pattern), feature, remedy) for pattern, feature, remedy in _INCLUDES]
_INCLUDE_LINE = re.compile(r'\s*#\s*include\s*[<"]([^>"\n]+)[>"]')


def find_unsupported(source: str, filename: str, tokens: Sequence[Token]) -> None:
    """Raises UnsupportedFeature for the first such thing in the text, if there is one.

    Text that the preprocessor surely removes (``#if 0``, ``#ifdef __CUDA_ARCH__``) is passed over.
    """
    removed = _removed_lines(source)
    finds = [*_in_includes(source), *_in_identifiers(tokens), *_in_device_code(tokens)]
    for line, feature, remedy in sorted(finds):
        if line not in removed:
            raise UnsupportedFeature(filename, line, feature, remedy)


Find = tuple[int, str, str]


def _in_includes(source: str) -> Iterator[Find]:
    for number, text in enumerate(source.split("\n"), 1):
        if include := _INCLUDE_LINE.match(text):
            for pattern, feature, remedy in _INCLUDE:
                if pattern.fullmatch(include[1]):
                    yield number, f"{feature} (#include <{include[1]}>)", remedy
                    break


def _in_identifiers(tokens: Sequence[Token]) -> Iterator[Find]:
    code = [token for token in tokens if not token.is_blank]
    for i, token in enumerate(code):
        if not token.is_word:
            continue
        following = code[i + 1].text if i + 1 < len(code) else ""
        previous = code[i - 1].text if i else ""
        if token.text in _LEGACY and following == "(":
            yield (
                token.line,
                f"the legacy warp function {token.text}()",
                f"use {_LEGACY[token.text]}",
            )
        elif previous == "::" and i > 1 and code[i - 2].text == "cuda":
            yield token.line, f"libcu++ (cuda::{token.text})", "use plain C++ or CUDA's intrinsics"
        elif token.text == "texture" and following != "<":
            continue
        elif token.text == "sync" and previous in (".", "->") and _is_grid(code, i):
            yield token.line, "grid.sync()", "split the kernel in two launches"
        else:
            for pattern, feature, remedy in _IDENTIFIER:
                if pattern.fullmatch(token.text):
                    yield token.line, feature, remedy
                    break


def _is_grid(code: Sequence[Token], sync: int) -> bool:
    """Whether the object before ``.sync`` is this_grid() or a variable called grid."""
    before = [token.text for token in code[max(0, sync - 4) : sync - 1]]
    return before[-1:] == ["grid"] or before[-3:] == ["this_grid", "(", ")"]


def _in_device_code(tokens: Sequence[Token]) -> Iterator[Find]:
    """Launches inside the body of a __global__ or __device__ function."""
    depth = body = parentheses = 0
    qualified = False  # a device qualifier was seen, its function's body not yet
    for token in tokens:
        match token.text:
            case "__global__" | "__device__":
                qualified = True
            case "(" | ")":
                parentheses += 1 if token.text == "(" else -1
            case ";":
                qualified = qualified and parentheses > 0
            case "{":
                depth += 1
                if qualified and not body:
                    body = depth
                qualified = False
            case "}":
                if depth == body:
                    body = 0
                depth -= 1
            case "<<<" if body:
                yield (
                    token.line,
                    "a launch from device code (dynamic parallelism)",
                    "launch from the host",
                )


def _removed_lines(source: str) -> set[int]:
    """Lines between an #if that is surely false here and its #else or #endif."""
    false = re.compile(
        r"\s*#\s*(?:if\s+0\s*$|ifdef\s+(?:__CUDA_ARCH__|__CUDACC__)\b"
        r"|if\s+(?:defined\s*\(?\s*__CUDA_ARCH__|\(?\s*__CUDA_ARCH__\s*>=?))"
    )
    removed: set[int] = set()
    stack: list[bool] = []  # for each open #if: is its text removed?
    for number, text in enumerate(source.split("\n"), 1):
        directive = re.match(r"\s*#\s*(\w+)", text)
        keyword = directive[1] if directive else ""
        if keyword in ("if", "ifdef", "ifndef"):
            stack.append(bool(false.match(text)) and "||" not in text)
        elif keyword in ("else", "elif") and stack:
            stack[-1] = False
        elif keyword == "endif" and stack:
            stack.pop()
        elif any(stack):
            removed.add(number)
    return removed
