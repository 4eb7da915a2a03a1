"""UA-CLM: the formula, the direction of its gradients, and extremes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from avuc.core.errors import InputError, NonFiniteError
from avuc.losses.quadrants import sample_statistics
from avuc.losses.ua_clm import UACLMLoss, log_tanh, ua_clm_from_statistics, ua_clm_loss, ua_clm_of_sums, ua_clm_sums

VARIANTS = ("paper", "monotone")


def batch(rows: int = 60, classes: int = 5, scale: float = 3.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (rows,), generator=generator)


def oracle(logits: Tensor, labels: Tensor, variant: str, weights: Tensor | None = None) -> float:
    wrong, right, num_wrong, num_right = 0.0, 0.0, 0.0, 0.0
    for i, row in enumerate(logits.tolist()):
        label, weight = int(labels[i]), 1.0 if weights is None else float(weights[i])
        if label == -100:
            continue
        total = sum(math.exp(z - max(row)) for z in row)
        probs = [math.exp(z - max(row)) / total for z in row]
        h = -sum(p * math.log(p) for p in probs if p > 0)
        if probs.index(max(probs)) == label:
            right -= weight * (1 - max(probs)) * math.log(1 - math.tanh(h))
            num_right += weight
        else:
            share = probs[label] if variant == "paper" else max(probs)
            wrong -= weight * share * math.log(math.tanh(h))
            num_wrong += weight
    return wrong / (num_wrong or 1) + right / (num_right or 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_equals_a_loop(variant: str, scale: float) -> None:
    logits, labels = batch(scale=scale)
    labels[::7] = -100
    weights = torch.rand(len(labels), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert ua_clm_loss(logits, labels, variant=variant).item() == pytest.approx(oracle(logits, labels, variant))
    weighted = ua_clm_loss(logits, labels, variant=variant, weights=weights).item()
    assert weighted == pytest.approx(oracle(logits, labels, variant, weights))


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(2, 6))
def test_loops_and_bounds(seed: int, rows: int, classes: int) -> None:
    logits, labels = batch(rows, classes, seed=seed)
    for variant in VARIANTS:
        loss = ua_clm_loss(logits, labels, variant=variant).item()
        assert loss == pytest.approx(oracle(logits, labels, variant), abs=1e-12)
        assert loss >= 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients(variant: str) -> None:
    logits, labels = batch(12)
    labels[0] = -100
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: ua_clm_loss(z, labels, variant=variant), logits)
    assert torch.autograd.gradgradcheck(lambda z: ua_clm_loss(z, labels, variant=variant), logits)


def steps(variant: str) -> tuple[Tensor, Tensor]:
    """How a gradient step moves the predicted class's logit, and which predictions are right."""
    logits, labels = batch(2000, 10, scale=4.0)
    predicted = logits.argmax(-1)
    z = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ua_clm_loss(z, labels, variant=variant), z)
    return -gradient.gather(1, predicted.unsqueeze(1)).squeeze(1), predicted == labels


def test_monotone_moves_every_prediction_the_right_way() -> None:
    step, right = steps("monotone")
    assert bool((step[right] > 0).all())
    assert bool((step[~right] < 0).all())


def test_the_printed_loss_makes_confident_mistakes_more_confident() -> None:
    step, right = steps("paper")
    assert bool((step[right] > 0).all())
    assert (step[~right] > 0).double().mean() > 0.5


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 3e4])
def test_extreme_logits_are_finite(variant: str, dtype: torch.dtype, scale: float) -> None:
    """Uniform rows, and p exactly 0 or 1."""
    logits, labels = batch(scale=1.0)
    logits = (logits.clamp(-1, 1) * scale).to(dtype).requires_grad_()
    loss = ua_clm_loss(logits, labels, variant=variant)
    loss.backward()
    assert loss.dtype == torch.float32
    assert bool(loss.isfinite())
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("variant", VARIANTS)
def test_posterior_samples_with_a_probability_of_exactly_0(variant: str) -> None:
    logits = torch.zeros(2, 3, 4)
    logits[..., 0] = 200.0
    logits.requires_grad_()
    ua_clm_loss(logits, torch.tensor([1, 2, 0]), variant=variant).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def test_one_group_only_and_nothing() -> None:
    logits, _ = batch()
    right = logits.argmax(-1)
    for labels in (right, (right + 1) % 5, torch.full_like(right, -100)):
        for variant in VARIANTS:
            z = logits.clone().requires_grad_()
            loss = ua_clm_loss(z, labels, variant=variant)
            assert loss.item() == pytest.approx(oracle(logits, labels, variant))
            loss.backward()
            assert z.grad is not None
            assert bool(z.grad.isfinite().all())
    empty = torch.zeros(0, 5, requires_grad=True)
    loss = ua_clm_loss(empty, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    one = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    assert ua_clm_loss(one, torch.tensor([1])).item() == pytest.approx(oracle(one, torch.tensor([1]), "paper"))


def test_an_ignored_row_may_be_infinite_or_excluded() -> None:
    logits, labels = batch(8)
    expected = ua_clm_loss(logits[1:], labels[1:])
    logits[0], labels[0] = torch.tensor([0.0, -math.inf, 0, 0, 0]), -100
    torch.testing.assert_close(ua_clm_loss(logits, labels), expected)


def test_label_of_an_excluded_class_counts_nothing_in_the_paper() -> None:
    logits = torch.tensor([[1.0, 0.0, -math.inf]], requires_grad=True)
    loss = ua_clm_loss(logits, torch.tensor([2]))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def test_layouts_agree() -> None:
    logits, labels = batch(24)
    flat = ua_clm_loss(logits, labels)
    tokens = ua_clm_loss(logits.reshape(4, 6, 5), labels.reshape(4, 6), class_dim=-1)
    dense = ua_clm_loss(logits.reshape(4, 6, 5).movedim(-1, 1), labels.reshape(4, 6))
    samples = ua_clm_loss(torch.stack((logits, logits)), labels)
    for other in (tokens, dense, samples, UACLMLoss()(logits, labels), UACLMLoss(2.0)(logits, labels) / 2):
        torch.testing.assert_close(other, flat)


def test_chunks_sum_to_the_whole() -> None:
    logits, labels = batch(50, 1000)
    for variant in VARIANTS:
        parts = [
            sample_statistics(z, y, "entropy", -100, None, with_nll=True)
            for z, y in zip(logits.split(7), labels.split(7), strict=True)
        ]
        sums = torch.stack([ua_clm_sums(part, variant) for part in parts]).sum(dim=0)
        torch.testing.assert_close(ua_clm_of_sums(sums), ua_clm_loss(logits, labels, variant=variant))


def test_statistics_have_the_cross_entropy() -> None:
    logits, labels = batch(40, 1000)
    for z in (logits, logits.float(), torch.stack((logits, logits))):
        nll = sample_statistics(z, labels, "entropy", -100, None, with_nll=True).nll
        assert nll is not None
        torch.testing.assert_close(nll.double(), torch.nn.functional.cross_entropy(logits, labels, reduction="none"))


def test_log_tanh_is_exact_at_both_ends() -> None:
    h = torch.tensor([1e-30, 1e-8, 1.0, 20.0, 300.0], dtype=torch.float64)
    expected = [math.log(1e-30), math.log(1e-8), math.log(math.tanh(1.0)), -2 * math.exp(-40), 0.0]
    assert log_tanh(h).tolist() == pytest.approx(expected, rel=1e-9)


def test_errors() -> None:
    logits, labels = batch()
    with pytest.raises(InputError, match="variant must be one of paper, monotone"):
        ua_clm_loss(logits, labels, variant="soft")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="beta"):
        UACLMLoss(beta=-1)
    with pytest.raises(NonFiniteError):
        ua_clm_loss(logits * math.nan, labels)
    with pytest.raises(InputError, match=r"go with labels"):
        ua_clm_loss(logits, labels[:-1])
    with pytest.raises(InputError, match="nll"):
        ua_clm_from_statistics(sample_statistics(logits, labels, "entropy", -100, None), "paper")


def test_compiles_and_transforms() -> None:
    logits, labels = batch(8)
    gradient = torch.func.grad(lambda z: ua_clm_loss(z, labels))(logits)
    z = logits.clone().requires_grad_()
    ua_clm_loss(z, labels).backward()
    torch.testing.assert_close(gradient, z.grad)


@pytest.mark.parametrize("offset", [0.0, 20.0])
@pytest.mark.parametrize("gap", [2.0, 9.0, 14.0, 16.0, 18.0, 25.0, 35.0])
def test_float32_gradients_of_certain_mistakes(gap: float, offset: float) -> None:
    """1/H is large there, so a cancellation in the gradient of H would be seen; eagerly and under torch.func."""
    logits = gap * torch.tensor([[1.0, 0.0, 0.1], [0.05, 1.1, 0.0], [0.0, 0.2, 0.9]]) + offset
    labels = torch.tensor([1, 2, 0])

    def loss(z: Tensor) -> Tensor:
        return ua_clm_loss(z, labels, variant="monotone")

    (exact,) = torch.autograd.grad(loss(z := logits.double().requires_grad_()), z)
    (eager,) = torch.autograd.grad(loss(z := logits.clone().requires_grad_()), z)
    for ours in (eager, torch.func.grad(loss)(logits)):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-6)
