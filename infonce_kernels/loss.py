"""The public call: arguments -> checked problem -> rung -> loss."""

import math
from numbers import Real

import torch
from torch import Tensor, nn

from infonce_kernels import ladder, operators, reference
from infonce_kernels.build import KernelLibrary
from infonce_kernels.precision import check as check_precision

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_REDUCTIONS = ("mean", "sum", "none")
_BACKENDS = ("auto", "cuda", "emulator")


def info_nce(
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    temperature: float | Tensor = 0.1,
    *,
    reduction: str = "mean",
    precision: str | None = None,
    rung: str | KernelLibrary = "auto",
    backend: str = "auto",
) -> Tensor:
    """InfoNCE loss with shared negatives, differentiable in all three operands and temperature.

    For each query i: ``-log(exp(s+_i) / (exp(s+_i) + sum_j exp(s-_ij)))`` with ``s+_i =
    cos(query_i, positive_i) / temperature`` and ``s-_ij = query_i . negative_j / temperature`` (van
    den Oord et al. 2018, eq. 4). Only the positive's similarity is normalised; for rows of norm 1
    there is no difference.

    Parameters
    ----------
    query: (B, D) float32, bfloat16, float16 or float64
    positive: (B, D), the positive of each query; dtypes may differ and are promoted
    negatives: (N, D), shared by all queries
    temperature: a number, positive and finite, or a tensor of one element, which then gets its
        gradient. A tensor on the GPU is not read back: where it is not positive and finite the loss
        is NaN
    reduction: "mean", "sum" or "none" (B,)
    precision: "ieee", "fp32" (as accurate), "tf32", and "bf16" or "fp16" for inputs of that type:
        an upper bound of the error. None takes PyTorch's own matmul setting for float32
    rung: a name from `ladder`, a library that `build` made from your own text, or "auto": v3_fused
        on a GPU, plain PyTorch on the CPU and for float64
    backend: "cuda", "emulator" (the same kernels on CPU tensors, for learning) or "auto", from the
        tensors' device

    Returns
    -------
    The loss, float32 (float64 for float64 inputs), whatever autocast says. No negatives: 0. No
    queries: what the reduction of nothing gives in PyTorch (mean NaN, sum 0).

    Raises
    ------
    TypeError, ValueError: naming the argument, before any kernel runs
    """
    dtype = _check_operands(query, positive, negatives)
    _check_choice("reduction", reduction, _REDUCTIONS)
    _check_temperature(temperature, dtype, query.device)
    check_precision(precision, dtype)
    name = _choose_rung(rung, backend, query, dtype)

    compute = torch.float64 if dtype == torch.float64 else torch.float32
    operands = [x if x.dtype is compute else x.to(compute) for x in (query, positive, negatives)]
    losses = _losses(*operands, temperature, name, precision)
    return losses if reduction == "none" else getattr(losses, reduction)()


class InfoNCE(nn.Module):
    """`info_nce` as a module.

    A temperature given as `nn.Parameter` is learned with the model. For the other arguments see
    `info_nce`.
    """

    def __init__(
        self,
        temperature: float | Tensor = 0.1,
        *,
        reduction: str = "mean",
        precision: str | None = None,
        rung: str | KernelLibrary = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        _check_temperature(temperature)
        _check_choice("reduction", reduction, _REDUCTIONS)
        _check_choice("backend", backend, _BACKENDS)
        _check_rung(rung)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            self.register_buffer("temperature", temperature)
        else:
            self.temperature = temperature
        self.reduction = reduction
        self.precision = precision
        self.rung = rung
        self.backend = backend

    def forward(self, query: Tensor, positive: Tensor, negatives: Tensor) -> Tensor:
        """The loss of query (B, D), positive (B, D) and negatives (N, D)."""
        return info_nce(
            query, positive, negatives, self.temperature, reduction=self.reduction,
            precision=self.precision, rung=self.rung, backend=self.backend,
        )  # fmt: skip

    def extra_repr(self) -> str:
        temperature = self.temperature
        if isinstance(temperature, Tensor):
            temperature = "learned" if temperature.requires_grad else "a tensor"
        options = ("reduction", "precision", "rung", "backend")
        chosen = ", ".join(f"{name}={getattr(self, name)!r}" for name in options)
        return f"temperature={temperature}, {chosen}"


def _losses(
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    temperature: float | Tensor,
    rung: str,
    precision: str | None,
) -> Tensor:
    learned = isinstance(temperature, Tensor)
    if rung == "v0_reference":
        # A number stays on the CPU, where PyTorch reads it at no launch.
        tau = _or_nan(temperature) if learned else _number(temperature)
        return reference.losses(query, positive, negatives, tau.to(query.dtype), precision)
    tau = temperature.to(query.device, torch.float32) if learned else None
    return operators.losses(
        query.contiguous(), positive.contiguous(), negatives.contiguous(),
        math.nan if learned else float(temperature), tau, rung, precision,
    )  # fmt: skip


def _number(temperature: float) -> Tensor:
    return torch.tensor(float(temperature), dtype=torch.float64, device="cpu")


def _or_nan(temperature: Tensor) -> Tensor:
    """What cannot be checked without a read-back must not look plausible either."""
    valid = (temperature > 0) & temperature.isfinite()
    return torch.where(valid, temperature, torch.nan).reshape(())


def _check_operands(query: Tensor, positive: Tensor, negatives: Tensor) -> torch.dtype:
    """Returns the promoted dtype."""
    operands = {"query": query, "positive": positive, "negatives": negatives}
    for name, tensor in operands.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(tensor).__name__}")
        if tensor.dtype not in _DTYPES:
            raise TypeError(
                f"{name} is {tensor.dtype}; it must be float32, float64, bfloat16 or float16"
            )
        if tensor.layout != torch.strided:
            raise TypeError(f"{name} has layout {tensor.layout}; call {name}.to_dense() first")
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{name} is on {tensor.device}; the loss runs on cpu and cuda")
        rows = "N" if name == "negatives" else "B"
        if tensor.dim() != 2:
            raise ValueError(f"{name} must have shape ({rows}, D), not {tuple(tensor.shape)}")
        if tensor.device != query.device:
            raise ValueError(
                f"{name} is on {tensor.device} but query is on {query.device}: move one of them"
            )
    B, D = query.shape
    if positive.shape[0] != B:
        raise ValueError(
            f"positive has {positive.shape[0]} rows but query has {B}: one positive a query"
        )
    for name in ("positive", "negatives"):
        if operands[name].shape[1] != D:
            raise ValueError(
                f"{name} has {operands[name].shape[1]} features but query has {D}: D must agree"
            )
    return torch.promote_types(torch.promote_types(query.dtype, positive.dtype), negatives.dtype)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")


def _check_temperature(
    temperature: float | Tensor,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> None:
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1:
            shape = tuple(temperature.shape)
            raise ValueError(f"temperature must have one element, not shape {shape}")
        if not temperature.is_floating_point():
            raise TypeError(f"temperature is {temperature.dtype}; it must be floating point")
        if device is not None and temperature.device not in (device, torch.device("cpu")):
            raise ValueError(f"temperature is on {temperature.device} but query is on {device}")
        if not _is_readable(temperature):
            return
        temperature = temperature.item()
    elif isinstance(temperature, bool) or not isinstance(temperature, Real):
        kind = type(temperature).__name__
        raise TypeError(f"temperature must be a number or a tensor, not {kind}")
    # Compared in this order, so that an integer of any size needs no conversion.
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be positive and finite")
    limits = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
    if not limits.smallest_normal <= temperature <= limits.max:
        raise ValueError(f"temperature={temperature} is outside the range of {limits.dtype}")


def _is_readable(tensor: Tensor) -> bool:
    """Whether its value may be read: on the CPU, and not while someone traces its use."""
    if tensor.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in (Tensor, nn.Parameter) and not is_wrapped


def _check_rung(rung: str | KernelLibrary) -> None:
    if isinstance(rung, KernelLibrary) or rung == "auto":
        return
    if not isinstance(rung, str) or "\n" in rung or "{" in rung:
        raise TypeError(
            f"rung must be a name or a library, not {type(rung).__name__} {repr(rung)[:40]}...: "
            "build your own text first, rung=build(text)"
        )
    ladder.rung(rung)


def automatic_rung(by_kernel: bool, dtype: torch.dtype) -> str:
    """What rung="auto" runs; by_kernel: on a GPU or in the emulator."""
    return "v3_fused" if by_kernel and dtype != torch.float64 else "v0_reference"


def _choose_rung(rung: str | KernelLibrary, backend: str, query: Tensor, dtype: torch.dtype) -> str:
    """The rung's name among the operators. Raises where it cannot run on these operands."""
    _check_choice("backend", backend, _BACKENDS)
    _check_rung(rung)
    needed = {"cuda": "cuda", "emulator": "cpu"}.get(backend, query.device.type)
    if query.device.type != needed:
        raise ValueError(
            f"backend={backend!r} runs on {needed} tensors, but query is on {query.device}"
        )
    if isinstance(rung, KernelLibrary):
        name, is_kernel = operators.register(rung), True
        if {"cuda": "cuda", "emulator": "cpu"}[rung.backend] != query.device.type:
            raise ValueError(f"rung was built for {rung.backend!r}, but query is on {query.device}")
    elif rung == "auto":
        name = automatic_rung(query.is_cuda or backend == "emulator", dtype)
        is_kernel = ladder.rung(name).is_kernel
    else:
        name, is_kernel = rung, ladder.rung(rung).is_kernel
    if is_kernel and dtype == torch.float64:
        raise TypeError(
            f"query, positive and negatives promote to float64, but {name} computes in float32: "
            "rung='auto' or 'v0_reference' takes float64"
        )
    if not is_kernel and backend == "emulator":
        raise ValueError(f"rung={name!r} is plain PyTorch: the emulator has nothing to run")
    return name
