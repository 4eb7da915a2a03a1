"""What counts as probabilities, against plain loops, and what does not by accident."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.probabilities import SUM_TOLERANCE, are_probs, check_probs, looks_like, rounding_error, sum_tolerance


def probs(rows: int = 200, classes: int = 5, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(-1).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_probabilities_of_every_precision(dtype: torch.dtype) -> None:
    assert looks_like(probs(dtype=dtype)) == "probabilities"
    assert looks_like(probs(dtype=dtype).expand(3, -1, -1)) == "probabilities"


@pytest.mark.parametrize("classes", [2, 5, 12, 100])
@pytest.mark.parametrize("digits", [2, 3])
def test_rounded_probabilities_and_percentages(digits: int, classes: int) -> None:
    rounded = torch.from_numpy(np.round(probs(classes=classes, dtype=torch.float64).numpy(), digits))
    worst = float((rounded.sum(1) - 1).abs().max())
    expected = "probabilities" if worst <= SUM_TOLERANCE + 1e-6 else "rounded probabilities"
    assert looks_like(rounded) == looks_like(rounded.float()) == expected
    assert looks_like(100 * rounded) == looks_like((100 * rounded).float()) == "percentages"


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 1000])
def test_logits_are_not_probabilities(rows: int) -> None:
    for seed in range(50):
        z = torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))
        for scale in (0.5, 1.0, 20.0):
            assert looks_like(scale * z) is None
            assert looks_like((scale * z).relu()) is None


def test_a_few_rows_need_exact_sums() -> None:
    """Served one by one, two logits sum to 1 within 0.01 about once in a thousand rows: that is no evidence."""
    near = torch.tensor([[0.3, 0.705]])
    assert looks_like(near) is None
    assert looks_like(near.expand(4, 2)) == "probabilities"
    assert looks_like(torch.tensor([[0.3, 0.7]])) == "probabilities"


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(8, 100),  # an untrained last layer
        100 * torch.eye(8),  # made-up logits of a perfect model
        torch.full((8, 5), math.nan),
        torch.full((8, 5), math.inf),
        torch.ones(8, 1),
        torch.ones(0, 5),
        torch.arange(40.0).view(8, 5),
    ],
)
def test_what_is_not_taken_for_probabilities(rows: Tensor) -> None:
    assert looks_like(rows) is None


@pytest.mark.parametrize("seed", range(5))
def test_are_probs_against_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        rows = probs(4, 3, seed=int(rng.integers(1 << 30)), dtype=torch.float64)
        rows[rng.integers(4), rng.integers(3)] += rng.choice([0, 0.009, 0.02, -2, math.nan, math.inf])
        expected = all(abs(sum(row) - 1) <= SUM_TOLERANCE and min(row) >= 0 for row in rows.tolist())
        assert bool(are_probs(rows)) == expected
        if expected:
            check_probs(rows)
        else:
            with pytest.raises(InputError, match="row"):
                check_probs(rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.tensor([[0.5, 0.5], [0.3, math.nan]]), r"NaN \(row 11\)"),
        (torch.tensor([[0.5, 0.5], [1.5, -0.5]]), r"negative \(row 11\)"),
        (torch.tensor([[0.33, 0.33, 0.33, 0.0, 0.0], [0.5, 0.47, 0.01, 0.0, 0.0]]), "rounded to 2 digits, so divide"),
        (torch.tensor([[33.0, 67.0], [50.5, 49.5]]), "divide percentages by 100"),
        (torch.tensor([[0.3], [0.9]]), r"\[1 − p, p\]"),
        (torch.tensor([[3.0, -1.0]]), "apply softmax"),
    ],
)
def test_the_message_names_the_row_and_the_remedy(rows: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_probs(rows, start=10)


@pytest.mark.parametrize(
    ("classes", "digits", "expected"),
    [(10, None, 0.01), (10, 1, 0.01), (2, 2, 0.01 + 1e-6), (5, 2, 0.025 + 1e-6), (1000, 2, 0.05 + 1e-6), (10, 6, 0.01)],
)
def test_tolerance_of_rounded_sums(classes: int, digits: int | None, expected: float) -> None:
    assert sum_tolerance(classes, digits) == expected


def test_rounding_explains_every_sum_within_its_error() -> None:
    generator = torch.Generator().manual_seed(0)
    for classes in (3, 5, 9):
        probs = torch.randn(2000, classes, generator=generator, dtype=torch.float64).softmax(-1)
        off = ((probs * 100).round() / 100).sum(-1).sub(1).abs().max()
        assert 0.4 * rounding_error(classes, 2) < off <= rounding_error(classes, 2) + 1e-12
