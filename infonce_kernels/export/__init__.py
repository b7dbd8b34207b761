"""Submissions: complete folders in the forms that benchmark harnesses take.

    write("gpucodeforces", Path("submission"))                 # the fused rung
    write("kernelbench", Path("submission"), "v2_shared")

What is written runs with torch alone: a rung's kernel text unchanged, a C++ binding, and the
original model that it is held against. The size is the original benchmark's: B = 256, D = 512,
N = 2560, temperature 0.1.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from infonce_kernels import ladder, reference

from . import binding, refusals
from .flat import flat_text

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Harness:
    """A benchmark that takes submissions.

    files: the name of each file of a submission -> the template that it is made from.
    refuses: kernel text -> why this harness cannot take it, or None where it can.
    """

    title: str
    files: Mapping[str, str]
    refuses: Callable[[str], str | None]

    def objection(self, rung: str) -> str | None:
        """Why `rung` cannot be submitted, or None where it can."""
        if not ladder.rung(rung).is_kernel:
            return "it is plain PyTorch and has no kernel"
        return self.refuses(flat_text(rung)) or binding.objection(rung)

    def takes(self) -> list[str]:
        """The rungs that can be submitted."""
        return [rung.name for rung in ladder.LADDER if self.objection(rung.name) is None]


HARNESSES = {
    "gpucodeforces": Harness(
        "GPUCodeForces",
        {
            "example_torchcode.py": "model.py.in",
            "example_cudacode.py": "model_new.py.in",
            "run_code.py": "run_code.py.in",
            "prompt.txt": "prompt.txt.in",
        },
        refusals.not_portable,
    ),
    "kernelbench": Harness(
        "KernelBench",
        {
            "model.py": "model.py.in",
            "model_new.py": "model_new.py.in",
            "README.md": "kernelbench.md.in",
        },
        refusals.static_check,
    ),
}
# Whether PyTorch multiplies -> the line that does so, and what to know of the product's precision.
_PRODUCT = {
    True: (
        "        similarities = query @ negatives.T  # PyTorch's setting decides, as in Model\n",
        "PyTorch multiplies in both models: its precision setting (TF32) holds for both alike.",
    ),
    False: ("", "The kernel multiplies in float32 whatever PyTorch's precision setting (TF32) is."),
}
DEFAULT_RUNG = "v3_fused"


def write(harness: str, folder: Path, rung: str = DEFAULT_RUNG) -> list[Path]:
    """Write a submission for `harness`, a key of HARNESSES, into `folder`; return its files.

    A folder that does not exist is made; one with anything in it is left as it is. Raises
    ValueError for a harness or rung that is unknown, a rung that the harness cannot take, and a
    folder that is not empty or cannot be written.
    """
    if harness not in HARNESSES:
        raise ValueError(f"harness={harness!r} is not one of {', '.join(HARNESSES)}")
    texts = _texts(HARNESSES[harness], rung)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ValueError(
                f"folder={str(folder)!r} is not empty, and nothing in it will be overwritten: "
                "name a new or an empty folder"
            )
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"folder={str(folder)!r} cannot be written ({error.strerror}): name a folder that can"
        ) from error
    return [folder / name for name in texts]


def _texts(harness: Harness, rung: str) -> dict[str, str]:
    """The files of a submission, by name."""
    if reason := harness.objection(rung):
        raise ValueError(
            f"rung={rung!r} cannot go to {harness.title}: {reason}; "
            f"choose one of {', '.join(harness.takes())}"
        )
    bound = binding.bind(rung)
    product, precision = _PRODUCT[bound.takes_product]
    values = {
        "rung": rung,
        "teaches": ladder.rung(rung).teaches,
        "model": inspect.getsource(reference.Model).rstrip(),
        "kernel": flat_text(rung),
        "binding": _fill("binding.cpp.in", bound.slots()),
        "signature": bound.signature,
        "product": product,
        "precision": precision,
        "third": bound.third,
    }
    return {name: _fill(template, values) for name, template in harness.files.items()}


def _fill(template: str, values: Mapping[str, str]) -> str:
    return Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(values)
