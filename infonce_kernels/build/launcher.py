"""Calling a built library's launchers through ctypes, with every argument checked first.

A wrong pointer crashes the process or, on a GPU, ruins the CUDA context; so what can be checked in
a microsecond is checked at every call.
"""

import ctypes
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from .errors import LaunchError
from .prototypes import Parameter, Prototype

_C_TYPES = {
    "bool": ctypes.c_bool,
    "int8": ctypes.c_int8,
    "uint8": ctypes.c_uint8,
    "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class Device(Protocol):
    """Where a library's launchers run: what `Launcher` needs to know of a backend."""

    type: str  # of the tensors: "cuda" or "cpu"

    def run(
        self, launcher: "Launcher", arguments: list[Any], values: Sequence[Any], index: int
    ) -> int:
        """Call `launcher.function`. `arguments` are as C takes them, with None for the stream;
        `values` are as the caller gave them, without the stream; `index` is the tensors' device
        index, or -1 where no tensor is passed."""

    def failure(self, code: int) -> tuple[str, BaseException | None]:
        """What the code that `run` has just returned means, and the exception that tells more, if
        there is one."""


class Launcher:
    """One `extern "C"` function of a built library.

    `launcher(*args, **kwargs)` takes what the prototype names, in its order or by name: for a
    pointer a contiguous torch tensor of the pointee's dtype (any dtype for `void*`) or None for the
    null pointer; for a scalar a Python number. The stream is not passed: it is PyTorch's current
    stream on the tensors' device. Nothing is returned; results are in the tensors.

    Raises TypeError or ValueError naming launcher and parameter, LaunchError where the launcher
    returns an error. Like any kernel launch, on a GPU it does not wait for the result.
    """

    def __init__(self, prototype: Prototype, library: ctypes.CDLL, device: Device) -> None:
        self.name = prototype.name
        self.parameters = prototype.parameters
        self._device = device
        self.function = getattr(library, prototype.name)
        self.function.restype = ctypes.c_int
        self.function.argtypes = [_c_type(parameter) for parameter in prototype.parameters]
        streams = [i for i, p in enumerate(prototype.parameters) if p.kind == "stream"]
        if len(streams) > 1:
            raise TypeError(f"launcher {self.name} has {len(streams)} streams; one is possible")
        self.stream = streams[0] if streams else None  # its place among the parameters
        self._passed = [p for p in prototype.parameters if p.kind != "stream"]
        self._names = [parameter.name for parameter in self._passed]
        # Read at every call, so as plain tuples: dtype of a pointer, or range of an integer.
        self._plan = [_plan(parameter) for parameter in self._passed]

    def __repr__(self) -> str:
        parameters = ", ".join(f"{p.type} {p.name}" for p in self.parameters)
        return f"<launcher {self.name}({parameters})>"

    def call(self, namespace: Mapping[str, Any]) -> None:
        """Launch with the arguments that `namespace` has under the parameters' names.

        What else it holds is ignored, so that a learner may add or drop a parameter in the kernel
        without touching the caller. Raises TypeError naming a parameter it lacks.
        """
        try:
            values = [namespace[name] for name in self._names]
        except KeyError as missing:
            raise TypeError(
                f"{self.name}: nothing is called {missing} here; there are {', '.join(namespace)}"
            ) from None
        self._launch(values)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs or len(args) != len(self._names):
            args = self._bind(args, kwargs)
        self._launch(args)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        names = self._names
        if len(args) > len(names):
            raise TypeError(f"{self.name} takes {_listing(names)}; {len(args)} were given")
        values = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise TypeError(
                    f"{self.name} has no parameter {name!r}; it takes {_listing(names)}"
                )
            if name in values:
                raise TypeError(f"{self.name}: parameter {name!r} was given twice")
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            raise TypeError(f"{self.name} lacks {', '.join(missing)}; it takes {_listing(names)}")
        return tuple(values[name] for name in names)

    def _launch(self, values: Any) -> None:
        arguments = []
        device = self._device
        wanted, index = device.type, None
        for position, (is_pointer, dtype, low, high) in enumerate(self._plan):
            value = values[position]
            if not is_pointer:
                if not (type(value) is int and low <= value <= high):
                    value = self._number(position, value)
            elif value is not None:
                if not isinstance(value, torch.Tensor):
                    raise self._type_error(position, f"takes a torch tensor or None, got {value!r}")
                where = value.device
                if where.type != wanted or (index is not None and where.index != index):
                    raise self._wrong_device(position, value, index)
                index = where.index
                if value.dtype is not dtype and dtype is not None:
                    raise self._type_error(position, f"takes {dtype}, got {value.dtype}")
                if not value.is_contiguous():
                    raise ValueError(
                        f"{self._where(position)} is not contiguous (shape {tuple(value.shape)}, "
                        f"strides {value.stride()}); pass .contiguous()"
                    )
                value = value.data_ptr()
            arguments.append(value)
        if self.stream is not None:
            arguments.insert(self.stream, None)
        code = device.run(self, arguments, values, -1 if index is None else index)
        if code:
            text, cause = device.failure(code)
            raise LaunchError(f"{self.name} failed: {text}", code) from cause

    def _number(self, position: int, value: Any) -> int | float | bool:
        """A scalar argument off the fast path: a float, a NumPy number, or a mistake."""
        element = self._passed[position].element
        if isinstance(value, torch.Tensor):
            raise self._type_error(position, "takes a number, got a tensor; pass .item()")
        if element == "bool":
            if value in (0, 1):  # also NumPy's
                return bool(value)
            raise self._type_error(position, f"takes True or False, got {value!r}")
        if element in ("float32", "float64"):
            if isinstance(value, (str, bytes)) or not hasattr(type(value), "__float__"):
                raise self._type_error(position, f"takes a number, got {value!r}")
            return float(value)
        try:
            integer = operator.index(value)
        except TypeError:
            raise self._type_error(position, f"takes an integer, got {value!r}") from None
        _, _, low, high = self._plan[position]
        if not low <= integer <= high:
            raise ValueError(f"{self._where(position)} holds {low} to {high}, got {integer}")
        return integer

    def _where(self, position: int) -> str:
        parameter = self._passed[position]
        return f"{self.name}: parameter {parameter.name!r} ({parameter.type})"

    def _type_error(self, position: int, problem: str) -> TypeError:
        return TypeError(f"{self._where(position)} {problem}")

    def _wrong_device(self, position: int, value: torch.Tensor, index: int | None) -> ValueError:
        wanted = self._device.type
        if value.device.type != wanted:
            backend = "cuda" if wanted == "cuda" else "emulator"
            problem = f"backend {backend!r} takes {wanted} tensors"
        else:
            problem = f"an earlier argument is on {wanted}:{index}; all must be on one device"
        return ValueError(f"{self._where(position)} is on {value.device}, but {problem}")


def _c_type(parameter: Parameter) -> Any:
    return _C_TYPES[parameter.element] if parameter.kind == "scalar" else ctypes.c_void_p


def _plan(parameter: Parameter) -> tuple[bool, torch.dtype | None, float, float]:
    """(is a pointer, dtype or None for any, smallest and largest integer that passes as it is)."""
    if parameter.kind == "pointer":
        dtype = None if parameter.element == "void" else getattr(torch, parameter.element)
        return True, dtype, 0, 0
    if parameter.element in ("float32", "float64"):
        return False, None, float("-inf"), float("inf")
    if parameter.element == "bool":
        return False, None, 0, 1
    info = torch.iinfo(getattr(torch, parameter.element))
    return False, None, info.min, info.max


def _listing(names: list[str]) -> str:
    return f"{len(names)} arguments ({', '.join(names)})"
