"""Peers: what each computes, asked for as its package wants, and said when it cannot be.

The packages are not installed here. Stand-ins have their signatures and compute in plain PyTorch
what their documentation says; on a GPU the packages themselves run.
"""

import math
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from infonce_kernels import reference
from infonce_kernels.bench import peers
from infonce_kernels.bench.subjects import DTYPES, EAGER, Subject

TEMPERATURE = 0.1
BY_NAME = {subject.name: subject for subject in peers.PEERS}
LINEAR = ("cut_cross_entropy", "liger", "liger_sm90")


def operands(B: int, N: int, D: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(B + N + D)
    rows = (torch.randn(n, D, generator=generator, dtype=torch.float64) for n in (B, B, N))
    return tuple(F.normalize(x, dim=1).to(dtype) for x in rows)


def cross_entropy(query: Tensor, keys: Tensor, targets: list[int]) -> float:
    """Row by row with plain numbers: -log of the target's share of the exponentials."""
    losses = []
    for q, target in zip(query.tolist(), targets, strict=True):
        logits = [sum(map(math.prod, zip(q, k, strict=True))) / TEMPERATURE for k in keys.tolist()]
        losses.append(-math.log(math.exp(logits[target]) / sum(map(math.exp, logits))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_cross_entropies_are_expected_to_aim_at_the_first_negative(name: str) -> None:
    query, positive, negatives = operands(3, 5, 16)
    expected = BY_NAME[name].expected(query, positive, negatives, TEMPERATURE)
    assert expected.item() == pytest.approx(cross_entropy(query, negatives, [0, 0, 0]))


@pytest.mark.parametrize(("name", "N"), [("inf_cl", 5), ("inf_cl", 3), ("memeff", 3)])
def test_in_batch_losses_are_expected_to_aim_at_the_diagonal(name: str, N: int) -> None:
    query, positive, negatives = operands(3, N, 16)
    expected = BY_NAME[name].expected(query, positive, negatives, TEMPERATURE)
    assert expected.item() == pytest.approx(cross_entropy(query, negatives, [0, 1, 2]))


def test_info_nce_pytorch_is_expected_to_be_infonce_of_the_directions() -> None:
    leaves = [x.requires_grad_() for x in operands(3, 5, 16)]
    lengths = [torch.tensor([0.5, 2.0, 3.0]), torch.tensor([2.0, 1.0, 0.1]), torch.arange(1.0, 6.0)]
    longer = [x.detach() * length[:, None] for x, length in zip(leaves, lengths, strict=True)]
    expected = BY_NAME["info_nce_pytorch"].expected
    value = expected(*leaves, TEMPERATURE)
    assert value.item() == pytest.approx(reference.truth(*leaves, TEMPERATURE).mean().item())
    assert expected(*longer, TEMPERATURE).item() == pytest.approx(value.item())
    # Nothing changes along a row, so its gradient is at right angles to it.
    for x, gradient in zip(leaves, torch.autograd.grad(value, leaves), strict=True):
        assert gradient.norm() > 0.1
        assert (x * gradient).sum(1).abs().max() < 1e-12


def cut_linear_cross_entropy(
    e, c, targets, ignore_index=-100, softcap=None, reduction="mean", shift=False, filter_eps="high"
):
    assert filter_eps is None, "gradients are left out"
    return F.cross_entropy(e @ c.T, targets)


class LigerFunction:
    @staticmethod
    def apply(_input, weight, target, bias=None):
        return F.cross_entropy(_input @ weight.T, target), None, None, None


class LigerSM90Function:
    @staticmethod
    def apply(_input, weight, target, temperature=1.0):
        assert isinstance(temperature, float)
        return F.cross_entropy(_input @ weight.T / temperature, target, reduction="none")


def cal_flash_loss(q, k, labels=None, scale=None, head_dim=256):
    assert head_dim in (16, 32, 64, 128, 256)
    q, k = (scale * q).view(len(q), -1, head_dim), k.view(len(k), -1, head_dim)
    logits = torch.einsum("mhd,nhd->mn", q, k)
    return torch.logsumexp(logits, 1) - logits.diagonal()


class MemoryEfficientQwen3Loss:
    def __init__(
        self, temperature=0.07, margin=0.1, use_qq_negatives=False, use_dd_negatives=False,
        normalized_inputs=False, stable=True,
    ):  # fmt: skip
        assert not stable, "gradients are scaled"
        self.temperature, self.margin, self.normalised = temperature, margin, normalized_inputs

    def __call__(self, query, document):
        assert self.normalised, "normalises once more"
        similarity = query @ document.T
        masked = similarity > similarity.diagonal()[:, None] + self.margin
        logits = (similarity / self.temperature).masked_fill(masked, -torch.inf)
        return F.cross_entropy(logits, torch.arange(len(query)))


def info_nce(query, positive_key, negative_keys=None, temperature=0.1):
    query, positive_key, negative_keys = map(F.normalize, (query, positive_key, negative_keys))
    positive_logit = (query * positive_key).sum(1, keepdim=True)
    logits = torch.cat([positive_logit, query @ negative_keys.T], 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.long))


LIGER = "liger_kernel.ops.fused_linear_cross_entropy"
LIGER_SM90 = "liger_kernel.ops.cutedsl.ops.fused_scaled_cross_entropy_sm90"
STAND_INS = {
    "cut_cross_entropy": ("cut_cross_entropy", {"linear_cross_entropy": cut_linear_cross_entropy}),
    "liger": (LIGER, {"LigerFusedLinearCrossEntropyFunction": LigerFunction}),
    "liger_sm90": (LIGER_SM90, {"LigerFusedScaledCrossEntropySM90Function": LigerSM90Function}),
    "inf_cl": ("inf_cl", {"cal_flash_loss": cal_flash_loss}),
    "memeff": ("memeff", {"MemoryEfficientQwen3Loss": MemoryEfficientQwen3Loss}),
    "info_nce_pytorch": ("info_nce", {"info_nce": info_nce}),
}


@pytest.mark.parametrize("subject", peers.PEERS, ids=lambda subject: subject.name)
def test_package_is_asked_for_what_is_expected(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, contents = STAND_INS[subject.name]
    while module:
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
        module = module.rpartition(".")[0]
    vars(sys.modules[STAND_INS[subject.name][0]]).update(contents)
    monkeypatch.setenv("LIGER_SCALED_CE_SM90_VALIDATE_TARGETS", "0")

    N = 6 if subject.cannot(6, 7, 64, "both") else 7
    leaves = [x.requires_grad_() for x in operands(6, N, 64)]
    loss = subject.make(subject.tiers[0], TEMPERATURE)(*leaves)
    expected = subject.expected(*leaves, TEMPERATURE)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss, leaves, allow_unused=True),
        torch.autograd.grad(expected, leaves, allow_unused=True),
    )


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("cut_cross_entropy", (256, 2560, 512), None),
        ("cut_cross_entropy", (1, 2**22, 512), "32 bits"),
        ("cut_cross_entropy", (2**22, 1, 512), "32 bits"),
        ("cut_cross_entropy", (1, 2**22 - 1, 512), None),
        ("liger", (1, 2**22, 512), None),
        ("inf_cl", (256, 2560, 512), None),
        ("inf_cl", (256, 256, 48), None),
        ("inf_cl", (256, 256, 72), "multiple of 16"),
        ("inf_cl", (256, 255, 512), "N >= B"),
        ("inf_cl", (1, 2**22, 512), "32 bits"),
        ("memeff", (256, 256, 512), None),
        ("memeff", (256, 256, 100), None),
        ("memeff", (256, 256, 48), "D must be"),
        ("memeff", (256, 2560, 512), "N = B"),
        ("memeff", (2**22, 2**22, 512), "32 bits"),
        ("info_nce_pytorch", (256, 2560, 7), None),
    ],
)
def test_sizes_beyond_a_peer_are_told(
    name: str, size: tuple[int, int, int], reason: str | None
) -> None:
    for pass_ in ("forward", "both"):
        told = BY_NAME[name].cannot(*size, pass_)
        assert told is None if reason is None else reason in told


@pytest.mark.parametrize("subject", peers.PEERS, ids=lambda subject: subject.name)
def test_missing_package_is_told_with_the_remedy(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda module: None)
    told = peers.missing(subject)
    assert "is not installed" in told and "pip install 'infonce_kernels[peers]'" in told
    assert "\n" not in told


def test_missing_part_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "cutlass" else object())
    assert "module cutlass" in peers.missing(BY_NAME["liger_sm90"])
    assert peers.missing(BY_NAME["liger"]) is None


@pytest.mark.parametrize(
    ("capability", "here"), [(None, "no GPU"), ((8, 0), "8.0"), ((10, 0), "10.0"), ((9, 0), None)]
)
def test_hopper_kernel_is_for_hopper(
    capability: tuple[int, int] | None, here: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    told = peers.missing(BY_NAME["liger_sm90"])
    assert told is None if here is None else told.endswith(f"here: {here}")


def test_what_is_no_peer_is_never_missing() -> None:
    assert peers.missing(EAGER) is None


@pytest.mark.cuda
@pytest.mark.parametrize("subject", peers.PEERS, ids=lambda subject: subject.name)
def test_peer_computes_what_is_expected(subject: Subject) -> None:
    if reason := peers.missing(subject):
        pytest.skip(reason)
    B = N = 256
    tier = subject.tiers[-1]
    leaves = [x.to("cuda", DTYPES[tier]).requires_grad_() for x in operands(B, N, 512)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    loss = subject.make(tier, TEMPERATURE)(*leaves)
    expected = subject.expected(*exact, TEMPERATURE)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-2)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    truths = torch.autograd.grad(expected, exact, allow_unused=True)
    for gradient, truth in zip(gradients, truths, strict=True):
        assert (gradient is None) == (truth is None)
        if truth is not None:
            assert (gradient.double() - truth).norm() < 0.1 * truth.norm()
