from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc import uncertainty
from avuc.core.errors import InputError
from avuc.uncertainty import entropy, expected_entropy, midpoint_threshold, mutual_information, variation_ratio


def draws(s: int, n: int, c: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(s, n, c, generator=generator, dtype=torch.float64)).softmax(-1)


def slow_entropy(row: list[float]) -> float:
    return -sum(p * math.log(p) for p in row if p > 0)


def test_entropy_against_loop_and_scipy() -> None:
    probs = draws(1, 50, 7)[0]
    assert torch.allclose(entropy(probs), torch.tensor([slow_entropy(r) for r in probs.tolist()], dtype=torch.float64))
    np.testing.assert_allclose(entropy(probs).numpy(), scipy.stats.entropy(probs.numpy(), axis=1), rtol=1e-12)


def test_entropy_extremes() -> None:
    assert entropy(torch.tensor([[1.0, 0.0, 0.0]])).item() == 0
    assert entropy(torch.full((1, 1000), 1e-3, dtype=torch.float64)).item() == pytest.approx(math.log(1000))
    assert entropy(torch.ones(1, 1)).item() == 0
    assert entropy(torch.tensor([[float("nan"), 0.5]])).isnan().all()
    assert entropy(torch.full((2, 3, 4, 4), 1 / 3), dim=1).shape == (2, 4, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_entropy_is_computed_in_float32_or_better(dtype: torch.dtype) -> None:
    out = entropy(torch.full((1, 256), 1 / 256, dtype=dtype))
    assert out.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert out.item() == pytest.approx(math.log(256), rel=1e-6)


def test_entropy_gradient() -> None:
    logits = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: entropy(z.softmax(-1)), logits)
    # softmax underflows to exactly 0: the gradient stays finite
    sure = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    entropy(sure.softmax(-1)).sum().backward()
    assert sure.grad is not None
    assert sure.grad.isfinite().all()


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_draws_against_loops(s: int, n: int, c: int, seed: int) -> None:
    probs = draws(s, n, c, seed)
    for i in range(n):
        rows = probs[:, i].tolist()
        mean = [sum(row[k] for row in rows) / s for k in range(c)]
        expected = sum(map(slow_entropy, rows)) / s
        votes = [max(range(c), key=row.__getitem__) for row in rows]
        assert expected_entropy(probs)[i].item() == pytest.approx(expected, abs=1e-12)
        assert mutual_information(probs)[i].item() == pytest.approx(slow_entropy(mean) - expected, abs=1e-12)
        assert variation_ratio(probs)[i].item() == pytest.approx(1 - max(map(votes.count, votes)) / s, abs=1e-6)


def test_mutual_information_is_never_negative() -> None:
    one = draws(1, 200, 10).float()
    assert (mutual_information(one.expand(7, -1, -1)) >= 0).all()


@pytest.mark.parametrize("shape", [(3, 4), (0, 3, 4), (2, 3, 0)])
def test_wrong_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"\(S, N, C\)"):
        expected_entropy(torch.ones(shape))


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="floating-point"):
        entropy(torch.ones(2, 2, dtype=torch.int64))


def slow_midpoint(uncertainty: list[float], accurate: list[bool]) -> float:
    groups = [[u for u, right in zip(uncertainty, accurate, strict=True) if right == side] for side in (True, False)]
    means = [sum(group) / len(group) for group in groups if group]
    return sum(means) / len(means)


@given(st.lists(st.tuples(st.floats(0, 7), st.booleans()), min_size=1, max_size=30))
def test_midpoint_threshold_against_a_loop_for_arrays_and_tensors(rows: list[tuple[float, bool]]) -> None:
    uncertainty, accurate = [u for u, _ in rows], [right for _, right in rows]
    sums = [sum(u for u, right in rows if right == side) for side in (True, False)]
    counts = [accurate.count(side) for side in (True, False)]
    expected = slow_midpoint(uncertainty, accurate)
    array = midpoint_threshold(*sums, *counts)
    tensor = midpoint_threshold(*torch.tensor(sums, dtype=torch.float64), *torch.tensor(counts))
    assert float(array) == pytest.approx(expected, rel=1e-14)
    assert float(tensor) == float(array)


def test_midpoint_threshold_of_many_groups_stays_between_the_extremes() -> None:
    sums, counts = np.array([0.4, 0.4, 0.3]), np.array([4, 4, 3])
    found = midpoint_threshold(sums, np.array([1.8, 0.0, 0.0]), counts, np.array([2, 0, 0]), low=0.1, high=0.45)
    np.testing.assert_allclose(found, [0.45, 0.1, 0.1])
    assert found[2] >= 0.1  # 0.3 / 3 rounds to less than 0.1
    bounded = midpoint_threshold(
        *torch.tensor([0.3, 0.0, 3.0, 0.0], dtype=torch.float64).unbind(), low=torch.tensor(0.1, dtype=torch.float64)
    )
    assert bounded >= 0.1


def test_many_samples_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = torch.randn(5, 40, 7, generator=torch.Generator().manual_seed(0)).softmax(-1)
    functions = uncertainty.expected_entropy, uncertainty.mutual_information
    whole = [function(probs) for function in functions]
    most, entropy = [], uncertainty.entropy
    monkeypatch.setattr(uncertainty, "entropy", lambda p: most.append(p.numel()) or entropy(p))
    monkeypatch.setattr(uncertainty, "SMALL", 100, raising=False)
    for function, expected in zip(functions, whole, strict=True):
        assert torch.equal(function(probs), expected)
    assert max(most) == 40 * 7
