"""The rewrite keeps the learner's lines and leaves comments and strings alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from infonce_kernels.emulator import UnsupportedFeature, rewrite
from infonce_kernels.emulator.rewriter import tokenize

KERNELS = sorted((Path(__file__).parent / "kernels").glob("*.cu"))


def body(source: str) -> str:
    directive, _, text = rewrite(source, "k.cu").partition("\n")
    assert directive == '#line 1 "k.cu"'
    return text


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_lines_stay_where_they_are(path: Path) -> None:
    source = path.read_text()
    lines = source.split("\n")
    rewritten = body(source).replace(" CUEMU_GUARD_LAUNCHER", "").split("\n")
    assert len(lines) == len(rewritten)
    changed = ("<<<", "__shared__", "dynamic[", "__noinline__")
    in_launch = False
    for before, after in zip(lines, rewritten, strict=True):
        starts_launch = "<<<" in before
        if not in_launch and not starts_launch:
            assert before == after or any(mark in before for mark in changed)
        in_launch = (in_launch or starts_launch) and ";" not in before


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_tokens_join_to_the_source(path: Path) -> None:
    source = path.read_text()
    assert "".join(token.text for token in tokenize(source)) == source


@pytest.mark.parametrize(
    "untouched",
    [
        "// k<<<1, 2>>>(x); __shared__ float s[3]; asm\n",
        "/* k<<<1, 2>>>(x);\n __shared__ float s[3]; */\n",
        'const char* s = "k<<<1, 2>>>(x) __shared__ int q[2]; \\" asm";\n',
        'auto s = R"x(k<<<1, 2>>>(x) " __shared__ int q[2];)x";\n',
        'auto s = u8R"(k<<<1, 2>>>(x) " \n asm)";\n',
        "char c = '\"'; int n = 1'000'000; // it's <<<\n",
        "int x = 1 << 3, y = x >> 1; A<B<C<int>>> z; x >>= 2;\n",
        "// joined \\\n k<<<1, 1>>>();\n",
        "#error don't\nint after;\n",
    ],
)
def test_untouched(untouched: str) -> None:
    assert body(untouched) == untouched


@pytest.mark.parametrize(
    ("launch", "kernel", "configuration", "arguments"),
    [
        ("k<<<1, 2>>>(x)", "k", "1, 2", "x"),
        ("k<<<g, b, n * sizeof(float), st>>>(x, y)", "k", "g, b, n * sizeof(float), st", "x, y"),
        ("k<float, (3 > 2)><<<1, 2>>>(x)", "k<float, (3 > 2)>", "1, 2", "x"),
        ("k<A<B<int>>><<<1, 2>>>(x)", "k<A<B<int>>>", "1, 2", "x"),
        ("a::b<int>::k<2><<<1, 2>>>(x)", "a::b<int>::k<2>", "1, 2", "x"),
        ("::k<<<1, 2>>>(x)", "::k", "1, 2", "x"),
        ("T::template k<3><<<1, 2>>>(x)", "T::template k<3>", "1, 2", "x"),
        ("table[i]<<<1, 2>>>(x)", "table[i]", "1, 2", "x"),
        ("(*pointer)<<<1, 2>>>(x)", "(*pointer)", "1, 2", "x"),
        ("this_->k<<<1, 2>>>(x)", "this_->k", "1, 2", "x"),
        ("k<<<dim3(1, f(2)), {1, 2}>>>(f(x, y), z)", "k", "dim3(1, f(2)), {1, 2}", "f(x, y), z"),
        ("k<<<1, (n >> 1)>>>(NULL, x)", "k", "1, (n >> 1)", "nullptr, x"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", "return ", "else ", "x = 1; ", "label: ", "{} "])
def test_launch(before: str, launch: str, kernel: str, configuration: str, arguments: str) -> None:
    expected = (
        f"::cuemu::launch(::cuemu::LaunchConfig(CUEMU_STRING({kernel}), __FILE__, 1, "
        f"{configuration}), [&](auto... cuemu_arguments) {{ {kernel}(cuemu_arguments...); }}, "
        f"{arguments})"
    )
    assert body(f"{before}{launch};") == f"{before}{expected};"


def test_launch_over_several_lines_in_a_macro() -> None:
    text = body("#define RUN(name)  \\\n  name##_kernel<<<1,  \\\n    2>>>(x);\n")
    assert text.count("\n") == 3
    assert "CUEMU_STRING(name##_kernel), __FILE__, __LINE__" in text


def test_malformed() -> None:
    for source, message in [
        ("void f() {\n k<<<1, 2>>>;\n}", "k.cu:2: a launch needs its arguments"),
        ("void f() {\n k<<<1, 2;\n}", "k.cu:2: no >>> follows"),
        ("void f() {\n __shared__ float s = 1;\n}", "k.cu:2: CUDA forbids an initialiser"),
        ("void f() {\n extern __shared__ float s[2];\n}", "k.cu:2: extern __shared__ must"),
        ("void f() {\n __shared__ auto;\n}", "k.cu:2: this __shared__ declaration"),
    ]:
        with pytest.raises(SyntaxError, match=message.replace("(", r"\(")):
            rewrite(source, "k.cu")


# ---- device code and host code -------------------------------------------------------------------

KERNEL = "template <int N = 1>\n__global__ void __launch_bounds__(64) k(float* a) {}\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            KERNEL + "int f(float* a) {\n  k(a);\n}",
            4,
            "a __global__ function must be launched: k<<<",
        ),
        (KERNEL + "int f(float* a) {\n  k<3>(a);\n}", 4, "must be launched"),
        ("__global__ void k(float*);\nint f() {\n  k(nullptr);\n}", 3, "must be launched"),
        (KERNEL + "__global__ void j(float* a) {\n  k(a);\n}", 4, "must be launched"),
        ("int f() {\n  __syncthreads();\n}", 2, "__syncthreads exists in device code only"),
        ("int f() {\n  return threadIdx.x;\n}", 2, "threadIdx .* f is a host function"),
        ("__device__ void k() {}\nint f() {\n  k<<<1, 2>>>();\n}", 3, "k cannot be launched"),
        ("void k() {}\nint f() {\n  k<<<1, 2>>>();\n}", 3, "not declared __global__ .line 1"),
        ("void k() {}\nint f() {\n  ::k<<<1, 2>>>();\n}", 3, "not declared __global__ .line 1"),
        ("__device__ void k() {\n  exit(1);\n}", 2, "exit.. does not exist in device code"),
        ("__global__ void k() {\n  _exit(1);\n}", 2, "_exit.. does not exist"),
        ("__global__ void k() {\n  quick_exit(1);\n}", 2, "quick_exit.. does not exist"),
        ("__global__ void k() {\n  std::abort();\n}", 2, "abort.. does not exist"),
    ],
)
def test_device_code_and_host_code_are_told_apart(text: str, line: int, message: str) -> None:
    with pytest.raises(SyntaxError, match=f"^k.cu:{line}: .*{message}"):
        rewrite(text, "k.cu")


@pytest.mark.parametrize(
    "text",
    [
        KERNEL + "int f(float* a) { k<3><<<1, 2>>>(a); auto p = k<2>; p<<<1, 1>>>(a); }",
        KERNEL + "int f(float* a) { cudaFuncSetAttribute(k<1>, x, 1); return a->k(1); }",
        "#define DEVICE __device__ inline\nDEVICE int f() { return threadIdx.x; }",
        "#define KERNEL(n) __global__ void n()\nKERNEL(k) { __syncthreads(); }\n"
        "int f() { k<<<1, 1>>>(); }",
        "int f() { auto g = [] __device__(int i) { return threadIdx.x + i; }; }",
        "void exit_code() {}\nint f() { exit(1); }\n__device__ int abort(int);\n"
        "__device__ int abort(int i) { return i; }\n__global__ void k() { abort(1); }",
        "struct S { float x; __device__ int at() const { return threadIdx.x; } };",
        "void run(void (*k)(int)) { k<<<1, 1>>>(3); }",
        "int f() {\n#if 1\n  if (1) {\n#else\n  if (0) {\n#endif\n  }\n}\nint g() {}",
        "const int a[] = {1, 2};\nenum E { one };\nnamespace n { namespace m { void f() {} } }",
    ],
)
def test_what_looks_like_a_mix_up_is_none(text: str) -> None:
    rewrite(text, "k.cu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "\n__global__ void k(int* a) {\n  if (a) {\n    a[0] = 1;\n}\n"
            'extern "C" int f(int* a) {\n  k<<<1, 2>>>(a);\n}',
            "k.cu:2: a } is missing in the function k that begins here: in line 6 the next",
        ),
        ("__global__ void k() {\n  {\n}\n__global__ void j() {}", "k.cu:1: .* function k .*line 4"),
        ("int f() {}\nint g() {\n  if (1) {\n}\n", "k.cu:2: a } is missing in the function g"),
        ("namespace n {\nint g() {}\n", "k.cu:1: no } closes the namespace that begins here"),
        ("int g() {\n}\n}\n", "k.cu:3: this } closes nothing"),
    ],
)
def test_braces_that_do_not_balance(text: str, message: str) -> None:
    with pytest.raises(SyntaxError, match=f"^{message}"):
        rewrite(text, "k.cu")


@pytest.mark.parametrize(
    ("head", "body", "word"),
    [
        ("int n", "__shared__ float s[n];", "n"),
        ("int n", "__shared__ float s[4][2 * n];", "n"),
        ("", "__shared__ float s[blockDim.x];", "blockDim"),
        ("", "int m = 3; __shared__ float s[m];", "m"),
        ("int n", "const int m = n + 1, j = 2; __shared__ float s[m];", "m"),
        ("", "const int m = blockDim.x; __shared__ float s[m];", "m"),
    ],
)
def test_a_shared_array_of_run_time_size(head: str, body: str, word: str) -> None:
    with pytest.raises(SyntaxError, match=f"^k.cu:2: the size of s.* constant, and {word} is not"):
        rewrite(f"__global__ void k({head}) {{\n  {body}\n}}", "k.cu")


@pytest.mark.parametrize(
    "body",
    [
        "const int m = 3; __shared__ float s[m];",
        "constexpr int m = 3; __shared__ float s[m * N + 1][kTile];",
        "__shared__ float s[sizeof(float) * 4];",
    ],
)
def test_a_shared_array_of_constant_size(body: str) -> None:
    rewrite(f"template <int N>\n__global__ void k(int n) {{\n  {body}\n}}", "k.cu")


def test_file_name_is_escaped() -> None:
    assert rewrite("", 'a "b" \\ c.cu') == '#line 1 "a \\"b\\" \\\\ c.cu"\n'


# ---- what is not emulated ------------------------------------------------------------------------

DEVICE = "__global__ void k() {\n  BODY\n}\n"


@pytest.mark.parametrize(
    ("code", "feature"),
    [
        ('asm volatile("bar.sync 0;");', "inline PTX"),
        ('__asm__("nop;");', "inline PTX"),
        ("wgmma_fence();", "wgmma"),
        ("nvcuda::wmma::fragment<int> f;", "nvcuda::wmma"),
        ("CUtensorMap map;", "TMA"),
        ("__mbarrier_t b;", "mbarrier"),
        ("cuda::barrier<cuda::thread_scope_block> b;", "libcu++"),
        ("__pipeline_commit();", "asynchronous copies"),
        ("cg::memcpy_async(block, s, g, n);", "asynchronous copies"),
        ("auto c = cg::this_cluster();", "clusters"),
        ("float v = tex2D<float>(object, x, y);", "textures"),
        ("cudaTextureObject_t t;", "textures"),
        ("surf2Dwrite(v, s, x, y);", "surfaces"),
        ("cg::this_grid().sync();", "grid.sync"),
        ("grid.sync();", "grid.sync"),
        ("child<<<1, 32>>>();", "a launch from device code"),
        ("v += __shfl_down(v, 4);", "legacy warp function __shfl_down()"),
        ("v = __shfl(v, 4);", "legacy warp function __shfl()"),
        ("v = __ballot(v);", "legacy warp function __ballot()"),
        ("v = __any(v);", "legacy warp function __any()"),
        ("v = __all(v);", "legacy warp function __all()"),
    ],
)
def test_unsupported_in_a_kernel(code: str, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        rewrite(DEVICE.replace("BODY", code), "folder/k.cu")
    error = caught.value
    assert (error.filename, error.line) == ("folder/k.cu", 2)
    assert feature in error.feature
    assert error.remedy
    assert str(error).startswith("folder/k.cu:2: the CPU emulator does not run ")


@pytest.mark.parametrize(
    ("code", "feature"),
    [
        ("#include <cub/cub.cuh>", "CUB"),
        ("#include <thrust/reduce.h>", "Thrust"),
        ("#include <cuda/std/array>", "libcu++"),
        ("#include <cuda/barrier>", "asynchronous barriers"),
        ("#include <mma.h>", "wmma"),
        ('#include "cute/tensor.hpp"', "CUTLASS"),
        ("#include <cublas_v2.h>", "NVIDIA's libraries"),
        ("#include <torch/extension.h>", "PyTorch's headers"),
        ("__shared__ float s[3];", "a __shared__ variable outside a function"),
        ("__global__ void __cluster_dims__(2) k() {}", "clusters"),
        ("texture<float, 1> t;", "textures"),
        ("void f() { cudaLaunchCooperativeKernel(k, 1, 1, 0); }", "cooperative launches"),
    ],
)
def test_unsupported_at_file_scope(code: str, feature: str) -> None:
    with pytest.raises(UnsupportedFeature, match=r"k\.cu:3: ") as caught:
        rewrite(f"\n\n{code}\n", "k.cu")
    assert feature in caught.value.feature


@pytest.mark.parametrize(
    "removed",
    [
        "#if 0\nASM\n#endif\n",
        "#ifdef __CUDA_ARCH__\nASM\n#endif\n",
        "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900\nASM\n#else\nint x;\n#endif\n",
        "#if __CUDA_ARCH__ >= 800\n#if 1\nASM\n#endif\n#endif\n",
    ],
)
def test_text_that_the_preprocessor_removes_may_say_anything(removed: str) -> None:
    rewrite(removed.replace("ASM", 'asm("nop;");'), "k.cu")
    with pytest.raises(UnsupportedFeature):
        rewrite(removed + 'asm("nop;");', "k.cu")


def test_host_code_after_a_kernel_may_launch() -> None:
    rewrite("__device__ int x = 3;\n__global__ void k() {}\nvoid f() { k<<<1, 1>>>(); }", "k.cu")
