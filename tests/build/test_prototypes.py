import subprocess
from pathlib import Path

import pytest

from infonce_kernels import kernels
from infonce_kernels.build import BuildError, prototypes, source

# What nvcc would bring, so that g++ can be the judge of what was parsed.
DECLARATIONS = """
#include <cstddef>
#include <cstdint>
#include <type_traits>
struct cudaStreamOpaque; using cudaStream_t = cudaStreamOpaque*;
enum cudaError_t { cudaSuccess };
struct __half {}; using half = __half; struct __nv_bfloat16 {}; struct float4 {};
#define __global__
#define __restrict__ __restrict
"""

LAUNCHERS = """
extern "C" cudaError_t plain(const float* x, float *y, int n, cudaStream_t stream) {
  return cudaSuccess;
}
extern "C" int
spread(  // over lines, with comments (and brackets) inside
    float const * __restrict__ x /* , int hidden */, const __half* half_values,
    __nv_bfloat16* b, unsigned char bytes[], float4* vectors, const void *anything,
    unsigned n, unsigned long long count, size_t size, long long offset, std::int64_t other,
    float f, double d, bool flag, const int k) noexcept { return "}"[0]; }
extern "C" cudaError_t declared_only(float* x);
extern "C" __global__ void device_kernel(float* x) {}
// extern "C" int commented(float* x) { return 0; }
const char* text = "extern int f() {";
extern "C" {
int first_of_block(double* x) { if (x) { return 1; } return 0; }
int declared_in_block(int n);
static inline int second_of_block(void) { return 2; }
}
cudaError_t cpp_linkage(float* x) { return cudaSuccess; }
"""


def test_launchers_are_parsed_as_the_compiler_reads_them(tmp_path: Path, gxx: str) -> None:
    found = prototypes.launchers(source.load(LAUNCHERS))
    assert [prototype.name for prototype in found] == [
        "plain",
        "spread",
        "first_of_block",
        "second_of_block",
    ]
    assert [prototype.line for prototype in found] == [2, 5, 16, 18]
    checks = ""
    for prototype in found:
        types = ", ".join(parameter.type for parameter in prototype.parameters)
        checks += (
            f"static_assert(std::is_convertible_v<decltype(&{prototype.name}), int (*)({types})> "
            f"|| std::is_convertible_v<decltype(&{prototype.name}), cudaError_t (*)({types})>);\n"
        )
    program = tmp_path / "check.cpp"
    program.write_text(DECLARATIONS + LAUNCHERS + checks)
    command = [gxx, "-std=c++17", "-fsyntax-only", str(program)]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""


def test_parameters_have_names_kinds_and_elements() -> None:
    spread = prototypes.launchers(source.load(LAUNCHERS))[1]
    assert [(p.name, p.kind, p.element) for p in spread.parameters] == [
        ("x", "pointer", "float32"),
        ("half_values", "pointer", "float16"),
        ("b", "pointer", "bfloat16"),
        ("bytes", "pointer", "uint8"),
        ("vectors", "pointer", "float32"),
        ("anything", "pointer", "void"),
        ("n", "scalar", "uint32"),
        ("count", "scalar", "uint64"),
        ("size", "scalar", "uint64"),
        ("offset", "scalar", "int64"),
        ("other", "scalar", "int64"),
        ("f", "scalar", "float32"),
        ("d", "scalar", "float64"),
        ("flag", "scalar", "bool"),
        ("k", "scalar", "int32"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('\nextern "C" void f(int n) {}', r"mine\.cu:2: error: launcher f returns void.*cudaError"),
        ('extern "C" float f(int n) {}', "returns float"),
        ('extern "C" int f(Config config) {}', "parameter 'config' has type 'Config'"),
        ('extern "C" int f(float& x) {}', "parameter 'x' has type 'float&'"),
        ('extern "C" int f(float** x) {}', r"parameter 'x' has type 'float\*\*'"),
        ('extern "C" int f(const float*, int n) {}', r"parameter 'const float\*' has no name"),
        ('extern "C" int f(int n, unsigned int) {}', "parameter 'unsigned int' has no name"),
    ],
)
def test_what_python_cannot_call_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(BuildError, match=message) as caught:
        prototypes.launchers(source.load(text + "\n", name="mine"))
    assert caught.value.file == "mine.cu"


@pytest.mark.parametrize("name", kernels.names())
def test_every_rung_has_both_passes_and_a_stream(name: str) -> None:
    found = {p.name: p for p in prototypes.launchers(source.load(name))}
    assert {"infonce_forward", "infonce_backward"} <= set(found)
    for prototype in found.values():
        assert [p.kind for p in prototype.parameters].count("stream") == 1
