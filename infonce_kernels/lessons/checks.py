"""The checks of the exercises: each runs the reader's answer where wrong ones are known to fail."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from infonce_kernels import build
from infonce_kernels.build import KernelLibrary, show_progress
from infonce_kernels.build.emulated import runtime_library
from infonce_kernels.emulator import EmulatorWarning, Runtime
from infonce_kernels.lessons.data import original
from infonce_kernels.lessons.exercises import NotYet, check
from infonce_kernels.reference import truth


@check
def check_stable_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Lesson 00: `loss(positive_logits (B,), negative_logits (B, N))` -> losses (B,)."""
    generator = torch.Generator().manual_seed(0)
    cases = {
        "ordinary logits": (
            torch.randn(8, generator=generator),
            torch.randn(8, 50, generator=generator),
        ),
        "large logits, as a small temperature makes them": (
            300 * torch.randn(8, generator=generator),
            300 * torch.randn(8, 50, generator=generator),
        ),
        "very negative logits": (torch.full((3,), -500.0), torch.full((3, 4), -500.0)),
        "a single negative": (torch.tensor([1.5]), torch.tensor([[-0.5]])),
        "a close positive, where the loss is tiny": (torch.tensor([30.0]), torch.zeros(1, 5)),
    }
    for name, (positive, negatives) in cases.items():
        expected = torch.logaddexp(
            torch.logsumexp(negatives.double(), 1) - positive.double(), torch.zeros(len(positive))
        )
        _compare(loss(positive, negatives), expected, name, rtol=1e-5)
    nan, zero = torch.tensor([torch.nan]), torch.tensor([0.0])
    if not (loss(zero, nan.expand(1, 2)).isnan() & loss(nan, zero.expand(1, 2)).isnan()).all():
        raise NotYet(
            "a NaN among the negatives disappeared: a broken encoder must not look healthy"
        )
    return "finite and exact, from ordinary logits to tiny losses"


@check
def check_log_sum_exp(text: str) -> str:
    """Lesson 01: `log_sum_exp(logits (rows, columns), result (rows,), rows, columns)`."""
    launcher = _emulated(text).log_sum_exp

    def run(logits: Tensor) -> Tensor:
        return _rows(launcher, logits)

    for rows, columns in [(1, 1), (5, 3), (33, 65), (300, 31)]:
        for scale in (1, 300, -300, -1e5, -1e37):
            logits = scale + abs(scale) * _numbers(rows, columns)
            case = f"{rows} x {columns} logits around {scale}"
            _compare(run(logits), torch.logsumexp(logits.double(), 1), case)
    logits = _numbers(3, 40)
    logits[1] = -torch.inf
    _compare(run(logits), torch.logsumexp(logits.double(), 1), "a row of -inf, which is -inf")
    logits = _numbers(3, 40)
    logits[1, 7] = torch.nan
    if run(logits).isnan().tolist() != [False, True, False]:
        raise NotYet(
            "a NaN must make its own row NaN and no other: fmaxf drops NaNs, exp keeps them"
        )
    _compare(
        run(_misaligned(_numbers(4, 9))),
        torch.logsumexp(_numbers(4, 9).double(), 1),
        "a misaligned pointer",
    )
    return "every size, large logits, -inf and NaN"


@check
def check_row_sums(text: str) -> str:
    """Lesson 02: `row_sums(matrix (rows, columns), sums (rows,), rows, columns)`, a block a row."""
    library = _emulated(text)
    for rows, columns in [(1, 1), (3, 31), (2, 255), (2, 257), (5, 1030)]:
        matrix = _numbers(rows, columns)
        # Lanes in other orders: without a barrier a thread reads what another has yet to write.
        for seed in range(4):
            with lane_order(seed):
                got = _rows(library.row_sums, matrix)
            _compare(
                got, matrix.double().sum(1), f"{rows} x {columns}, lane order {seed}", rtol=1e-5
            )
    matrix = _numbers(3, 300)
    matrix[1, 299] = torch.nan
    if _rows(library.row_sums, matrix).isnan().tolist() != [False, True, False]:
        raise NotYet("a NaN must make its own row's sum NaN and no other")
    _compare(
        _rows(library.row_sums, _misaligned(_numbers(4, 9))),
        _numbers(4, 9).double().sum(1),
        "a misaligned pointer",
    )
    return "every size, in every order of the threads"


@check
def check_accuracy(text: str) -> str:
    """Lesson 03: `v3_fused` with one more output, `float* correct` (B,)."""
    library = _emulated(text)
    names = [parameter.name for parameter in library.infonce_forward.parameters]
    if "correct" not in names:
        raise NotYet("infonce_forward has no parameter `float* correct` yet")
    unit = torch.eye(4)
    for case, (query, positive, negatives) in {
        "the original sizes": _near(*original()),
        "B=33, N=65, D=31": _near(
            _numbers(33, 31), _numbers(33, 31, seed=1), _numbers(65, 31, seed=2)
        ),
        "a single negative": _near(_numbers(5, 3), _numbers(5, 3, seed=1), _numbers(1, 3, seed=2)),
        "no negatives": (_numbers(3, 4), _numbers(3, 4, seed=1), torch.zeros(0, 4)),
        "a tie": (unit[:2], unit[:2], unit),
        "negative logits alone": (unit[:1], -unit[:1], -unit[:1] - 0.5),
        "negative logits alone, and a win": (unit[:1], -0.1 * unit[:1] + unit[1:2], -unit[:1]),
    }.items():
        cosine = torch.nn.functional.cosine_similarity(query.double(), positive.double())
        dots = query.double() @ negatives.double().T
        expected = cosine > dots.amax(1) if len(negatives) else torch.ones(len(query))
        for seed in range(3):
            with lane_order(seed):
                loss, correct = _forward_with_accuracy(library, query, positive, negatives)
            true_loss = truth(query, positive, negatives, 0.1)
            _compare(loss, true_loss, f"the loss, {case}", rtol=1e-4)
            _compare(correct, expected.double(), f"correct, {case}")
    return "the accuracy came for free: no further pass over the similarities"


@check
def check_without_matrix(least_ms: Callable[[int, int, int, int, float, float], float]) -> str:
    """Lesson 04: `least_ms(B, D, N, itemsize, copy_tbps, matrix_tflops)` -> milliseconds."""
    # With 1 TB/s and 1000 TFLOP/s a byte takes 1e-9 ms and a FLOP 1e-12.
    for case, arguments, expected in (
        # 2 * 4096 * 40960 * 512 FLOPs; 2 bytes of each of 49152 * 512 numbers take 0.05 ms.
        ("large, 2 bytes a number", (4096, 512, 40960, 2, 1.0, 1000.0), 0.171799),
        # 4 (2 + 10 ** 6) 128 bytes and one loss; the FLOPs take 0.000256 ms.
        ("one query and a million negatives", (1, 128, 10**6, 4, 1.0, 1000.0), 0.512001),
        # 4 (2 * 10 ** 6 + 1) 8 bytes of operands, and 4 a query for the losses.
        ("a million queries and one negative", (10**6, 8, 1, 4, 1.0, 1000.0), 0.068),
        # Two bytes a number, but the losses are float32 all the same.
        ("a million queries, 2 bytes a number", (10**6, 8, 1, 2, 1.0, 1000.0), 0.036),
        ("one query, 2 bytes a number", (1, 128, 10**6, 2, 1.0, 1000.0), 0.2560005),
        ("twice the bandwidth, where bytes count", (1, 128, 10**6, 4, 2.0, 1000.0), 0.256001),
        ("half the rate, where FLOPs count", (4096, 512, 40960, 4, 1.0, 500.0), 0.343597),
    ):
        got = float(least_ms(*arguments))
        if not abs(got - expected) <= 1e-3 * expected:
            raise NotYet(f"{case}: it gives {got:.4g}, but {expected:.4g} is the least")
    return "a limit for every size, whichever of bytes and FLOPs it is"


def _near(query: Tensor, positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The positive moved so near to its query that some queries win and some lose."""
    return query, query + 0.8 * positive, negatives


def _forward_with_accuracy(
    library: KernelLibrary, query: Tensor, positive: Tensor, negatives: Tensor
) -> tuple[Tensor, Tensor]:
    (B, D), N = query.shape, len(negatives)
    loss, correct = _unwritten(B), _unwritten(B)
    library.infonce_forward.call(
        dict(
            query=query, positive=positive, negatives=negatives, similarities=query @ negatives.T,
            loss=loss, correct=correct, temperature=0.1, temperature_tensor=None, B=B, N=N, D=D,
        )
    )  # fmt: skip
    return loss, correct


def lane_order(seed: int) -> AbstractContextManager[None]:
    """Context in which the emulator runs a block's threads in a shuffled order (0: in turn)."""
    return Runtime.load(runtime_library()).settings(lane_order=seed)


def _emulated(text: str) -> KernelLibrary:
    """Checks run in the emulator on every machine: it starts from NaN and survives wild pointers.

    It builds in under a second, and without a word, so that a check shows its verdict alone.
    """
    shown = show_progress(False)
    try:
        return build(text, "emulator", name="exercise")
    finally:
        show_progress(shown)


def _numbers(rows: int, columns: int, *, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def _misaligned(matrix: Tensor) -> Tensor:
    """The same numbers at an address that is a multiple of 4 bytes and not of 8 or 16."""
    buffer = torch.empty(matrix.numel() + 1)
    return buffer[1:].view_as(matrix).copy_(matrix)


def _unwritten(rows: int) -> Tensor:
    """NaN, so that a row which no thread writes shows."""
    return torch.full((rows,), torch.nan)


def _rows(launcher: Callable[..., None], matrix: Tensor) -> Tensor:
    rows, columns = matrix.shape
    result = _unwritten(rows)
    with warnings.catch_warnings():
        # What works by luck, such as a return before a barrier, is no right answer.
        warnings.simplefilter("error", EmulatorWarning)
        launcher(matrix, result, rows, columns)
    return result


def _compare(got: Tensor, expected: Tensor, case: str, rtol: float = 1e-5) -> None:
    if got.shape != expected.shape:
        raise NotYet(
            f"{case}: the result has shape {tuple(got.shape)}, not {tuple(expected.shape)}"
        )
    wrong = ~torch.isclose(got.double(), expected.double(), rtol=rtol, atol=1e-30 if rtol else 0)
    if wrong.any():
        first = wrong.nonzero()[0].item()
        raise NotYet(
            f"{case}: row {first} gives {got[first]:.6g}, but {expected[first]:.6g} is right"
        )
