import pytest

from infonce_kernels.build.demangle import demangle, function_name


# The left column is what nvcc emitted for these kernels, the right one their source.
@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z2skPf", "sk"),
        ("_Z2tkIfLi128EEvPKT_PS0_i", "tk<float, 128>"),
        ("_ZN36_GLOBAL__N__daa10034_4_k_cu_ed5afa422akEPf", "(anonymous namespace)::ak"),
        ("plain_c", "plain_c"),
        ("_Zbroken", "_Zbroken"),
    ],
)
def test_names_are_as_written(mangled: str, name: str) -> None:
    assert function_name(demangle(mangled)) == name


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        ("void apply<int (*)(float)>(int, float*)", "apply<int (*)(float)>"),
        ("std::enable_if<true, void>::type reduce<float>(float*)", "reduce<float>"),
        ("kernel(void (*)(int))", "kernel"),
    ],
)
def test_return_type_and_parameters_go(demangled: str, name: str) -> None:
    assert function_name(demangled) == name
