"""The objective is the sum it says, from the losses that are tested elsewhere; its state survives a round trip."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.core.errors import InputError
from avuc.losses import (
    DirichletHead,
    auavuc_loss,
    avuc_loss,
    confidence_penalty,
    euc_loss,
    sb_ece_loss,
    segmentation_avu_loss,
    ua_clm_loss,
)
from avuc.methods import Objective


def batch(seed: int = 0, draws: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (40, 5) if draws is None else (draws, 40, 5)
    logits = (2 * torch.randn(shape, generator=generator)).requires_grad_()
    return logits, torch.randint(5, (40,), generator=generator)


@pytest.mark.parametrize("draws", [None, 3])
def test_plain_is_the_negative_elbo(draws: int | None) -> None:
    logits, labels = batch(draws=draws)
    kl = torch.tensor(70.0, dtype=torch.float64, requires_grad=True)
    terms = Objective(kl_weight=0.5).loss(200)(logits, labels, kl)
    each = logits if draws else logits[None]
    nll = sum(F.cross_entropy(one, labels) for one in each) / len(each)
    torch.testing.assert_close(terms.nll, nll)
    assert terms.kl.item() == pytest.approx(0.5 * 70 / 200)
    assert terms.avuc.item() == 0.0
    torch.testing.assert_close(terms.total, terms.nll + terms.kl)
    terms.total.backward()
    assert kl.grad.item() == pytest.approx(0.5 / 200)
    assert terms.total.dtype == torch.float32


def test_avuc_after_warm_up() -> None:
    loss = Objective("avuc", beta=2.5, variant="stopgrad", warmup_epochs=2).loss(100)
    seen = []
    for epoch in range(2):
        assert loss.warming_up
        logits, labels = batch(epoch)
        terms = loss(logits, labels, 3.0)
        assert terms.avuc.item() == 0.0
        torch.testing.assert_close(terms.total, terms.nll + 0.03)
        p = logits.detach().softmax(-1)
        seen.append((-(p * p.log()).sum(-1), p.argmax(-1) == labels))
        loss.epoch_end()
    assert not loss.warming_up
    u, right = (torch.cat(parts) for parts in zip(*seen, strict=True))
    threshold = (u[right].mean() + u[~right].mean()) / 2
    logits, labels = batch(9)
    terms = loss(logits, labels, 3.0)
    expected = avuc_loss(logits, labels, threshold, variant="stopgrad")
    torch.testing.assert_close(terms.avuc, expected)
    torch.testing.assert_close(terms.total, terms.nll + 0.03 + 2.5 * expected)


def test_a_given_threshold_is_used_as_it_is() -> None:
    loss = Objective("avuc", threshold=0.7, warmup_epochs=1).loss(100)
    logits, labels = batch()
    assert loss.warming_up
    assert loss(logits, labels).avuc.item() == 0.0
    loss.epoch_end()
    torch.testing.assert_close(loss(logits, labels).avuc, avuc_loss(logits, labels, 0.7))
    now = Objective("avuc", threshold=0.7, warmup_epochs=0).loss(100)
    torch.testing.assert_close(now(logits, labels).avuc, avuc_loss(logits, labels, 0.7))


@pytest.mark.parametrize("points", [21, 0])
def test_auavuc(points: int) -> None:
    loss = Objective("auavuc", beta=0.5, warmup_epochs=1, points=points).loss(100)
    logits, labels = batch(draws=2)
    assert loss(logits, labels).avuc.item() == 0.0
    loss.epoch_end()
    terms = loss(logits, labels)
    torch.testing.assert_close(terms.avuc, auavuc_loss(logits, labels, points=points or None))
    torch.testing.assert_close(terms.total, terms.nll + 0.5 * terms.avuc)


@pytest.mark.parametrize("draws", [None, 2])
def test_confidence_penalty_is_minus_the_mean_entropy(draws: int | None) -> None:
    """A slow loop in float64 beside it; after the warm-up, times β."""
    logits, labels = batch(draws=draws)
    loss = Objective("confidence_penalty", beta=0.5, warmup_epochs=1).loss(100)
    assert loss(logits, labels).avuc.item() == 0.0
    loss.epoch_end()
    terms = loss(logits, labels)
    each = logits.detach().double().softmax(-1)
    total = 0.0
    for row in each if each.ndim == 2 else each.mean(0):
        total += sum(float(p) * math.log(float(p)) for p in row if p > 0)
    assert terms.avuc.item() == pytest.approx(total / len(labels), rel=1e-5)
    torch.testing.assert_close(terms.total, terms.nll + 0.5 * terms.avuc)


@pytest.mark.parametrize("draws", [None, 2])
@pytest.mark.parametrize(
    ("kind", "variant", "expected"),
    [
        ("sb_ece", "stopgrad", lambda z, y: sb_ece_loss(z, y, variant="stopgrad")),
        ("ua_clm", "monotone", lambda z, y: ua_clm_loss(z, y, variant="monotone")),
    ],
)
def test_the_family_after_warm_up(kind: str, variant: str, expected: object, draws: int | None) -> None:
    loss = Objective(kind, beta=0.5, variant=variant, warmup_epochs=1).loss(100)  # type: ignore[arg-type]
    logits, labels = batch(draws=draws)
    assert loss(logits, labels).avuc.item() == 0.0
    loss.epoch_end()
    terms = loss(logits, labels)
    torch.testing.assert_close(terms.avuc, expected(logits, labels))  # type: ignore[operator]
    torch.testing.assert_close(terms.total, terms.nll + 0.5 * terms.avuc)


def test_euc_counts_from_the_start_and_its_balance_rises() -> None:
    outputs, labels = batch()
    logits = DirichletHead()(outputs)
    loss = Objective("euc", beta=1.0, variant="monotone", warmup_epochs=2).loss(100)
    for balance in (0.01, 0.1, 1.0, 1.0):
        assert not loss.warming_up
        terms = loss(logits, labels)
        torch.testing.assert_close(terms.avuc, euc_loss(outputs, labels, balance=balance, variant="monotone"))
        torch.testing.assert_close(terms.nll, F.cross_entropy(logits, labels))
        loss.epoch_end()
    other = Objective("euc", variant="monotone", warmup_epochs=2).loss(100)
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other(logits, labels).avuc, terms.avuc)
    with pytest.raises(InputError, match="DirichletHead"):
        loss(outputs, labels)


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_segmentation(threshold: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, 3, 9, 9, generator=generator)
    labels = torch.randint(0, 3, (2, 9, 9), generator=generator)
    loss = Objective("segmentation_avu", variant="monotone", threshold=threshold, warmup_epochs=0).loss(2 * 81)
    options = {} if threshold is None else {"thresholds": [threshold]}
    terms = loss(logits, labels)
    torch.testing.assert_close(terms.avuc, segmentation_avu_loss(logits, labels, variant="monotone", **options))
    torch.testing.assert_close(terms.nll, F.cross_entropy(logits, labels))
    assert terms.avuc > 0


def test_segmentation_needs_images_from_the_first_batch_on() -> None:
    loss = Objective("segmentation_avu", warmup_epochs=5).loss(num_train=8)
    with pytest.raises(InputError, match=r"labels \(N, H, W\)"):
        loss(torch.zeros(8, 3), torch.zeros(8, dtype=torch.long))


def test_confidence_penalty_extremes() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, -100, 2, 3, 1])
    assert torch.autograd.gradcheck(lambda x: confidence_penalty(x, labels), (logits,))
    kept = confidence_penalty(logits[labels >= 0], labels[labels >= 0])
    torch.testing.assert_close(confidence_penalty(logits, labels), kept)
    assert confidence_penalty(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)).item() == 0
    assert confidence_penalty(logits, torch.full((5,), -100)).item() == 0
    sure = torch.tensor([[1e4, 0.0, -math.inf]], requires_grad=True)
    value = confidence_penalty(sure, torch.tensor([1]))
    value.backward()
    assert value.item() == 0
    assert bool(sure.grad.isfinite().all())
    with pytest.raises(InputError, match="NaN"):
        confidence_penalty(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]))


def test_kl_without_gradient_as_the_released_code() -> None:
    logits, labels = batch()
    kl = torch.tensor(10.0, requires_grad=True)
    terms = Objective(kl_gradient=False).loss(100)(logits, labels, kl)
    assert terms.total.item() == pytest.approx(terms.nll.item() + 0.1)
    terms.total.backward()
    assert kl.grad is None
    assert logits.grad is not None


def test_state_survives() -> None:
    objective = Objective("avuc", warmup_epochs=2)
    loss = objective.loss(100)
    loss(*batch(0))
    loss.epoch_end()
    loss(*batch(1))
    half = objective.loss(100)
    half.load_state_dict(loss.state_dict())
    for one in (loss, half):
        one.epoch_end()
    assert not half.warming_up
    torch.testing.assert_close(half(*batch(2)).total, loss(*batch(2)).total)
    area = Objective("auavuc", warmup_epochs=1).loss(100)
    area.epoch_end()
    again = Objective("auavuc", warmup_epochs=1).loss(100)
    again.load_state_dict(area.state_dict())
    assert not again.warming_up


def test_terms_by_name() -> None:
    assert list(Objective().loss(10)(*batch())._asdict()) == ["nll", "kl", "avuc", "total"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": "elbo"},
            "one of plain, avuc, auavuc, confidence_penalty, sb_ece, euc, ua_clm, segmentation_avu, found",
        ),
        ({"beta": -1.0}, "must not be negative"),
        ({"beta": math.nan}, "must not be negative"),
        ({"kl_weight": -0.1}, "must not be negative"),
        ({"warmup_epochs": -1}, "must not be negative"),
        ({"kind": "auavuc", "variant": "soft"}, "soft variant"),
        ({"beta": math.inf}, "beta must not be negative, NaN or infinite"),
        ({"beta": True}, "beta must be a number"),
        ({"kl_weight": "1"}, "kl_weight must be a number"),
        ({"kl_weight": math.inf}, "kl_weight must not be"),
        ({"threshold": math.nan}, "threshold must not be negative, NaN or infinite"),
        ({"threshold": -1.0}, "threshold must not be negative"),
        ({"warmup_epochs": 1.5}, "warmup_epochs must be a whole number"),
        ({"warmup_epochs": True}, "warmup_epochs must be a whole number"),
        ({"points": 1}, "points must be at least 2, or 0"),
        ({"points": -1}, "points"),
        ({"points": 2.5}, "points .* must be a whole number"),
        ({"kind": "sb_ece", "variant": "monotone"}, "variants of sb_ece are paper, stopgrad; found 'monotone'"),
        ({"kind": "ua_clm", "variant": "soft"}, "variants of ua_clm are paper, monotone"),
        ({"kind": "euc", "variant": "soft"}, "variants of euc are"),
        ({"kind": "segmentation_avu", "variant": "soft"}, "variants of segmentation_avu are"),
        ({"kind": "ua_clm", "threshold": 0.5}, "ua_clm has no threshold"),
        ({"kind": "sb_ece", "uncertainty": "mutual_information"}, "sb_ece takes no other uncertainty"),
    ],
)
def test_bad_objectives(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Objective(**options)


def test_bad_use() -> None:
    with pytest.raises(InputError, match="num_train"):
        Objective().loss(0)
    with pytest.raises(InputError, match="num_train"):
        Objective().loss(2.5)
    with pytest.raises(InputError, match="threshold must be given"):
        Objective("avuc", warmup_epochs=0).loss(10)
    with pytest.raises(InputError, match="variant"):
        Objective("avuc", variant="other").loss(10)
