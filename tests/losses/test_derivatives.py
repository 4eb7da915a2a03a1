"""First and second derivatives of the losses where rounding, ruled-out classes or transforms could spoil them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from avuc.core.errors import InputError
from avuc.losses import auavuc_loss, avuc_loss
from avuc.losses.quadrants import avuc_quadrants
from avuc.losses.softmax_statistics import (
    _centred,
    _forward_blocks,
    backward_coefficients,
    backward_rows,
    softmax_statistics,
)

VARIANTS = ["paper", "stopgrad", "monotone", "soft"]
LOSSES: dict[str, Callable[..., Tensor]] = {
    **{v: lambda z, y, v=v, **k: avuc_loss(z, y, 0.9, variant=v, **k) for v in VARIANTS},
    "area": lambda z, y, **k: auavuc_loss(z, y, **k),
    "exact area": lambda z, y, **k: auavuc_loss(z, y, points=None, **k),
}


def batch(n: int = 8, classes: int = 5, draws: int = 0, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (draws, n, classes) if draws else (n, classes)
    logits = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (n,), generator=generator)


def gradient(loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, labels, **options)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


# ---- a constant added to the logits


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(32, 10), (700, 1000)])  # one block, and several
@pytest.mark.parametrize("shift", [16.0, 33.0, 100.0, 1e4, 1e6, -1e6])
def test_a_shift_of_float32_logits_costs_nothing(name: str, shape: tuple[int, int], shift: float) -> None:
    """Multiples of 1/8 below 8, so that every shifted logit is exact: 3.5 % of the gradient were lost at 1e6."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-64, 64, shape, generator=generator) / 8
    labels = torch.where(torch.arange(shape[0]) % 2 > 0, logits.argmax(-1), torch.arange(shape[0]) % shape[1])
    if abs(shift) > 1e5:
        logits = logits.round()
    value, expected = gradient(LOSSES[name], logits, labels)
    moved, ours = gradient(LOSSES[name], logits + shift, labels)
    torch.testing.assert_close(moved, value, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-6 * float(expected.abs().max()))
    exact_value, exact = gradient(LOSSES[name], logits.double() + shift, labels)
    torch.testing.assert_close(moved.double(), exact_value, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-5 * float(exact.abs().max()))


@given(st.integers(1, 12), st.integers(2, 8), st.floats(-1e4, 1e4), st.sampled_from(list(LOSSES)), st.integers(0, 999))
def test_shifts_and_orders_change_nothing(n: int, classes: int, shift: float, name: str, seed: int) -> None:
    logits, labels = batch(n, classes, seed=seed)
    value, expected = gradient(LOSSES[name], logits, labels)
    shifted = logits + shift * torch.randn(n, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows, columns = (torch.randperm(k, generator=torch.Generator().manual_seed(seed)) for k in (n, classes))
    scale = float(expected.abs().max()) + 1e-12
    for other, same, back in (
        (shifted, labels, expected),
        (logits[rows], labels[rows], expected[rows]),
        (logits[:, columns], columns.argsort()[labels], expected[:, columns]),
    ):
        found, ours = gradient(LOSSES[name], other, same)
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(ours, back, rtol=1e-5, atol=1e-6 * scale)


@given(st.integers(2, 20), st.integers(0, 20), st.sampled_from(VARIANTS), st.integers(0, 999))
def test_cells_of_shares_add_up(n: int, cut: int, variant: Any, seed: int) -> None:
    """What ranks rely on: the cells of a batch are the sums of the cells of its shares."""
    logits, labels = batch(n, seed=seed)
    probs = logits.softmax(-1)
    parts = [
        avuc_quadrants(probs[share], labels[share], 0.9, variant=variant) for share in (slice(cut), slice(cut, None))
    ]
    whole = avuc_quadrants(probs, labels, 0.9, variant=variant)
    torch.testing.assert_close(torch.stack(parts[0]) + torch.stack(parts[1]), torch.stack(whole))


@pytest.mark.parametrize("name", LOSSES)
def test_saturated_float32_logits_have_the_float64_gradient(name: str) -> None:
    """Logits in the hundreds: 15155 was reported for a gradient of 1e-12."""
    for seed in range(20):
        logits, labels = batch(scale=60.0, seed=seed)
        logits = logits.float().double()
        _, exact = gradient(LOSSES[name], logits, labels)
        _, ours = gradient(LOSSES[name], logits.float(), labels)
        assert ours.isfinite().all()
        if exact.abs().max() < 1e3:  # beyond, the ratio of two nearly empty cells is rounding
            torch.testing.assert_close(ours.double(), exact, rtol=0.1, atol=0.02)


# ---- ruled-out classes and very large logits, eager and compiled

EXTREMES = {
    "ruled out": [[1.0, 0.5, -math.inf], [-math.inf, 0.3, 0.1], [2.0, -math.inf, -math.inf]],
    "ruled out, large": [[1e10, 1e10 - 16384, -math.inf], [-math.inf, 1e10, 1e10], [1e10, -math.inf, 0.0]],
    "large": [[1e30, 0.0, -1e30], [-1e30, 1e30, 1e30], [-1e30, -1e30, -1e30]],
    "largest": [[3e38, -3e38, 0.0], [-3e38, -3e38, 3e38], [3e38, 3e38, 3e38]],
    "shifted": [[1e6, 1e6 + 1, 1e6 - 2], [1e6 + 3, 1e6, 1e6], [1e6, 1e6, 1e6 + 0.5]],
}


@cache
def compiled_loss(name: str) -> Any:
    """Compiled once for all tests of a loss: that takes most of their time."""
    torch._dynamo.reset()
    return torch.compile(lambda z, labels: LOSSES[name](z, labels), backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("name", LOSSES)
def test_extreme_logits_agree_between_eager_and_compiled(name: str, extreme: str, dtype: torch.dtype) -> None:
    logits, labels = torch.tensor(EXTREMES[extreme], dtype=dtype), torch.tensor([0, 2, 1])
    value, ours = gradient(LOSSES[name], logits, labels)
    traced, theirs = gradient(compiled_loss(name), logits, labels)
    assert ours.isfinite().all()
    torch.testing.assert_close(value, traced, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()) + 1e-7)
    # the same as with the row's largest logit subtracted first, which is exact here
    centred = (logits.double() - logits.double().amax(-1, keepdim=True)).clamp(min=-800)
    exact_value, exact = gradient(LOSSES[name], centred, labels)
    torch.testing.assert_close(value.double(), exact_value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()) + 1e-7)


def test_a_ruled_out_class_does_not_flatten_large_logits() -> None:
    """m − 104 is m at 1e10: the floor made the distribution uniform."""
    with_inf = torch.tensor([[1e10, 1e10 - 16384, -math.inf]])
    assert softmax_statistics(with_inf).confidence.item() == 1.0
    assert softmax_statistics(with_inf).entropy.item() == 0.0


@pytest.mark.parametrize(("shape", "scale"), [((9, 4), 2.0), ((700, 1000), 3.0), ((0, 3), 1.0)])
def test_the_pass_for_gpus_equals_the_one_for_cpus(shape: tuple[int, int], scale: float) -> None:
    """On a GPU every row is centred first, without looking whether it has to be."""
    logits = scale * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (kept, rows), (centred, same) = _forward_blocks(logits), _forward_blocks(_centred(logits))
    assert not centred.largest.any()
    upstream = torch.randn(2, shape[0], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for forward, statistics in ((kept, rows), (centred, same)):
        coefficients = backward_coefficients(forward.largest, statistics, *upstream)
        found.append(backward_rows(forward, statistics.predicted, coefficients))
    torch.testing.assert_close(rows, same)
    torch.testing.assert_close(*found)


# ---- second derivatives


@pytest.mark.parametrize("draws", [0, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "stopgrad"])
def test_second_derivatives(name: str, draws: int, weighted: bool) -> None:
    logits, labels = batch(draws=draws, seed=2)
    options = {"weights": torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 1.0, 0.0, 1.0])} if weighted else {}
    logits.requires_grad_()
    assert gradcheck(lambda z: LOSSES[name](z, labels, **options), logits)
    assert gradgradcheck(lambda z: LOSSES[name](z, labels, **options), logits)


def plain(logits: Tensor, labels: Tensor, variant: str) -> Tensor:
    """Ordinary torch operations; autograd differentiates them as often as one likes."""
    probs = logits.softmax(-1)
    p, predicted = probs.max(-1)
    u = -(probs * probs.log()).sum(-1)
    right, certain = predicted == labels, u <= 0.9
    p = p.detach() if variant == "stopgrad" else p
    share = torch.where(right, p, 1 - p)
    masses = share * torch.where(certain, 1 - u.tanh(), u.tanh())
    return torch.log1p(masses[right != certain].sum() / masses[right == certain].sum())


@pytest.mark.parametrize("variant", ["paper", "stopgrad"])
def test_hessian_and_gradient_penalty_equal_plain_autograd(variant: str) -> None:
    logits, labels = batch(n=6)
    ours = torch.autograd.functional.hessian(lambda z: avuc_loss(z, labels, 0.9, variant=variant), logits)
    theirs = torch.autograd.functional.hessian(lambda z: plain(z, labels, variant), logits)
    assert ours.abs().max() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    penalties = []
    for loss in (lambda z: avuc_loss(z, labels, 0.9, variant=variant), lambda z: plain(z, labels, variant)):
        leaf = logits.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        penalties.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    assert penalties[0].abs().max() > 1e-4
    torch.testing.assert_close(*penalties, rtol=1e-9, atol=1e-12)


def test_gradient_of_the_weights() -> None:
    """The fused pass has none, so weights that are learned must not go through it."""
    logits, labels = batch()
    weights = torch.linspace(0.5, 2, 8, dtype=torch.float64, requires_grad=True)
    for name, loss in LOSSES.items():
        assert gradcheck(lambda z, w, loss=loss: loss(z, labels, weights=w), (logits, weights)), name


# ---- torch.func and forward mode


@pytest.mark.parametrize("name", LOSSES)
def test_function_transforms(name: str) -> None:
    logits, labels = batch(n=6)
    loss = LOSSES[name]

    def of(z: Tensor) -> Tensor:
        return loss(z, labels)

    _, expected = gradient(loss, logits, labels)
    torch.testing.assert_close(torch.func.grad(of)(logits), expected)
    torch.testing.assert_close(torch.func.jacrev(of)(logits), expected)
    torch.testing.assert_close(torch.func.jacfwd(of)(logits), expected)
    hessian = torch.autograd.functional.hessian(of, logits)
    torch.testing.assert_close(torch.func.hessian(of)(logits), hessian)
    with forward_ad.dual_level():
        direction = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        tangent = forward_ad.unpack_dual(of(forward_ad.make_dual(logits, direction))).tangent
    torch.testing.assert_close(tangent, (expected * direction).sum())
    # stacks of batches
    many = torch.stack([batch(n=6, seed=seed)[0] for seed in range(3)])
    answers = torch.stack([batch(n=6, seed=seed)[1] for seed in range(3)])
    each = [gradient(loss, z, y) for z, y in zip(many, answers, strict=True)]
    torch.testing.assert_close(torch.vmap(loss)(many, answers), torch.stack([value for value, _ in each]))
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(many, answers), torch.stack([g for _, g in each]))


def test_input_is_still_checked_inside_a_transform() -> None:
    logits, labels = batch()
    with pytest.raises(InputError, match="labels must be 0 … 4"):
        torch.func.grad(lambda z: avuc_loss(z, labels + 5, 0.9))(logits)
    with pytest.raises(InputError, match="logits contain NaN"):
        torch.func.grad(lambda z: avuc_loss(z, labels, 0.9))(logits * math.nan)
