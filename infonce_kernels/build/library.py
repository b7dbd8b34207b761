"""A built library: its source and its launchers."""

import ctypes
from pathlib import Path

from . import prototypes
from .errors import BuildError
from .launcher import Device, Launcher
from .source import KernelSource


class KernelLibrary:
    """What `build` returns for the backends "cuda" and "emulator".

    Each `extern "C"` function is an attribute: `library.infonce_forward(...)`; see Launcher.
    `text`, `name` and `backend` say what was built, `key` is its content hash, `path` the file.
    Copies are the same object. A pickle carries the source: unpickling builds it, or finds it
    in the cache.
    """

    def __init__(
        self, source: KernelSource, backend: str, key: str, path: Path, device: Device
    ) -> None:
        self.source = source
        self.backend = backend
        self.key = key
        self.path = path
        library = ctypes.CDLL(str(path))  # kept loaded by the launchers' functions
        self.launchers: dict[str, Launcher] = {
            prototype.name: Launcher(prototype, library, device)
            for prototype in prototypes.launchers(source)
            if hasattr(library, prototype.name)  # one inside an #if may be absent
        }

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def text(self) -> str:
        return self.source.text

    def __getattr__(self, name: str) -> Launcher:
        launchers = self.__dict__.get("launchers", {})
        if name in launchers:
            return launchers[name]
        raise AttributeError(
            f"{self.source.filename} has no launcher {name!r}; it has {', '.join(launchers)}"
            if "source" in self.__dict__
            else name
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.launchers]

    def __repr__(self) -> str:
        return f"<{self.name} built for {self.backend}: {', '.join(self.launchers)}>"

    def __reduce__(self) -> tuple[object, ...]:
        from . import build_source  # the package imports this module

        return build_source, (self.source, self.backend)

    def __copy__(self) -> "KernelLibrary":
        return self

    def __deepcopy__(self, memo: object) -> "KernelLibrary":
        return self


_loaded: dict[tuple[str, str], KernelLibrary] = {}


def loaded(source: KernelSource, key: str) -> KernelLibrary | None:
    """The library that this process already has for the same text under the same name."""
    return _loaded.get((source.name, key))


def load(source: KernelSource, backend: str, key: str, path: Path, device: Device) -> KernelLibrary:
    """Load a built library. Every caller in a process gets the same object."""
    library = KernelLibrary(source, backend, key, path, device)
    return _loaded.setdefault((source.name, key), library)  # atomic: another thread may be first


def require_launchers(source: KernelSource) -> None:
    """Find a launcher's mistakes before the compiler runs. Raises BuildError."""
    if not prototypes.launchers(source):
        raise BuildError(
            f"{source.filename} has no launcher. Python calls a host function such as\n"
            f'  extern "C" cudaError_t launch(const float* x, int n, cudaStream_t stream) {{\n'
            "    kernel<<<blocks, threads, 0, stream>>>(x, n);\n"
            "    return cudaGetLastError();\n"
            "  }",
            file=source.filename,
        )
