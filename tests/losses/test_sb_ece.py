"""SB-ECE: both forms against loops, and against the calibration error of hard bins."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from avuc.core.errors import InputError
from avuc.losses import SBECELoss, sb_ece, sb_ece_loss


def batch(count: int, classes: int, seed: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return logits, torch.where(torch.rand(count, generator=generator) < 0.6, logits.argmax(-1), labels)


def oracle(logits: Tensor, labels: Tensor, form: str, bins: int, temperature: float) -> float:
    """The two equations, one prediction at a time."""
    classes = logits.shape[1]
    low = 0.0 if form == "binned" else 1 / classes
    centres = [low + (1 - low) * (m + 0.5) / bins for m in range(bins)]
    confidences, hits, shares = [], [], []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        total = sum(math.exp(z) for z in row)
        p = max(math.exp(z) / total for z in row)
        near = [math.exp(-((p - centre) ** 2) / temperature) for centre in centres]
        confidences.append(p)
        hits.append(float(row.index(max(row)) == label))
        shares.append([value / sum(near) for value in near])
    loss = 0.0
    for m in range(bins):
        size = sum(share[m] for share in shares)
        if size == 0:
            continue
        accuracy = sum(share[m] * hit for share, hit in zip(shares, hits, strict=True)) / size
        confidence = sum(share[m] * p for share, p in zip(shares, confidences, strict=True)) / size
        if form == "binned":
            loss += size / len(hits) * (confidence - accuracy) ** 2
        else:
            loss += sum(share[m] * (p - accuracy) ** 2 for share, p in zip(shares, confidences, strict=True)) / len(
                hits
            )
    return math.sqrt(loss)


@given(
    st.integers(1, 15),
    st.integers(2, 5),
    st.integers(0, 999),
    st.sampled_from(["binned", "label_binned"]),
    st.sampled_from([1, 4, 15]),
    st.sampled_from([0.001, 0.01, 1.0]),
)
def test_equals_a_loop(count: int, classes: int, seed: int, form: str, bins: int, temperature: float) -> None:
    logits, labels = batch(count, classes, seed)
    loss = sb_ece_loss(logits, labels, form=form, bins=bins, temperature=temperature).item()
    assert loss == pytest.approx(oracle(logits, labels, form, bins, temperature), rel=1e-6, abs=1e-7)
    assert 0 <= loss <= 1


def test_is_the_hard_l2_error_at_low_temperature() -> None:
    logits, labels = batch(500, 4, 0)
    confidence, predicted = logits.softmax(-1).max(-1)
    bins = (confidence * 10).long().clamp(max=9)
    squares = 0.0
    for m in range(10):
        inside = bins == m
        if inside.any():
            gap = confidence[inside].mean() - (predicted == labels)[inside].double().mean()
            squares += float(inside.double().mean() * gap**2)
    assert sb_ece_loss(logits, labels, bins=10, temperature=1e-7).item() == pytest.approx(math.sqrt(squares), abs=1e-3)


def test_label_binned_is_never_below_binned() -> None:
    """Jensen, for the same anchors."""
    logits, labels = batch(300, 1000, 3, scale=4.0)  # 1/C is close to 0
    binned = sb_ece_loss(logits, labels)
    assert sb_ece_loss(logits, labels, form="label_binned") > binned


def test_a_bin_that_is_over_confident_loses_confidence() -> None:
    """ "stopgrad" moves each prediction against the gap of its own bins; "paper" does not always."""
    logits, labels = batch(2000, 10, 1)
    confidence, predicted = logits.softmax(-1).max(-1)
    centres = (torch.arange(15, dtype=torch.float64) + 0.5) / 15
    share = torch.softmax(-((confidence.unsqueeze(1) - centres) ** 2) / 0.01, dim=1)
    right = (predicted == labels).double()
    gaps = ((confidence - right).unsqueeze(1) * share).sum(0) / share.sum(0)
    own_gap = share @ gaps
    against = {}
    for variant in ("paper", "stopgrad"):
        z = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(sb_ece_loss(z, labels, variant=variant), z)
        rising = -gradient.gather(1, predicted.unsqueeze(1)).squeeze(1) > 0
        against[variant] = float((rising == (own_gap > 0)).double().mean())
    assert against["stopgrad"] == 0
    assert against["paper"] > 0.1


def test_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = batch(103, 4, 2)
    for form in ("binned", "label_binned"):
        results = []
        for block in (1 << 16, 10):
            monkeypatch.setattr(sb_ece, "BLOCK_ROWS", block)
            z = logits.clone().requires_grad_()
            loss = sb_ece_loss(z, labels, form=form)
            loss.backward()
            results.append((loss.detach(), z.grad))
        torch.testing.assert_close(results[0], results[1])


def test_perfect_calibration_has_loss_and_gradient_zero() -> None:
    logits = torch.tensor([[50.0, 0.0], [0.0, 50.0]], dtype=torch.float64, requires_grad=True)
    loss = sb_ece_loss(logits.float() * 100, torch.tensor([0, 1]))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert bool((logits.grad == 0).all())


@pytest.mark.parametrize("form", ["binned", "label_binned"])
@pytest.mark.parametrize("gap", [2.0, 6.0, 12.0, 30.0, 80.0])
def test_bins_with_hardly_any_share_do_not_overflow(form: str, gap: float) -> None:
    """Near p = 1 the shares of the lowest bins are denormal float32 numbers."""
    for temperature in (0.01, 0.005, 0.0001):
        logits = (gap * torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.1, 0.0], [0.0, 0.2, 1.2]])).requires_grad_()
        sb_ece_loss(logits, torch.tensor([0, 1, 2]), form=form, temperature=temperature).backward()
        assert logits.grad is not None
        assert bool(logits.grad.isfinite().all())


def test_errors() -> None:
    logits, labels = batch(4, 3, 0)
    with pytest.raises(InputError, match="temperature must be above 0"):
        sb_ece_loss(logits, labels, temperature=0)
    with pytest.raises(InputError, match="bins"):
        sb_ece_loss(logits, labels, bins=0)
    with pytest.raises(InputError, match="form must be one of"):
        SBECELoss(form="hard")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="form must be one of"):
        sb_ece_loss(logits, labels, form="hard")  # type: ignore[arg-type]
