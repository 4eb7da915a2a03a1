"""The figures of tokens against the functions of `avuc.metrics`, in any split."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from avuc import metrics
from avuc.losses.linear.function import LinearAvUC, linear_avuc
from avuc.transformers.token_metrics import TokenMetrics

CPU = torch.device("cpu")


def tokens(
    rows: int, words: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, LinearAvUC]:
    """Logits, labels and the result of `linear_avuc`: the hidden states are the logits."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, words, generator=generator, dtype=dtype)
    labels = torch.where(torch.rand(rows, generator=generator) < 0.6, logits.argmax(dim=1), 0)
    labels[::4] = -100
    return logits, labels, linear_avuc(logits, torch.eye(words, dtype=dtype), labels, threshold=None, kind="plain")


def expected(logits: Tensor, labels: Tensor, threshold: float) -> dict[str, float]:
    logits, labels = logits[labels != -100], labels[labels != -100]
    probs, right = logits.softmax(dim=1), logits.argmax(dim=1) == labels
    u = -(probs * probs.log()).sum(dim=1)
    return {
        "token_accuracy": metrics.accuracy(probs, labels),
        "token_nll": F.cross_entropy(logits, labels).item(),
        "token_ece": metrics.ece(probs, labels),
        "token_uce": metrics.uce(probs, labels),
        "token_avu": metrics.avu(probs, labels, threshold=threshold),
        "token_entropy_right": u[right].mean().item(),
        "token_entropy_wrong": u[~right].mean().item(),
    }


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(8, 60), min_size=1, max_size=4), st.integers(2, 30), st.floats(0.01, 3.0))
def test_any_split_gives_the_metrics_of_all_tokens(sizes: list[int], words: int, threshold: float) -> None:
    total, other = TokenMetrics(), TokenMetrics()
    batches = [tokens(rows, words, seed) for seed, rows in enumerate(sizes)]
    for index, (_, _, result) in enumerate(batches):
        (total if index % 2 else other).update(result, words, torch.tensor(threshold))
    total.merge(other)
    assert other.sums is None
    logits, labels = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))
    wanted = {name: value for name, value in expected(logits, labels, threshold).items() if not math.isnan(value)}
    assert total.pop(CPU) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert total.pop(CPU) == {}


def test_float32_bins_are_those_of_the_metrics() -> None:
    logits, labels, result = tokens(400, 1000, dtype=torch.float32)
    total = TokenMetrics()
    total.update(result, 1000, torch.tensor(1.0))
    assert total.pop(CPU) == pytest.approx(expected(logits, labels, 1.0), rel=1e-5)


def test_memory_does_not_grow() -> None:
    total, sizes = TokenMetrics(), set()
    for rows in (5, 50, 500):
        total.update(tokens(rows, 7)[2], 7, torch.tensor(1.0))
        assert total.sums is not None
        sizes.add(total.sums.numel())
    assert len(sizes) == 1
    assert sizes.pop() < 200


@pytest.mark.parametrize("label", [0, 1])
def test_one_token_all_right_or_all_wrong(label: int) -> None:
    logits = torch.tensor([[200.0, 0.0, 0.0]])  # a probability of exactly 1
    total = TokenMetrics()
    result = linear_avuc(logits, torch.eye(3), torch.tensor([label]), threshold=None, kind="plain")
    total.update(result, 3, torch.tensor(math.nan))
    figures = total.pop(CPU)
    right = label == 0
    assert figures["token_accuracy"] == right
    assert figures["token_ece"] == figures["token_uce"] == (not right)
    assert ("token_entropy_right" in figures, "token_entropy_wrong" in figures) == (right, not right)
    assert "token_avu" not in figures  # no threshold yet


def test_tokens_before_the_threshold_do_not_count_for_avu() -> None:
    logits, labels, result = tokens(40, 6)
    _, _, early = tokens(40, 6, seed=1)
    total = TokenMetrics()
    total.update(early, 6, torch.tensor(math.nan))
    total.update(result, 6, torch.tensor(1.0))
    assert total.pop(CPU)["token_avu"] == pytest.approx(expected(logits, labels, 1.0)["token_avu"])


def test_no_token_gives_no_figures() -> None:
    total = TokenMetrics()
    labels = torch.full((4,), -100)
    total.update(
        linear_avuc(torch.randn(4, 3), torch.eye(3), labels, threshold=None, kind="plain"), 3, torch.tensor(1.0)
    )
    assert total.pop(CPU) == {}
