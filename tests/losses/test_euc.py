"""EUC of DEAR: the formula, the Dirichlet head, the direction of gradients, and the rise of λ."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from avuc.core.errors import InputError
from avuc.losses import DirichletHead, EUCLoss, euc_loss

EVIDENCE = {
    "relu": lambda z: max(z, 0.0),
    "exp": math.exp,
    "softplus": lambda z: math.log1p(math.exp(z)),
}


def batch(count: int, classes: int, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return logits, torch.where(torch.rand(count, generator=generator) < 0.5, logits.argmax(-1), labels)


def oracle(logits: Tensor, labels: Tensor, balance: float, evidence: str, variant: str) -> float:
    loss = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        alpha = [EVIDENCE[evidence](z) + 1 for z in row]
        p, u = max(alpha) / sum(alpha), len(alpha) / sum(alpha)
        if alpha.index(max(alpha)) == label:
            loss -= balance * (1 - p if variant == "monotone" else p) * math.log(1 - u)
        else:
            loss -= (1 - balance) * (p if variant == "monotone" else 1 - p) * math.log(u)
    return loss / len(labels)


@given(
    st.integers(1, 12),
    st.integers(2, 6),
    st.integers(0, 999),
    st.sampled_from(["exp", "softplus"]),
    st.sampled_from(["paper", "stopgrad", "monotone"]),
    st.floats(0, 1),
)
def test_equals_a_loop(count: int, classes: int, seed: int, evidence: str, variant: str, balance: float) -> None:
    logits, labels = batch(count, classes, seed)
    loss = euc_loss(logits, labels, balance=balance, evidence=evidence, variant=variant).item()
    assert loss == pytest.approx(oracle(logits, labels, balance, evidence, variant), rel=1e-9, abs=1e-12)


def test_relu_evidence() -> None:
    logits, labels = batch(20, 4, scale=5.0)
    loss = euc_loss(logits, labels, balance=0.4, evidence="relu").item()
    assert loss == pytest.approx(oracle(logits, labels, 0.4, "relu", "paper"))


@pytest.mark.parametrize("evidence", list(EVIDENCE))
def test_the_head_gives_expected_probabilities_and_the_evidential_loss(evidence: str) -> None:
    logits, labels = batch(30, 5)
    head = DirichletHead(evidence)
    log_alpha = head(logits)
    alpha = torch.tensor([[EVIDENCE[evidence](z) + 1 for z in row] for row in logits.tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_alpha.softmax(-1), alpha / alpha.sum(-1, keepdim=True))
    evidential = (alpha.sum(-1).log() - alpha.gather(1, labels.unsqueeze(1)).squeeze(1).log()).mean()
    torch.testing.assert_close(F.cross_entropy(log_alpha, labels), evidential)
    raw = euc_loss(logits, labels, balance=0.2, evidence=evidence)
    torch.testing.assert_close(euc_loss(log_alpha, labels, balance=0.2, evidence=None), raw)
    assert bool(head(torch.tensor([[6e4, -6e4]], dtype=torch.float16)).isfinite().all())
    assert evidence in repr(head)


def steps(variant: str, balance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How a gradient step moves the predicted class's output; which are right; confidence and uncertainty."""
    logits, labels = batch(3000, 10, scale=2.5)
    predicted = logits.argmax(-1)
    z = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(euc_loss(z, labels, balance=balance, variant=variant), z)
    alpha = logits.exp() + 1
    p, u = alpha.amax(-1) / alpha.sum(-1), 10 / alpha.sum(-1)
    return -gradient.gather(1, predicted.unsqueeze(1)).squeeze(1), predicted == labels, p, u


def test_the_printed_loss_makes_certain_mistakes_more_certain() -> None:
    step, right, p, u = steps("paper", 0.5)
    assert bool(((step > 0) == (u < 1 / math.e))[~right].all())
    # of right predictions those pushed the wrong way have (1 − p)·(−log(1 − u)) > p·u/(1 − u): p below about ½
    assert bool(((step < 0) == ((1 - p) * -torch.log1p(-u) > p * u / (1 - u)))[right].all())
    assert bool(((step < 0) & right & (p < 0.5)).any())
    assert not bool(((step < 0) & right & (p > 0.5)).any())


@pytest.mark.parametrize("variant", ["stopgrad", "monotone"])
def test_repaired_variants_move_every_prediction_the_right_way(variant: str) -> None:
    step, right, _, _ = steps(variant, 0.5)
    assert bool((step[right] > 0).all())
    assert bool((step[~right] < 0).all())


def test_balance_rises_from_one_percent_to_one() -> None:
    loss, (logits, labels) = EUCLoss(epochs=4), batch(10, 3)
    expected = [0.01, 0.01**0.75, 0.1, 0.01**0.25, 1.0, 1.0]
    for balance in expected:
        assert loss.balance.item() == pytest.approx(balance)
        torch.testing.assert_close(loss(logits, labels), euc_loss(logits, labels, balance=balance), rtol=1e-6, atol=0)
        loss.epoch_end()
    again = EUCLoss(epochs=4)
    loss.epoch = 2
    again.load_state_dict(loss.state_dict())
    assert again.balance.item() == pytest.approx(0.1)
    assert EUCLoss(epochs=0).balance.item() == 1


def test_errors() -> None:
    logits, labels = batch(4, 3)
    with pytest.raises(InputError, match="balance must be between 0 and 1"):
        euc_loss(logits, labels, balance=2.0)
    with pytest.raises(InputError, match="balance must be between 0 and 1"):
        euc_loss(logits, labels, balance=torch.tensor(2.0))
    with pytest.raises(InputError, match="log α cannot be negative"):
        euc_loss(logits, labels, balance=0.5, evidence=None)
    with pytest.raises(InputError, match="evidence must be one of"):
        EUCLoss(evidence="tanh")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="evidence must be one of"):
        DirichletHead("tanh")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="epochs"):
        EUCLoss(epochs=-1)
