"""The rungs as PyTorch operators: `infonce_kernels::forward` and `infonce_kernels::backward`.

Registered with `torch.library`, so that `torch.compile` and `torch.func` see shapes and not the
pointers behind them; `losses` ties the two together for autograd. A rung's launchers say by their
prototypes what they want; what a launcher does not take, PyTorch computes: v3 takes
`const float* similarities`, so the product is `torch.matmul`'s; v1 takes `float* similarities` and
writes them itself.
"""

import inspect
import math
from functools import cache

import torch
from torch import Tensor
from torch.autograd import forward_ad

from infonce_kernels import ladder, reference
from infonce_kernels.build import KernelLibrary
from infonce_kernels.precision import product

# `Library` and not `custom_op`, whose wrappers take three times as long as the dispatch itself.
_LIBRARY = torch.library.Library("infonce_kernels", "DEF")
_LIBRARY.define(
    "forward(Tensor query, Tensor positive, Tensor negatives, float temperature, "
    "Tensor? temperature_tensor, str rung, str? precision) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "backward(Tensor grad_loss, Tensor query, Tensor positive, Tensor negatives, "
    "Tensor similarities, Tensor statistics, float temperature, Tensor? temperature_tensor, "
    "str rung, str? precision, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)"
)
_edited: dict[str, KernelLibrary] = {}


def register(library: KernelLibrary) -> str:
    """Makes a learner's own library usable as a rung. Returns the name that stands for it."""
    missing = {"infonce_forward", "infonce_backward"} - set(library.launchers)
    if missing:
        raise ValueError(
            f"rung={library.name!r} has no launcher {' and no '.join(sorted(missing))}: keep both "
            '`extern "C"` functions of the rung that the text started from'
        )
    name = f"{library.name}@{library.key}"
    _edited[name] = library
    return name


def _library(rung: str, query: Tensor) -> KernelLibrary:
    return _edited.get(rung) or _built(rung, "cuda" if query.is_cuda else "emulator")


@cache
def _built(rung: str, backend: str) -> KernelLibrary:
    """Looked up once a process: to hash the text and ask for the compiler costs a millisecond."""
    return ladder.rung(rung).build(backend)


@cache
def _writes(library: KernelLibrary, launcher: str, parameter: str) -> bool:
    """Whether the launcher takes `parameter` as a pointer that it may write through."""
    parameters = library.launchers[launcher].parameters
    return any(p.name == parameter and p.writable for p in parameters)


@torch.library.impl(_LIBRARY, "forward", "CPU")
@torch.library.impl(_LIBRARY, "forward", "CUDA")
def _forward(
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    temperature: float,
    temperature_tensor: Tensor | None,
    rung: str,
    precision: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Each query's loss, and what the rung keeps for backward.

    query (B, D), positive (B, D), negatives (N, D): float32, contiguous, on one device.
    `temperature_tensor`, one float32 element on that device, takes the place of `temperature` where
    given. Returns loss (B,), similarities (B, N) and statistics (3, B), or (0, B) where the rung
    keeps none; all float32.
    """
    library = _library(rung, query)
    (B, D), N = query.shape, negatives.shape[0]
    loss = _unwritten(query, B)
    statistics = _unwritten(query, _statistics(library), B)
    if _writes(library, "infonce_forward", "similarities"):
        similarities = _unwritten(query, B, N)
    else:
        similarities = product(query, negatives.T, precision)
    library.launchers["infonce_forward"].call(
        dict(
            query=query, positive=positive, negatives=negatives, similarities=similarities,
            statistics=statistics, loss=loss, temperature=temperature,
            temperature_tensor=temperature_tensor, B=B, N=N, D=D,
        )
    )  # fmt: skip
    return loss, similarities, statistics


@torch.library.register_fake("infonce_kernels::forward", lib=_LIBRARY)
def _(query, positive, negatives, temperature, temperature_tensor, rung, precision):
    B, N = query.shape[0], negatives.shape[0]
    statistics = query.new_empty(_statistics(_library(rung, query)), B)
    return query.new_empty(B), query.new_empty(B, N), statistics


def _statistics(library: KernelLibrary) -> int:
    """How many numbers a query the rung keeps for backward."""
    return 3 if _writes(library, "infonce_forward", "statistics") else 0


def _unwritten(like: Tensor, *shape: int) -> Tensor:
    """Memory for a kernel to write; for the emulator NaN, so that what no thread writes shows."""
    return like.new_empty(shape) if like.is_cuda else like.new_full(shape, math.nan)


@torch.library.impl(_LIBRARY, "backward", "CPU")
@torch.library.impl(_LIBRARY, "backward", "CUDA")
def _backward(
    grad_loss: Tensor,
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    similarities: Tensor,
    statistics: Tensor,
    temperature: float,
    temperature_tensor: Tensor | None,
    rung: str,
    precision: str | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of sum_i grad_loss_i loss_i, and each query's part (B,) of the temperature's.

    `wanted` says which; the others come back with no element. Shapes and dtypes are those of
    `forward`.
    """
    if len(query) == 0:  # nothing is launched, and negatives that nobody met have no gradient
        return tuple(x.zero_() for x in _backward_outputs(query, positive, negatives, wanted))
    library = _library(rung, query)
    (B, D), N = query.shape, negatives.shape[0]
    by_rung = _writes(library, "infonce_backward", "grad_negatives")
    written = [*wanted[:2], wanted[2] and by_rung, wanted[3]]
    grad_query, grad_positive, grad_negatives, grad_temperature = _backward_outputs(
        query, positive, negatives, written
    )
    grad_similarities = _unwritten(query, B, N) if wanted[0] or wanted[2] else None
    library.launchers["infonce_backward"].call(
        dict(
            grad_loss=grad_loss, query=query, positive=positive, negatives=negatives,
            similarities=similarities, statistics=statistics, grad_similarities=grad_similarities,
            grad_query=grad_query if wanted[0] else None,
            grad_positive=grad_positive if wanted[1] else None,
            grad_negatives=grad_negatives if wanted[2] else None,
            grad_temperature=grad_temperature if wanted[3] else None,
            temperature=temperature, temperature_tensor=temperature_tensor, B=B, N=N, D=D,
        )
    )  # fmt: skip
    if wanted[0] and not by_rung:
        # An infinite negative is absent, with a weight of 0, or has made the loss NaN: 0 * inf must
        # not become NaN.
        finite_negatives = torch.where(negatives.isinf(), 0, negatives)
        grad_query += product(grad_similarities, finite_negatives, precision)
    if wanted[2] and not by_rung:
        grad_negatives = product(grad_similarities.T, query, precision)
    return grad_query, grad_positive, grad_negatives, grad_temperature


def _backward_outputs(
    query: Tensor, positive: Tensor, negatives: Tensor, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = (query.shape, positive.shape, negatives.shape, query.shape[:1])
    return tuple(
        _unwritten(query, *(shape if want else (0,)))
        for shape, want in zip(shapes, wanted, strict=True)
    )


@torch.library.register_fake("infonce_kernels::backward", lib=_LIBRARY)
def _(
    grad_loss, query, positive, negatives, similarities, statistics, temperature,
    temperature_tensor, rung, precision, wanted,
):  # fmt: skip
    return _backward_outputs(query, positive, negatives, wanted)


forward = torch.ops.infonce_kernels.forward.default
backward = torch.ops.infonce_kernels.backward.default


class _Losses(torch.autograd.Function):
    """An autograd.Function and not `register_autograd`, which `torch.func.grad` refuses.

    Where gradients are to be differentiated again (`create_graph=True`, and always in `torch.func`)
    they are PyTorch's closed form, and the rung's own backward does not run.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(query, positive, negatives, temperature, temperature_tensor, rung, precision):
        return forward(query, positive, negatives, temperature, temperature_tensor, rung, precision)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        query, positive, negatives, ctx.temperature, temperature_tensor, ctx.rung, precision = (
            inputs
        )
        _, similarities, statistics = output
        ctx.precision = precision
        ctx.mark_non_differentiable(similarities, statistics)
        # Else autograd makes a (B, N) matrix of zeros for the similarities, which have no gradient.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            query, positive, negatives, temperature_tensor, similarities, statistics
        )

    @staticmethod
    def backward(ctx, grad_loss, *_):
        if grad_loss is None:
            return (None,) * 7
        query, positive, negatives, temperature_tensor, similarities, statistics = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[k] for k in (0, 1, 2, 4)]
        if torch.is_grad_enabled():
            # create_graph=True: someone will differentiate the gradient, so it is made of
            # differentiable operations.
            if temperature_tensor is None:
                temperature = torch.tensor(ctx.temperature, dtype=query.dtype, device="cpu")
            else:
                temperature = temperature_tensor.reshape(())
            gradients = list(
                reference.gradients(
                    grad_loss, query, positive, negatives, temperature, ctx.precision, wanted
                )
            )
        else:
            gradients = backward(
                grad_loss.contiguous(), query, positive, negatives, similarities, statistics,
                ctx.temperature, temperature_tensor, ctx.rung, ctx.precision, wanted,
            )  # fmt: skip
            gradients = [g if want else None for g, want in zip(gradients, wanted, strict=True)]
        if wanted[3]:
            gradients[3] = gradients[3].sum().reshape_as(temperature_tensor)
        by_query, by_positive, by_negatives, by_temperature = gradients
        return by_query, by_positive, by_negatives, None, by_temperature, None, None


# `apply` asks for the signature at every call; worked out anew it costs 30 us.
_Losses.forward.__signature__ = inspect.signature(_Losses.forward)


def losses(
    query: Tensor,
    positive: Tensor,
    negatives: Tensor,
    temperature: float,
    temperature_tensor: Tensor | None,
    rung: str,
    precision: str | None,
) -> Tensor:
    """Each query's loss (B,) by a rung, twice differentiable; arguments as for `forward`."""
    arguments = (query, positive, negatives, temperature, temperature_tensor, rung, precision)
    tensors = (query, positive, negatives, temperature_tensor)
    differentiable = any(x is not None and x.requires_grad for x in tensors)
    by_autograd = differentiable and torch.is_grad_enabled()
    run = _Losses.apply if by_autograd or _is_watched() else forward
    return run(*arguments)[0]


def _is_watched() -> bool:
    """Whether a functional transform or forward-mode differentiation is active.

    They mark tensors in ways that `requires_grad` does not show; `apply` serves or refuses them.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
