"""Losses of binary and multi-label scores, and of classes in another dimension, against loops over decisions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from avuc.core.errors import InputError, NonFiniteError
from avuc.losses import AvUCLoss, auavuc_loss, avuc_loss, avuc_quadrants, confidence_penalty, elbo_loss

VARIANTS = ["paper", "stopgrad", "monotone", "soft"]
THRESHOLD = 0.45
LOSSES: dict[str, Callable[..., Tensor]] = {
    **{v: lambda z, y, v=v, **k: avuc_loss(z, y, THRESHOLD, variant=v, **k) for v in VARIANTS},
    "area": lambda z, y, **k: auavuc_loss(z, y, **k),
    "penalty": lambda z, y, **k: confidence_penalty(z, y, **k),
    "elbo": lambda z, y, **k: elbo_loss(z, y, 3.0, num_train=1000, **k),
    "module": lambda z, y, **k: AvUCLoss(threshold=THRESHOLD, **k)(z, y),
}


def binary(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    return logits, (torch.rand(*shape, generator=generator) < 0.5).long()


def loop_avuc(logits: Tensor, labels: Tensor, variant: str, ignore_index: int = -100) -> float:
    """L_AvUC over all decisions, one by one, each with probability sigmoid(z)."""
    good, bad = 0.0, 0.0
    for z, y in zip(logits.flatten().tolist(), labels.flatten().tolist(), strict=True):
        if y == ignore_index:
            continue
        p = 1 / (1 + math.exp(-z))
        u = -p * math.log(p) - (1 - p) * math.log(1 - p)
        right, uncertain, top = (p > 0.5) == (y == 1), u > THRESHOLD, max(p, 1 - p)
        share = (1 - top if uncertain else top) if variant == "monotone" else (top if right else 1 - top)
        weight = share * (math.tanh(u) if uncertain else 1 - math.tanh(u))
        if right != uncertain:
            good += weight
        else:
            bad += weight
    return math.log(1 + bad / good)


@pytest.mark.parametrize("variant", ["paper", "stopgrad", "monotone"])
def test_binary_and_multilabel_against_a_loop(variant: Any) -> None:
    logits, labels = binary(40)
    loss = avuc_loss(logits, labels, THRESHOLD, variant=variant)
    assert loss.item() == pytest.approx(loop_avuc(logits, labels, variant), rel=1e-10)
    logits, labels = binary(10, 7)
    labels[2:4, 3] = -100
    loss = avuc_loss(logits, labels, THRESHOLD, variant=variant, task="multilabel")
    assert loss.item() == pytest.approx(loop_avuc(logits, labels, variant), rel=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_every_binary_layout_is_two_columns(name: str) -> None:
    loss, (z, y) = LOSSES[name], binary(24)
    expected = loss(torch.stack((torch.zeros_like(z), z), dim=1), y)
    for scores, labels in (
        (z, y),
        (z[:, None], y),
        (z[:, None], y[:, None]),
        (z, y.bool()),
        (z, y.double()),
        (z[:, None], y[:, None].float()),
        (z.view(4, 1, 2, 3), y.view(4, 2, 3)),
        (z.view(4, 1, 2, 3), y.view(4, 1, 2, 3)),
    ):
        torch.testing.assert_close(loss(scores, labels), expected)
    torch.testing.assert_close(loss(z.view(4, 6), y.view(4, 6), task="binary"), expected)
    torch.testing.assert_close(loss(z.view(4, 6), y.view(4, 6), task="multilabel"), expected)
    torch.testing.assert_close(loss(z.view(4, 6, 1), y.view(4, 6), class_dim=-1), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_posterior_samples_of_binary_scores(name: str) -> None:
    loss, (z, _) = LOSSES[name], binary(3, 24)
    y = binary(24, seed=1)[1]
    expected = loss(torch.stack((torch.zeros_like(z), z), dim=-1), y)
    torch.testing.assert_close(loss(z[..., None], y), expected)
    torch.testing.assert_close(loss(z, y, task="binary"), expected)
    torch.testing.assert_close(loss(z.view(3, 4, 6), y.view(4, 6), task="multilabel"), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_classes_in_the_last_dimension(name: str) -> None:
    loss, generator = LOSSES[name], torch.Generator().manual_seed(3)
    logits = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 6, (4, 5), generator=generator)
    labels[0, 1:] = -100
    expected = loss(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss(logits, labels, class_dim=-1), expected)
    torch.testing.assert_close(loss(logits, labels, class_dim=2), expected)
    torch.testing.assert_close(loss(logits.movedim(-1, 1), labels), expected)
    draws = torch.stack((logits, 2 * logits))
    torch.testing.assert_close(loss(draws, labels, class_dim=-1), loss(draws.flatten(1, 2), labels.flatten()))


def test_the_elbo_of_one_logit_is_binary_cross_entropy() -> None:
    (z, y), (many, several) = binary(30), binary(10, 4)
    expected = F.binary_cross_entropy_with_logits(z, y.double()) + 3.0 / 1000
    torch.testing.assert_close(elbo_loss(z, y, 3.0, num_train=1000), expected)
    several[1] = -100
    kept = several != -100
    expected = F.binary_cross_entropy_with_logits(many[kept], several[kept].double()) + 3.0 / 1000
    torch.testing.assert_close(elbo_loss(many, several, 3.0, num_train=1000, task="multilabel"), expected)
    # 10 rows of 4 decisions are 10 training samples, not 40
    assert elbo_loss(many, several, 3.0, num_train=10, task="multilabel").isfinite()


def test_quadrants_of_one_probability() -> None:
    z, y = binary(24)
    p = z.sigmoid()
    expected = avuc_quadrants(torch.stack((1 - p, p), dim=1), y, THRESHOLD)
    for probs, labels, options in (
        (p, y, {}),
        (p[:, None], y, {}),
        (p[:, None], y[:, None].bool(), {}),
        (p.view(4, 6), y.view(4, 6), {"task": "multilabel"}),
        (p.view(4, 1, 2, 3), y.view(4, 2, 3), {}),
    ):
        for ours, whole in zip(avuc_quadrants(probs, labels, THRESHOLD, **options), expected, strict=True):
            torch.testing.assert_close(ours, whole)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", [{}, {"task": "multilabel"}], ids=["binary", "multilabel"])
def test_gradients(variant: Any, options: dict[str, Any]) -> None:
    shape = (3, 4) if options else (12,)
    z, y = binary(*shape, seed=5)
    weights = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6))

    def loss(z: Tensor) -> Tensor:
        return avuc_loss(z, y, THRESHOLD, variant=variant, weights=weights, **options)

    if variant != "stopgrad":  # its gradient is not that of its value, on purpose
        assert gradcheck(loss, (z.requires_grad_(),))
    expected = torch.autograd.grad(loss(z.requires_grad_()), z)[0]
    assert float(expected.abs().max()) > 0
    torch.testing.assert_close(torch.func.grad(loss)(z.detach()), expected)


def test_vmap_over_models_with_one_logit() -> None:
    z, y = binary(3, 16)
    each = torch.stack([avuc_loss(a, b, THRESHOLD) for a, b in zip(z, y, strict=True)])
    torch.testing.assert_close(torch.vmap(lambda a, b: avuc_loss(a, b, THRESHOLD))(z, y), each)


def test_a_compiled_step_with_one_logit() -> None:
    z, y = binary(16)
    compiled = torch.compile(lambda a, b: avuc_loss(a, b, THRESHOLD), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(z, y), avuc_loss(z, y, THRESHOLD))


@given(st.integers(1, 40), st.integers(0, 10_000))
def test_swapping_the_two_classes_changes_nothing(rows: int, seed: int) -> None:
    z, y = binary(rows, seed=seed)
    torch.testing.assert_close(avuc_loss(-z, 1 - y, THRESHOLD), avuc_loss(z, y, THRESHOLD))


@pytest.mark.parametrize("options", [{}, {"task": "multilabel"}], ids=["binary", "multilabel"])
def test_the_module_learns_its_threshold_and_accumulates(options: dict[str, Any]) -> None:
    z, y = binary(*((8, 5) if options else (40,)))
    loss = AvUCLoss(warmup_epochs=1, **options)
    loss(z, y)
    loss.epoch_end()
    p = z.sigmoid()
    u, right = -torch.xlogy(p, p) - torch.xlogy(1 - p, 1 - p), (p > 0.5) == (y == 1)
    assert float(loss.threshold) == pytest.approx(float(u[right].mean() + u[~right].mean()) / 2, rel=1e-6)
    leaf = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, y), leaf)
    total = loss.total(zip(leaf.split(3), y.split(3), strict=True))
    parts = [loss(a, b, total=total) for a, b in zip(leaf.split(3), y.split(3), strict=True)]
    torch.testing.assert_close(torch.autograd.grad(sum(parts), leaf)[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_extremes(name: str) -> None:
    loss = LOSSES[name]
    assert float(loss(torch.zeros(0), torch.zeros(0, dtype=torch.long))) == pytest.approx(
        0.003 if name == "elbo" else 0.0, abs=1e-7
    )
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        z = torch.tensor([60000.0 if dtype == torch.float16 else 1e30, -200.0, 0.0], dtype=dtype, requires_grad=True)
        value = loss(z, torch.tensor([1, 0, 1]))
        assert value.dtype == torch.float32
        assert value.isfinite()
        if value.requires_grad:
            assert torch.autograd.grad(value, z)[0].isfinite().all()
    for labels in (torch.ones(5), torch.zeros(5)):  # one class only
        assert loss(torch.linspace(-3, 3, 5), labels.long()).isfinite()


def test_nan_and_infinity_are_named() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(NonFiniteError, match=r"NaN or \+inf"):
            avuc_loss(torch.tensor([0.5, bad]), torch.tensor([0, 1]), 0.5)


REFUSED: dict[str, tuple[Tensor, Tensor, dict[str, Any], str]] = {
    "labels of three classes": (torch.zeros(3), torch.tensor([0, 1, 2]), {}, "labels must be 0 … 1"),
    "regression": (torch.zeros(3), torch.tensor([0.5, 1.5, 2.0]), {}, "regression"),
    "regression, a column": (torch.zeros(3, 1), torch.tensor([[0.5], [1.5], [2.0]]), {}, "regression"),
    "fewer labels": (torch.zeros(4), torch.zeros(3, dtype=torch.long), {}, "go with"),
    "several labels, not said": (torch.zeros(4, 3), torch.ones(4, 3, dtype=torch.long), {}, "task='multilabel'"),
    "labels (N)": (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), {"task": "multilabel"}, r"labels \(N, L\)"),
    "classes": (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), {"task": "binary"}, "one number per label"),
    "unknown task": (torch.zeros(4), torch.zeros(4, dtype=torch.long), {"task": "regression"}, "multiclass, binary"),
    "no such dimension": (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), {"class_dim": 5}, "class_dim"),
    "classes elsewhere": (torch.zeros(4, 5, 3), torch.zeros(4, 5, dtype=torch.long), {}, "the classes last for labels"),
    "whole numbers": (torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long), {}, "floating point"),
    "class_dim of many": (
        torch.zeros(4, 3),
        torch.zeros(4, 3, dtype=torch.long),
        {"task": "multilabel", "class_dim": 1},
        "class_dim",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", ["paper", "soft", "area", "penalty", "elbo", "module"])
def test_what_does_not_fit_is_refused_in_one_line(name: str, case: str) -> None:
    logits, labels, options, message = REFUSED[case]
    if name == "elbo" and case == "labels of three classes":
        pytest.skip("torch's cross_entropy checks the range")
    with pytest.raises(InputError, match=message) as caught:
        LOSSES[name](logits, labels, **options)
    assert "\n" not in str(caught.value)


def test_probabilities_of_one_class_are_not_guessed() -> None:
    with pytest.raises(InputError, match=r"\(N,\)"):
        avuc_quadrants(torch.ones(4, 1), torch.zeros(4, dtype=torch.long), 0.5)
    assert float(avuc_quadrants(torch.ones(4), torch.zeros(4, dtype=torch.long), 0.5).ic) == 0  # 1 − p = 0
    with pytest.raises(InputError, match="sigmoid"):
        avuc_quadrants(torch.tensor([1.5, -2.0]), torch.tensor([0, 1]), 0.5)
