"""What TemperatureScaling accepts: types, precisions and layouts of arrays; bad input and parameters are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from avuc.calibration import TemperatureScaling
from avuc.core.errors import InputError


def test_bfloat16_and_gradients_through_transform(logits_and_labels):
    logits, labels = torch.tensor(logits_and_labels[0]).bfloat16().requires_grad_(), logits_and_labels[1]
    scaler = TemperatureScaling().fit(logits, labels)
    scaler.transform(logits).sum().backward()
    assert logits.grad is not None
    assert scaler.transform(logits.detach()).dtype == torch.float32


def test_views_read_only_and_lists(logits_and_labels):
    logits, labels = logits_and_labels
    expected = TemperatureScaling().fit(logits, labels).temperature_
    frozen = logits.copy()
    frozen.flags.writeable = False
    for same in (frozen, logits[::-1][::-1], np.asfortranarray(logits), logits.tolist(), logits.astype(">f8")):
        assert TemperatureScaling().fit(same, labels.astype(np.uint8)).temperature_ == pytest.approx(expected, rel=1e-9)
    assert TemperatureScaling().fit(logits, labels.astype(np.float32)).temperature_ == expected


GOOD = np.array([[1.0, 0.0], [0.0, 2.0]])


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        ([[np.nan, 0.0], [1.0, 0.5]], [0, 1], "NaN in 1 of 2 rows .first: row 0"),
        ([[0.0, 0.5], [np.inf, 0.5]], [0, 1], r"\+inf in 1 of 2 rows .first: row 1"),
        ([[0.0, 0.5], [-np.inf, -np.inf]], [0, 1], "every class of row 1 has a logit of −inf"),
        (np.zeros((0, 3)), [], "empty: shape .0, 3."),
        (np.zeros((2, 0)), [0, 0], "empty"),
        (np.zeros(3), [0, 0], r"shape \(3,\)"),
        (np.zeros(3), [0, 0, 2], "binary score"),
        (np.zeros((1, 1, 2, 2)), [0], r"labels must have shape \(1, 2, 2\)"),
        (GOOD, [0], "each of 2 rows; found shape .1,."),
        (GOOD, [[0, 1], [1, 0]], "one-hot"),
        (GOOD, [0, 2], "0 … 1 for 2 classes; found 0 … 2"),
        (GOOD, [0, -1], "found -1 … 0"),
        (GOOD, [0, 0.5], "whole class numbers"),
        (GOOD, [0, np.nan], "whole class numbers"),
        (GOOD + 1j, [0, 1], "must be numbers; found dtype complex128"),
        (torch.tensor(GOOD) + 1j, [0, 1], "real numbers"),
        ([["a", "b"]], [0], "must be numbers"),
        ([[0.2, 0.8], [1.0, 0.0]], [0, 1], "look like probabilities.*logits_from_probs"),
        (np.full((2, 3, 4), 0.25), [0, 1, 2], "look like probabilities"),
    ],
)
def test_bad_input_says_what_is_wrong(logits, labels, message):
    with pytest.raises(InputError, match=message):
        TemperatureScaling().fit(logits, labels)


def test_transform_checks_too(logits_and_labels):
    with pytest.raises(InputError, match="TemperatureScaling is not fitted"):
        TemperatureScaling().transform(GOOD)
    scaler = TemperatureScaling().fit(*logits_and_labels)
    with pytest.raises(InputError, match="fitted on 5 classes; found 2"):
        scaler.transform(GOOD)
    with pytest.raises(InputError, match="look like probabilities"):
        scaler.transform(np.full((3, 5), 0.2))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"objective": "avuc"}, r"objective must be one of \('nll',\); found 'avuc'"),
        ({"bounds": (0.0, 1.0)}, "0 < low < high"),
        ({"bounds": (2.0, 1.0)}, "0 < low < high"),
        ({"bounds": 3.0}, "two temperatures"),
        ({"bounds": (0.1, math.inf)}, "two temperatures"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": "fine"}, "tolerance"),
    ],
)
def test_bad_parameters(params, message):
    with pytest.raises(InputError, match=message):
        TemperatureScaling(**params).fit(GOOD, [0, 1])
