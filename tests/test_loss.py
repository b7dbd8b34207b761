"""`info_nce` on every path against float64, at the sizes and edges where InfoNCE losses are
reported to break.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from infonce_kernels import InfoNCE, build, info_nce, source
from infonce_kernels.reference import truth
from tests.paths import DEVICES, EVERY_PATH, KERNEL_PATHS, KERNELS, RUNGS

LOSS_LIMIT = 1e-5  # relative, worst query
GRADIENT_LIMIT = 1e-4  # relative in norm


def draw(B, N, D, device="cpu", *, seed=0, normalised=True, dtype=torch.float32):
    """query (B, D), positive (B, D) and negatives (N, D)."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(rows, D, generator=generator) for rows in (B, B, N)]
    if normalised:
        rows = [F.normalize(x, dim=1) for x in rows]
    return tuple(x.to(device, dtype) for x in rows)


def relative_error(ours, true):
    true = true.detach().double().cpu()
    return ((ours.detach().double().cpu() - true).norm() / true.norm()).item()


def assert_right(
    rung, operands, temperature=0.1, *, limit=LOSS_LIMIT, gradient_limit=GRADIENT_LIMIT
):
    """Losses, and the gradients of a weighted sum of them, equal float64's."""
    ours = [x.detach().clone().requires_grad_() for x in operands]
    exact = [x.detach().double().cpu().requires_grad_() for x in operands]
    weights = torch.linspace(0.5, 1.5, len(operands[0]), dtype=torch.float64)

    losses = info_nce(*ours, temperature, reduction="none", rung=rung, precision="fp32")
    true_losses = truth(*exact, temperature)
    assert losses.shape == true_losses.shape
    torch.testing.assert_close(losses.double().cpu(), true_losses, rtol=limit, atol=1e-30)

    gradients = torch.autograd.grad((losses * weights.to(losses)).sum(), ours)
    true_gradients = torch.autograd.grad((true_losses * weights).sum(), exact)
    for name, ours_, true in zip(
        ("query", "positive", "negatives"), gradients, true_gradients, strict=True
    ):
        assert torch.isfinite(ours_).all(), name
        if true.norm() > 0:
            assert relative_error(ours_, true) <= gradient_limit, name
        else:
            assert ours_.abs().sum() == 0, name


# ---- values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_the_original_sizes(rung, device):
    assert_right(rung, draw(256, 2560, 512, device))


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_sizes_that_nothing_divides(rung, device):
    for B, N, D in itertools.product((1, 2, 17, 33), (1, 31, 65, 129), (1, 3, 33, 127)):
        # Unnormalised, since the gradient of a cosine is zero where D = 1 and noise where it is
        # nearly so.
        operands = draw(B, N, D, device, seed=B + N + D, normalised=False)
        if D == 1:
            expected = truth(*operands, 5.0)
            got = info_nce(*operands, 5.0, reduction="none", rung=rung)
            torch.testing.assert_close(got.double().cpu(), expected, rtol=LOSS_LIMIT, atol=0)
        else:
            assert_right(rung, operands, 5.0)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_more_negatives_and_features_than_threads(rung, device):
    assert_right(rung, draw(3, 1030, 515, device))


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
@pytest.mark.parametrize("temperature", [0.05, 0.5, 2.0])
def test_only_the_positive_is_normalised(rung, device, temperature):
    e1, e2 = torch.eye(2, device=device)[:1], torch.eye(2, device=device)[1:]
    got = info_nce(e1, e1, e2, temperature, rung=rung).item()
    assert got == pytest.approx(math.log1p(math.exp(-1 / temperature)), rel=1e-5)
    assert info_nce(e1, 7 * e1, e2, temperature, rung=rung).item() == got
    diagonal = (e1 + e2) / math.sqrt(2)
    for operands in [(3 * diagonal, e1, e2), (diagonal, e1, 2 * e2)]:
        expected = truth(*operands, temperature).item()
        assert info_nce(*operands, temperature, rung=rung).item() == pytest.approx(
            expected, rel=1e-5
        )
        assert expected != pytest.approx(truth(diagonal, e1, e2, temperature).item(), rel=1e-2)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
@pytest.mark.parametrize("temperature", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("norm", [1, 30, 100])
def test_small_temperatures_and_large_norms(rung, device, temperature, norm):
    query, positive, negatives = draw(16, 48, 24, device)
    operands = [x.requires_grad_() for x in (norm * query, positive, negatives)]
    loss = info_nce(*operands, temperature, rung=rung)
    assert loss.item() == pytest.approx(truth(*operands, temperature).mean().item(), rel=1e-5)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, operands))


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_close_positives_keep_their_digits(rung, device):
    """exp(-s+) of a close positive at a small temperature is lost by m + log(sum) - s+."""
    query, _, negatives = draw(32, 64, 48, device)
    positive = query + 1e-3 * draw(32, 1, 48, device, seed=1)[0]
    assert_right(rung, (query, positive, negatives), 0.05, gradient_limit=1e-3)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_gradient_of_the_temperature(rung, device):
    operands = draw(9, 70, 20, device)
    ours = torch.tensor([0.3], device=device, requires_grad=True)
    exact = torch.tensor([0.3], requires_grad=True)
    (gradient,) = torch.autograd.grad(info_nce(*operands, ours, rung=rung, precision="fp32"), ours)
    (expected,) = torch.autograd.grad(truth(*operands, exact).mean(), exact)
    assert gradient.shape == (1,)
    assert gradient.item() == pytest.approx(expected.item(), rel=1e-4)
    for shape in ((), (1, 1)):
        tau = torch.full(shape, 0.3, device=device, requires_grad=True)
        loss = info_nce(*operands, tau, rung=rung, precision="fp32")
        (gradient,) = torch.autograd.grad(loss, tau, create_graph=True)
        assert gradient.shape == shape
        assert gradient.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1e6, 1e19])
def test_norms_whose_squares_leave_float32(rung, device, scale):
    """A clamped norm is a constant; a large one must not overflow the cosine."""
    query, positive, negatives = draw(4, 6, 8, device)
    for operands in [
        (query, scale * positive, negatives),
        (scale * query, positive, negatives / scale),
    ]:
        expected = truth(*operands, 0.5)
        got = info_nce(*operands, 0.5, reduction="none", rung=rung, precision="fp32")
        torch.testing.assert_close(got.double().cpu(), expected, rtol=LOSS_LIMIT, atol=0)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
@settings(max_examples=25)
@given(
    B=st.integers(1, 40),
    N=st.integers(1, 300),
    D=st.integers(2, 80),
    temperature=st.floats(0.05, 10.0),
    scale=st.floats(0.1, 3.0),
)
def test_any_sizes_temperatures_and_scales(rung, device, B, N, D, temperature, scale):
    query, positive, negatives = draw(B, N, D, device, seed=B * N + D, normalised=False)
    operands = (scale * query / math.sqrt(D), positive, negatives / math.sqrt(D))
    assert_right(rung, operands, temperature)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_logits_of_any_size(rung, device):
    """The largest logit must equal its own maximum to the bit: here a rounding is worth e^1000."""
    query, positive = torch.tensor([[1e5, 0.0]]).to(device), torch.tensor([[0.0, 1.0]]).to(device)
    for size in (100003.0, 77777.0):
        assert_right(rung, (query, positive, torch.tensor([[size, 0.0]]).to(device)))
    query, positive, negatives = draw(16, 40, 24, device)
    for norm, temperature in ((1000, 1e-4), (3000, 1e-3)):
        losses = info_nce(
            norm * query, positive, negatives, temperature, rung=rung, reduction="none"
        )
        expected = truth(norm * query, positive, negatives, temperature)
        torch.testing.assert_close(losses.double().cpu(), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_gradients_of_a_positive_that_is_far_ahead(rung, device):
    """At L - s+ = -90 the weight is 8e-40: exp(+90) would have overflowed on the way to it."""
    query = torch.eye(4)[:2].to(device)
    negatives = torch.full((3, 4), -0.5, device=device)
    operands = [x.clone().requires_grad_() for x in (query, query, negatives)]
    losses = info_nce(*operands, 1.5 / 90, rung=rung, reduction="sum")
    gradient = torch.autograd.grad(losses, operands)[2]
    assert (gradient[:, :2] > 0).all()


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_many_negatives(rung, device):
    query, positive, negatives = draw(2, 1, 8, device)
    many = negatives.expand(300_000, 8)
    losses = info_nce(query, positive, many, rung=rung, precision="fp32", reduction="none")
    expected = truth(query, positive, many, 0.1)
    torch.testing.assert_close(losses.double().cpu(), expected, rtol=LOSS_LIMIT, atol=0)


# ---- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_zero_vectors(rung, device):
    query, positive, negatives = draw(5, 7, 6, device)
    query[0], positive[1] = 0, 0
    query[2], positive[2] = 0, 0
    assert_right(rung, (query, positive, negatives))
    zeros = torch.zeros_like(query)
    assert info_nce(zeros, positive, negatives, rung=rung).item() == pytest.approx(
        math.log(8), rel=1e-6
    )


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_a_clamped_norm_is_a_constant(rung, device):
    """For 0 < norm < 1e-8 the cosine's own term is left out of the gradient."""
    query, positive, negatives = draw(5, 7, 6, device)
    assert_right(rung, (query, 1e-9 * positive, negatives))
    assert_right(rung, (1e-9 * query, positive, negatives))
    one = [torch.tensor([[x]], device=device) for x in (0.5, 2.0, 0.3)]
    assert_right(rung, one)  # D = 1: the cosine's gradient is zero, the dot product's is not


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_no_negatives_no_queries_no_features(rung, device):
    query, positive, negatives = (x.requires_grad_() for x in draw(4, 6, 8, device))

    loss = info_nce(query, positive, negatives[:0], rung=rung)
    assert loss.item() == 0
    gradients = torch.autograd.grad(loss, (query, positive, negatives))
    assert [g.shape for g in gradients] == [query.shape, positive.shape, negatives.shape]
    assert all(g.abs().sum() == 0 for g in gradients)

    assert info_nce(query[:0], positive[:0], negatives, rung=rung).isnan()
    assert info_nce(query[:0], positive[:0], negatives, rung=rung, reduction="sum").item() == 0
    assert info_nce(query[:0], positive[:0], negatives, rung=rung, reduction="none").shape == (0,)
    empty = info_nce(query[:0], positive[:0], negatives, rung=rung, reduction="sum")
    assert torch.autograd.grad(empty, negatives)[0].abs().sum() == 0

    featureless = info_nce(query[:, :0], positive[:, :0], negatives[:, :0], rung=rung)
    assert featureless.item() == pytest.approx(math.log(7), rel=1e-6)

    assert_right(rung, (query, positive, negatives))  # no error was left behind for the next call


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_a_logit_of_minus_infinity_is_an_absent_column(rung, device):
    query, positive, negatives = draw(3, 5, 4, device)
    query = query.abs()
    absent = torch.full((1, 4), -torch.inf, device=device)
    with_it = torch.cat([negatives[:2], absent, negatives[2:]])
    gradients = []
    for columns in (with_it, negatives):
        operands = [x.clone().requires_grad_() for x in (query, positive, columns)]
        losses = info_nce(*operands, reduction="none", rung=rung, precision="fp32")
        gradients.append((losses, *torch.autograd.grad(losses.sum(), operands)))
    (ours, by_query, by_positive, by_negatives), (expected, *others) = gradients
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(by_query, others[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(by_positive, others[1], rtol=1e-4, atol=1e-6)
    assert by_negatives[2].abs().sum() == 0
    torch.testing.assert_close(by_negatives[[0, 1, 3, 4, 5]], others[2], rtol=1e-4, atol=1e-6)

    temperatures = [torch.tensor([0.1], device=device, requires_grad=True) for _ in range(2)]
    by_temperature = [
        torch.autograd.grad(info_nce(query, positive, columns, tau, rung=rung), tau)[0]
        for columns, tau in zip((with_it, negatives), temperatures, strict=True)
    ]
    torch.testing.assert_close(*by_temperature, rtol=1e-4, atol=0)

    operands = [x.clone().requires_grad_() for x in (query, positive, with_it)]
    loss = info_nce(*operands, 0.5, rung=rung)
    first = torch.autograd.grad(loss, operands, create_graph=True)
    second = torch.autograd.grad(first[0].square().sum(), operands[:2])
    assert all(torch.isfinite(g).all() for g in second)

    operands = [x.clone().requires_grad_() for x in (query, positive, absent)]
    loss = info_nce(*operands, rung=rung)
    assert loss.item() == 0
    assert all(g.abs().sum() == 0 for g in torch.autograd.grad(loss, operands))


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_a_nan_spoils_its_row_alone_and_is_never_hidden(rung, device):
    query, positive, negatives = draw(5, 7, 6, device)
    query[1, 2] = torch.nan
    positive[3, 0] = torch.nan
    spoilt = info_nce(query, positive, negatives, rung=rung, reduction="none").isnan()
    assert spoilt.tolist() == [False, True, False, True, False]
    query, positive, negatives = draw(5, 7, 6, device)
    negatives[4, 1] = torch.nan
    assert info_nce(query, positive, negatives, rung=rung, reduction="none").isnan().all()


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_a_logit_of_plus_infinity_is_not_finite(rung, device):
    query, positive, negatives = draw(3, 5, 4, device)
    negatives[0] = torch.inf
    losses = info_nce(query.abs(), positive, negatives, rung=rung, reduction="none")
    assert not torch.isfinite(losses).any()


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_reductions(rung, device):
    operands = draw(6, 9, 5, device)
    losses = info_nce(*operands, reduction="none", rung=rung)
    assert losses.shape == (6,)
    torch.testing.assert_close(info_nce(*operands, reduction="sum", rung=rung), losses.sum())
    torch.testing.assert_close(info_nce(*operands, rung=rung), losses.mean())


# ---- dtypes, autocast, devices -------------------------------------------------------------------


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_mixed_dtypes_are_promoted_and_gradients_keep_the_leaves_dtype(rung, device):
    for dtypes in itertools.product((torch.float32, torch.bfloat16), repeat=3):
        operands = [
            x.to(dtype).requires_grad_()
            for x, dtype in zip(draw(6, 20, 33, device), dtypes, strict=True)
        ]
        loss = info_nce(*operands, rung=rung)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(truth(*operands, 0.1).mean().item(), rel=1e-5)
        assert [g.dtype for g in torch.autograd.grad(loss, operands)] == list(dtypes)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_autocast_does_not_lower_the_precision(rung, device):
    operands = [x.requires_grad_() for x in draw(6, 20, 33, device)]
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = info_nce(*operands, rung=rung)
        gradients = torch.autograd.grad(loss, operands)  # inside, as a training loop may do
    expected = truth(*operands, 0.1).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for ours, true in zip(gradients, torch.autograd.grad(expected, operands), strict=True):
        assert ours.dtype == torch.float32
        assert relative_error(ours, true) <= 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_float64_stays_float64(device):
    operands = [x.requires_grad_() for x in draw(6, 20, 33, device, dtype=torch.float64)]
    loss = info_nce(*operands)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(truth(*operands, 0.1).mean().item(), rel=1e-13)
    assert all(g.dtype == torch.float64 for g in torch.autograd.grad(loss, operands))


@pytest.mark.parametrize("device", DEVICES)
def test_float64_is_exact_under_every_setting(device):
    operands = draw(6, 20, 33, device, dtype=torch.float64)
    expected = truth(*operands, 0.1).mean().item()
    compiled = torch.compile(
        lambda *x: info_nce(*x, precision="fp32"), backend="aot_eager", fullgraph=True
    )
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        for loss in (info_nce(*operands, precision="fp32"), compiled(*operands)):
            assert loss.item() == pytest.approx(expected, rel=1e-13)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("rung", KERNELS)
def test_a_kernel_refuses_float64(rung):
    with pytest.raises(TypeError, match=r"float64.*v0_reference"):
        info_nce(*draw(2, 3, 4, dtype=torch.float64), rung=rung)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_operands_may_be_strided_and_are_not_written(rung, device):
    query, positive, negatives = draw(6, 20, 10, device)
    strided = query.T.contiguous().T, positive.repeat(1, 2)[:, ::2], negatives[:1].expand(20, 10)
    before = [x.clone() for x in strided]
    expected = truth(*strided, 0.1).mean().item()
    operands = [x.requires_grad_() for x in strided]
    loss = info_nce(*operands, rung=rung)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    for now, then in zip(operands, before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_only_the_gradients_that_are_asked_for(rung, device):
    for asked in itertools.product((False, True), repeat=3):
        operands = [
            x.requires_grad_(a) for x, a in zip(draw(6, 20, 10, device), asked, strict=True)
        ]
        exact = [x.detach().double().cpu().requires_grad_() for x in operands]
        loss = info_nce(*operands, rung=rung, precision="fp32")
        true_loss = truth(*exact, 0.1).mean()
        assert loss.item() == pytest.approx(true_loss.item(), rel=1e-5)
        assert loss.requires_grad == any(asked)
        if not any(asked):
            continue
        loss.backward()
        true_loss.backward()
        for ours, true, wanted in zip(operands, exact, asked, strict=True):
            assert (ours.grad is not None) == wanted
            assert not wanted or relative_error(ours.grad, true.grad) <= GRADIENT_LIMIT
    operands = [x.requires_grad_() for x in draw(6, 20, 10, device)]
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            loss = info_nce(*operands, rung=rung)
        assert not loss.requires_grad
        assert loss.item() == pytest.approx(truth(*operands, 0.1).mean().item(), rel=1e-5)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_runs_are_equal_to_the_bit(rung, device):
    operands = [x.requires_grad_() for x in draw(64, 257, 48, device)]
    torch.use_deterministic_algorithms(
        device == "cpu"
    )  # on a GPU cuBLAS asks for an environment variable
    try:
        runs = []
        for _ in range(10):
            loss = info_nce(*operands, rung=rung)
            runs.append((loss, *torch.autograd.grad(loss, operands)))
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


# ---- PyTorch's transforms ------------------------------------------------------------------------


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_second_derivatives(rung, device):
    """Of a gradient penalty, against float64."""
    results = []
    for operands, loss in [
        (draw(4, 9, 6, device), lambda *x: info_nce(*x, 0.5, rung=rung, precision="fp32")),
        (draw(4, 9, 6, dtype=torch.float64), lambda *x: truth(*x, 0.5).mean()),
    ]:
        operands = [x.requires_grad_() for x in operands]
        gradients = torch.autograd.grad(loss(*operands), operands, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), operands))
    for ours, true in zip(*results, strict=True):
        assert relative_error(ours, true) <= 1e-4


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_torch_compile_with_gradient_and_a_new_shape(rung, device):
    torch.compiler.reset()  # other rungs have compiled the same lambda before
    compiled = torch.compile(
        lambda *x: info_nce(*x, rung=rung), backend="aot_eager", fullgraph=True
    )
    for B, N in ((8, 30), (5, 17)):
        operands = [x.requires_grad_() for x in draw(B, N, 12, device)]
        loss, expected = compiled(*operands), info_nce(*operands, rung=rung)
        torch.testing.assert_close(loss, expected)
        for ours, eager in zip(
            torch.autograd.grad(loss, operands),
            torch.autograd.grad(expected, operands),
            strict=True,
        ):
            torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_torch_compile_keeps_the_precision_asked_for(rung, device):
    operands = draw(8, 30, 256, device)
    torch.compiler.reset()  # other rungs have compiled the same lambda before
    compiled = torch.compile(
        lambda *x: info_nce(*x, rung=rung, precision="fp32"), backend="aot_eager", fullgraph=True
    )
    expected = truth(*operands, 0.1).mean().item()
    assert compiled(*operands).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_functional_gradient(rung, device):
    query, positive, negatives = draw(6, 20, 10, device)
    gradient = torch.func.grad(
        lambda x: info_nce(x, positive, negatives, rung=rung, precision="fp32")
    )(query)
    exact = query.detach().double().cpu().requires_grad_()
    (expected,) = torch.autograd.grad(truth(exact, positive, negatives, 0.1).mean(), exact)
    assert relative_error(gradient, expected) <= GRADIENT_LIMIT


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_forward_mode_is_refused_and_never_silently_zero(rung, device):
    query, positive, negatives = draw(6, 20, 10, device)

    def loss(x):
        return info_nce(x, positive, negatives, rung=rung)

    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(loss, (query,), (query,))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="jvp"):
        loss(forward_ad.make_dual(query, query))


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
def test_vmap_over_queries(rung, device):
    query, positive, negatives = draw(6, 20, 10, device)

    def one(q, p):
        return info_nce(q.unsqueeze(0), p.unsqueeze(0), negatives, rung=rung, precision="fp32")

    losses = torch.vmap(one)(query, positive)
    torch.testing.assert_close(
        losses.double().cpu(), truth(query, positive, negatives, 0.1), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize(("rung", "device"), KERNEL_PATHS)
def test_opcheck(rung, device):
    query, positive, negatives = draw(5, 9, 7, device)
    grad_loss, tau = torch.ones(5, device=device), torch.tensor([0.2], device=device)
    operators = torch.ops.infonce_kernels
    for temperature, tensor in ((0.1, None), (math.nan, tau)):
        arguments = (query, positive, negatives, temperature, tensor, rung, "fp32")
        torch.library.opcheck(operators.forward.default, arguments)
        _, similarities, statistics = operators.forward(*arguments)
        for wanted in ([True] * 4, [False, True, False, False], [False, False, True, False]):
            torch.library.opcheck(
                operators.backward.default,
                (grad_loss, *arguments[:3], similarities, statistics, *arguments[3:], wanted),
            )


@pytest.mark.cuda
@pytest.mark.parametrize("rung", RUNGS)
def test_capture_in_a_cuda_graph(rung):
    static = [x.requires_grad_() for x in draw(64, 257, 48, "cuda")]

    def step():
        loss = info_nce(*static, rung=rung, precision="fp32")
        return (loss, *torch.autograd.grad(loss, static))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    new = draw(64, 257, 48, "cuda", seed=5)
    with torch.no_grad():
        for x, value in zip(static, new, strict=True):
            x.copy_(value)
    graph.replay()
    exact = [x.double().cpu().requires_grad_() for x in new]
    loss = truth(*exact, 0.1).mean()
    assert outputs[0].item() == pytest.approx(loss.item(), rel=1e-5)
    for ours, true in zip(outputs[1:], torch.autograd.grad(loss, exact), strict=True):
        assert relative_error(ours, true) <= GRADIENT_LIMIT


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("rung", RUNGS)
def test_operands_on_another_device_than_the_current_one(rung):
    assert_right(rung, draw(33, 65, 31, "cuda:1"))
    assert torch.cuda.current_device() == 0


# ---- PyTorch's state -----------------------------------------------------------------------------


@pytest.mark.parametrize(("rung", "device"), EVERY_PATH)
@pytest.mark.parametrize("allow_tf32", [False, True])
def test_fp32_is_accurate_and_no_switch_is_touched(rung, device, allow_tf32):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32
    try:
        state = _global_state()
        for precision in ("fp32", "ieee"):
            operands = [x.requires_grad_() for x in draw(32, 320, 512, device)]
            loss = info_nce(*operands, rung=rung, precision=precision)
            loss.backward()
            assert loss.item() == pytest.approx(truth(*operands, 0.1).mean().item(), rel=1e-5)
        assert _global_state() == state
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("rung", RUNGS)
def test_pytorch_defaults_do_not_matter(rung):
    operands = draw(6, 20, 10)
    expected = info_nce(*operands, rung=rung)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        got = info_nce(*operands, rung=rung)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.equal(got, expected)


def _global_state():
    return (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.random.get_rng_state().tolist(),
    )


# ---- bad input -----------------------------------------------------------------------------------

_Q, _P, _N = draw(4, 6, 5)
BAD_OPERANDS = [
    (ValueError, "positive", (_Q, _P[:1], _N)),
    (ValueError, "positive", (_Q, torch.cat([_P, _P]), _N)),
    (ValueError, "positive", (_Q, _P[:, :4], _N)),
    (ValueError, "negatives", (_Q, _P, _N[:, :4])),
    (ValueError, "negatives", (_Q, _P, _N.expand(4, 6, 5))),
    (ValueError, "negatives", (_Q, _P, _N[0])),
    (ValueError, "query", (_Q[0], _P, _N)),
    (ValueError, "query", (_Q[None], _P, _N)),
    (TypeError, "query", (_Q.int(), _P, _N)),
    (TypeError, "negatives", (_Q, _P, _N.to(torch.complex64))),
    (TypeError, "negatives", (_Q, _P, None)),
    (TypeError, "positive", (_Q, _P.tolist(), _N)),
    (TypeError, "negatives", (_Q, _P, _N.to_sparse())),
    (ValueError, "negatives", (_Q, _P, _N.to("meta"))),
    (ValueError, "query", (_Q.to("meta"), _P.to("meta"), _N.to("meta"))),
]


@pytest.mark.parametrize("rung", ["auto", "v3_fused"])
@pytest.mark.parametrize(("error", "name", "operands"), BAD_OPERANDS)
def test_bad_operands_are_named(error, name, operands, rung):
    with pytest.raises(error, match=rf"^{name}"):
        info_nce(*operands, rung=rung)


@pytest.mark.parametrize(
    "temperature",
    [
        0,
        0.0,
        -0.1,
        math.nan,
        math.inf,
        1e-40,
        1e39,
        10**400,
        torch.tensor(-1.0),
        torch.tensor([math.nan]),
    ],
)
def test_bad_temperatures(temperature):
    for call in (lambda: info_nce(_Q, _P, _N, temperature), lambda: InfoNCE(temperature)):
        with pytest.raises(ValueError, match=r"^temperature"):
            call()


def test_temperatures_of_the_wrong_kind():
    for temperature in ("0.1", None, True, torch.tensor(1)):
        with pytest.raises(TypeError, match=r"^temperature"):
            info_nce(_Q, _P, _N, temperature)
    with pytest.raises(ValueError, match=r"^temperature must have one element"):
        info_nce(_Q, _P, _N, torch.ones(4))


@pytest.mark.cuda
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_bad_temperature_on_the_gpu_gives_nan(rung, temperature):
    operands = draw(4, 6, 5, "cuda")
    assert info_nce(*operands, torch.tensor(temperature, device="cuda"), rung=rung).isnan()


def test_bad_options_are_named():
    for name, value in [
        ("reduction", "median"),
        ("precision", "fp8"),
        ("precision", "bf16"),
        ("rung", "v9"),
        ("backend", "tpu"),
        ("backend", "cuda"),
    ]:
        with pytest.raises(ValueError, match=rf"^{name}="):
            info_nce(_Q, _P, _N, **{name: value})


def test_a_text_is_not_a_rung_and_is_not_printed_whole():
    with pytest.raises(TypeError, match="build") as caught:
        info_nce(_Q, _P, _N, rung=source("v3_fused"))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "options", [{"reduction": "men"}, {"rung": "v99"}, {"backend": "tpu"}, {"temperature": -1}]
)
def test_the_module_refuses_bad_options_at_once(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        InfoNCE(**options)


# ---- the module, and a rung of one's own ---------------------------------------------------------


def test_the_module_learns_its_temperature():
    operands = draw(16, 64, 24)
    module = InfoNCE(torch.nn.Parameter(torch.tensor(1.0)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    first = module(*operands)
    assert first.item() == pytest.approx(truth(*operands, 1.0).mean().item(), rel=1e-5)
    for _ in range(5):
        optimizer.zero_grad()
        module(*operands).backward()
        optimizer.step()
    assert module(*operands).item() < first.item()
    assert "temperature" in module.state_dict()


def test_an_edited_rung_computes_what_its_text_says():
    """A learner who breaks the maximum must see it in the loss, and the rung itself must not
    change.
    """
    query, positive, negatives = draw(8, 300, 16)
    edited = source("v3_fused").replace("fmaxf(s_max[t], s_max[t + stride])", "s_max[t]")
    assert edited != source("v3_fused")
    library = build(edited, backend="emulator")
    temperature = 0.004  # exp overflows float32 where the maximum of the other threads is ignored
    assert not torch.isfinite(
        info_nce(query, positive, negatives, temperature, rung=library, reduction="none")
    ).all()
    assert_right("v3_fused", (query, positive, negatives), temperature, gradient_limit=1e-3)


def test_a_library_without_the_launchers_is_refused():
    library = build(
        '#include <cuda_runtime.h>\nextern "C" cudaError_t other(int n) { return cudaSuccess; }\n',
        "emulator",
    )
    with pytest.raises(ValueError, match="infonce_backward and no infonce_forward"):
        info_nce(_Q, _P, _N, rung=library)


@pytest.mark.parametrize(("rung", "device"), KERNEL_PATHS)
def test_backward_fills_no_matrix_for_a_gradient_that_is_none(rung, device):
    class Filled(TorchDispatchMode):
        """The shapes of all tensors that are filled with zeros."""

        def __init__(self):
            super().__init__()
            self.shapes = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if "zero" in func._schema.name:
                self.shapes.append(tuple(result.shape))
            return result

    B, N, D = 8, 20, 5
    leaves = [torch.randn(n, D, device=device, requires_grad=True) for n in (B, B, N)]
    loss = info_nce(*leaves, rung=rung)
    with Filled() as filled:
        loss.backward()
    assert (B, N) not in filled.shapes
