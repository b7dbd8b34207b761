"""How a rung's forward launcher is called from PyTorch, read from the launcher's prototype."""

import textwrap
from dataclasses import dataclass

from infonce_kernels.build.prototypes import Parameter, Prototype, launchers
from infonce_kernels.build.source import load

_LAUNCHER = "infonce_forward"
_SIGNATURE = """\
torch::Tensor infonce_mean_loss(torch::Tensor query, torch::Tensor positive, torch::Tensor {},
                                double temperature)"""
# What the third tensor is: PyTorch's product, where the rung leaves it to PyTorch, or its operand.
_THIRD = {
    "similarities": {"shape": "(B, N)", "fits": "size(0) == query.size(0)", "n": "size(1)"},
    "negatives": {"shape": "(N, D)", "fits": "size(1) == query.size(1)", "n": "size(0)"},
}
# Memory that a launcher writes beside the loss, and its shape.
_WORKSPACE = {"similarities": "B, N", "statistics": "3, B"}
_SCALARS = {"temperature": "static_cast<float>(temperature)", "B": "B", "N": "N", "D": "D"}


@dataclass(frozen=True)
class Binding:
    """The C++ function `infonce_mean_loss(query, positive, third, temperature)`.

    third: a name from _THIRD; workspace: names from _WORKSPACE; arguments: C++ expressions.
    """

    third: str
    workspace: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def takes_product(self) -> bool:
        """Whether PyTorch multiplies."""
        return self.third == "similarities"

    @property
    def signature(self) -> str:
        return _SIGNATURE.format(self.third)

    def slots(self) -> dict[str, str]:
        """What binding.cpp.in leaves open."""
        call = f"  const cudaError_t error = {_LAUNCHER}("
        return {
            "signature": self.signature,
            "third": self.third,
            **_THIRD[self.third],
            "workspace": "".join(
                f"  torch::Tensor {name} = torch::empty({{{_WORKSPACE[name]}}}, query.options());\n"
                for name in self.workspace
            ),
            "call": textwrap.fill(
                ", ".join(self.arguments) + ");",
                width=120,
                initial_indent=call,
                subsequent_indent=" " * len(call),
            ),
        }


def objection(rung: str) -> str | None:
    """Why the rung's launcher cannot be bound: it wants something that a submission lacks."""
    prototype = _prototype(rung)
    third = _third(prototype)
    for parameter in prototype.parameters:
        if not _is_known(parameter, third):
            wanted = f"{parameter.type} {parameter.name}"
            return f"its {_LAUNCHER} takes `{wanted}`, which a submission does not have"
    return None


def bind(rung: str) -> Binding:
    """The binding of a rung to which there is no objection."""
    prototype = _prototype(rung)
    written = [p.name for p in prototype.parameters if p.writable]
    return Binding(
        _third(prototype),
        tuple(name for name in written if name in _WORKSPACE),
        tuple(_argument(parameter) for parameter in prototype.parameters),
    )


def _prototype(rung: str) -> Prototype:
    return next(p for p in launchers(load(rung)) if p.name == _LAUNCHER)


def _third(prototype: Prototype) -> str:
    reads = [p.name for p in prototype.parameters if not p.writable]
    return "similarities" if "similarities" in reads else "negatives"


def _is_known(parameter: Parameter, third: str) -> bool:
    if parameter.kind == "stream":
        return True
    if parameter.kind == "scalar":
        return parameter.name in _SCALARS
    if parameter.element != "float32":
        return False
    if parameter.writable:
        return parameter.name in (*_WORKSPACE, "loss")
    return parameter.name in ("query", "positive", third, "temperature_tensor")


def _argument(parameter: Parameter) -> str:
    if parameter.kind == "stream":
        return "stream"
    if parameter.name == "temperature_tensor":
        return "nullptr"  # the model's temperature is a number
    return _SCALARS.get(parameter.name) or f"{parameter.name}.data_ptr<float>()"
