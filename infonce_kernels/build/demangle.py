"""C++ names as a person writes them."""

import ctypes
import re
from functools import lru_cache


@lru_cache
def _cxa_demangle() -> ctypes._CFuncPtr | None:
    """The C++ runtime's own demangler; PyTorch has loaded that library in any case."""
    for name in ("libstdc++.so.6", "libc++abi.dylib", "libc++abi.so.1"):
        try:
            function = ctypes.CDLL(name).__cxa_demangle
        except OSError:
            continue
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        function.restype = ctypes.c_void_p
        return function
    return None


def demangle(mangled: str) -> str:
    """`_Z2tkIfLi128EEvPKT_i` -> `void tk<float, 128>(float const*, int)`; unchanged where it is
    not a mangled name. nvcc's name for an anonymous namespace is shortened to g++'s."""
    function = _cxa_demangle()
    if function is None or not mangled.startswith("_Z"):
        return mangled
    status = ctypes.c_int()
    text = function(mangled.encode(), None, None, ctypes.byref(status))
    if not text:
        return mangled
    name = ctypes.string_at(text).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(text))
    return re.sub(r"\b_GLOBAL__N_\w*", "(anonymous namespace)", name)


def function_name(demangled: str) -> str:
    """A kernel's name without return type and parameters: `void tk<float, 128>(int)` ->
    `tk<float, 128>`."""
    end = start = depth = 0
    end = _parameters_start(demangled)
    for index in range(end - 1, -1, -1):
        depth += (demangled[index] in ">)") - (demangled[index] in "<(")
        if depth == 0 and demangled[index] == " ":
            start = index + 1
            break
    return demangled[start:end]


def _parameters_start(demangled: str) -> int:
    """Index of the bracket that opens the parameter list, or the length where there is none."""
    if not demangled.endswith(")"):
        return len(demangled)
    depth = 0
    for index in range(len(demangled) - 1, -1, -1):
        depth += (demangled[index] == ")") - (demangled[index] == "(")
        if depth == 0:
            return index
    return len(demangled)
