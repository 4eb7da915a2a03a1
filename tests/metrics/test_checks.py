"""Probabilities and labels of unusual shape: read where their meaning is clear, else refused with the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from avuc.core.errors import InputError
from avuc.metrics import accuracy, ece, nll
from avuc.metrics.streaming import StreamingMetrics


def test_labels_in_one_column(world: Any) -> None:
    """The advice was .argmax(1), which makes every label 0."""
    probs, labels = world(50, 4)
    for metric in (accuracy, nll, ece):
        assert metric(probs, labels[:, None]) == metric(probs, labels)
        assert metric(torch.tensor(probs), torch.tensor(labels)[:, None]) == metric(probs, labels)


def test_masked_entries_are_refused(world: Any) -> None:
    probs, labels = world(50, 4)
    some = np.arange(50) == 3
    with pytest.raises(InputError, match="probabilities hold masked entries"):
        accuracy(np.ma.masked_array(probs, np.repeat(some[:, None], 4, 1)), labels)
    with pytest.raises(InputError, match="labels hold masked entries"):
        accuracy(probs, np.ma.masked_array(labels, some))
    assert accuracy(np.ma.masked_array(probs), labels) == accuracy(probs, labels)


@pytest.mark.parametrize("shape", [(50,), (50, 1)])
@pytest.mark.parametrize("positive", [True, False])
def test_the_positive_class_alone(shape: tuple[int, ...], positive: bool, world: Any) -> None:
    probs, labels = world(50, 2)
    labels = labels if positive else 0 * labels
    assert accuracy(probs[:, 1].reshape(shape), labels) == accuracy(probs, labels)
    with pytest.raises(InputError, match="from 0 to 1"):
        accuracy(2 * probs[:, 1].reshape(shape) + 1, labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: np.round(p, 2), "row .* sums to .*: they are rounded to 2 digits, so divide each row by its sum"),
        (lambda p: 100 * p, "divide percentages by 100"),
        (lambda p: np.log(p), "apply softmax"),
    ],
)
def test_rows_that_do_not_sum_to_1(change: Any, message: str, world: Any) -> None:
    probs, labels = world(500, 6)
    with pytest.raises(InputError, match=message):
        accuracy(change(probs), labels)
    with pytest.raises(InputError, match=message):
        StreamingMetrics(6).update(change(probs), labels)
    rounded = np.round(probs, 2)
    assert accuracy(rounded / rounded.sum(1)[:, None], labels) == pytest.approx(accuracy(probs, labels), abs=0.01)
