"""Every layout becomes rows (M, C): compared with plain loops, and what cannot be told is refused with a remedy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.core.tasks import as_rows, binary_rows, find_layout, multilabel_rows, whole_labels


def loop_rows(scores: np.ndarray, labels: np.ndarray, axis: int, ignore: int | None) -> tuple[list, list, list]:
    """Rows, labels and flat positions, one position after the other; `axis` counts without draws."""
    rows, targets, positions = [], [], []
    moved = np.moveaxis(scores, axis, -1)
    for flat, index in enumerate(product(*map(range, labels.shape))):
        if ignore is None or labels[index] != ignore:
            rows.append(moved[index].tolist())
            targets.append(int(labels[index]))
            positions.append(flat)
    return rows, targets, positions


@given(st.integers(1, 3), st.lists(st.integers(1, 3), max_size=3), st.integers(2, 4), st.booleans(), st.integers(0, 99))
def test_dense_against_a_loop(n: int, spatial: list[int], classes: int, last: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (n, *spatial)
    scores = rng.normal(size=(*shape, classes))
    scores = scores if last else np.moveaxis(scores, -1, 1)
    labels = rng.integers(0, classes, shape)
    labels[rng.random(shape) < 0.3] = -100
    axis = len(shape) if last else 1
    rows = as_rows(scores, labels, kind="logits", class_dim=-1 if last else None)
    expected, targets, positions = loop_rows(scores, labels, axis, -100)
    assert rows.shape == shape
    assert rows.labels is not None
    assert rows.labels.tolist() == targets
    assert rows.scores.tolist() == expected
    assert (list(range(labels.size)) if rows.positions is None else rows.positions.tolist()) == positions
    draws = as_rows(
        torch.tensor(np.stack([scores, 2 * scores])),
        torch.tensor(labels),
        kind="logits",
        class_dim=-1 if last else None,
        draws=None,
    )
    assert draws.scores.shape == (2, len(expected), classes)
    assert torch.equal(draws.scores[0], rows.scores)
    assert torch.equal(draws.scores[1], 2 * rows.scores)


def test_rows_are_not_copied() -> None:
    scores, labels = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    rows = as_rows(scores, labels, kind="logits")
    assert rows.scores.data_ptr() == scores.data_ptr()
    assert rows.positions is None


@pytest.mark.parametrize("shape", [(6,), (6, 1), (3, 1, 2), (3, 1, 1, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_binary(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    p = torch.tensor([0.0, 1.0, 0.25, 0.5, 0.75, 1.0], dtype=dtype).reshape(shape)
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    dense = labels.reshape([side for place, side in enumerate(shape) if place != 1])
    for targets in (dense, dense.bool(), dense.double(), dense.reshape(shape)):
        rows = as_rows(p, targets, kind="probs")
        assert rows.scores.tolist() == [[1 - x, x] for x in p.flatten().tolist()]
        assert rows.labels is not None
        assert rows.labels.tolist() == labels.tolist()
        assert rows.scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=9))
def test_a_binary_logit_is_the_sigmoid(logits: list[float]) -> None:
    z = torch.tensor(logits, dtype=torch.float64)
    torch.testing.assert_close(binary_rows(z, "logits").softmax(-1)[:, 1], z.sigmoid())


def test_multilabel_rows_leave_out_unknown_decisions() -> None:
    probs = [[0.9, 0.2, 0.5], [0.1, 0.3, 1.0]]
    rows = multilabel_rows(probs, [[1, -100, 0], [0, 0, 1]], kind="probs")
    assert rows.shape == (2, 3)
    assert rows.positions is not None
    assert rows.labels is not None
    assert rows.positions.tolist() == [0, 2, 3, 4, 5]
    assert rows.labels.tolist() == [1, 0, 0, 0, 1]
    assert rows.scores[:, 1].tolist() == [0.9, 0.5, 0.1, 0.3, 1.0]
    draws = multilabel_rows(torch.zeros(4, 2, 3), [[1, 0, 0]] * 2, kind="logits", draws=True)
    assert draws.scores.shape == (4, 6, 2)


@pytest.mark.parametrize("ignore", [None, 2, 255])
def test_other_ignored_labels(ignore: int | None) -> None:
    labels = torch.tensor([[0, 2], [255, 1]])
    rows = as_rows(torch.randn(2, 3, 2), labels, kind="logits", ignore_index=ignore)
    assert rows.labels is not None
    assert rows.labels.tolist() == [x for x in (0, 2, 255, 1) if x != ignore]


def test_everything_ignored_and_no_rows() -> None:
    rows = as_rows(torch.randn(2, 3, 4), torch.full((2, 4), -100), kind="logits")
    assert rows.scores.shape == (0, 3)
    assert rows.positions is not None
    assert rows.positions.numel() == 0
    assert as_rows(torch.empty(0, 3), torch.empty(0), kind="logits").scores.shape == (0, 3)
    assert as_rows(torch.empty(0, 3, 4, 4), torch.empty(0, 4, 4), kind="logits").scores.shape == (0, 3)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ((4, 3), (5,), r"shape \(4,\) to match \(4, 3\), found \(5,\)"),
        ((4, 3), (4, 3), r"argmax\(1\).*MultiLabelPredictions"),
        ((2, 5, 3), (2, 5), r"class_dim=-1"),
        ((2, 5, 3, 4), (2, 5, 4), r"class_dim=2"),
        ((2, 5, 3), (5,), r"from_samples"),
        ((2, 3, 4), None, r"class_dim=1"),
        ((), (), r"\(N, C\)"),
        ((3, 0), (3,), r"\(N, C\)"),
        ((2, 3, 4, 4), (2, 3, 4, 4), r"argmax\(1\)"),
    ],
)
def test_shapes_that_do_not_fit(scores: tuple[int, ...], labels: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        find_layout(scores, labels, class_dim=None, draws=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("class_dim", "message"), [(3, "dimension"), (-4, "dimension"), (1.0, "whole"), (True, "whole")]
)
def test_bad_class_dim(class_dim: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_rows(torch.zeros(2, 3, 4), torch.zeros(2, 4), kind="logits", class_dim=class_dim)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="leave class_dim out"):
        as_rows(torch.zeros(2), torch.zeros(2), kind="logits", class_dim=1)
    with pytest.raises(InputError, match="not of the samples"):
        as_rows(torch.zeros(2, 3, 4), torch.zeros(3), kind="logits", class_dim=0, draws=True)


def test_labels_of_one_column_with_draws() -> None:
    assert find_layout((7, 5, 3), (5, 1), class_dim=None, draws=None).draws
    assert not find_layout((5, 5, 1), (5, 1), class_dim=None, draws=None).draws


def test_regression_is_refused_in_one_sentence() -> None:
    for labels in ([0.3, 1.7], [3.0, 12.0]):
        with pytest.raises(InputError, match="regression, which avuc does not do") as error:
            as_rows([0.2, 5.0], labels, kind="logits")
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="NaN or infinity"):
        whole_labels(torch.tensor([0.0, float("nan")]))
    with pytest.raises(InputError, match="class numbers"):
        whole_labels(torch.tensor([1j]))


def test_one_class_cannot_be_told_from_binary() -> None:
    with pytest.raises(InputError, match=r"as \(N,\)"):
        as_rows(torch.ones(3, 1), [0, 0, 0], kind="probs")
    assert as_rows(torch.ones(3), [0, 0, 0], kind="probs").scores.tolist() == [[0, 1]] * 3
    assert as_rows(torch.ones(3, 1), [0, 1, 0], kind="probs").scores.tolist() == [[0, 1]] * 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, -0.1], r"found -0.1 in row 1: apply a sigmoid"),
        ([0.5, 50.0], r"divide percentages"),
        ([float("nan"), 0.5], r"found nan in row 0: remove"),
        ([0.5, float("inf")], r"found inf in row 1"),
    ],
)
def test_values_that_are_no_probabilities(values: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_rows(values, [0, 1], kind="probs")


def test_bad_multilabel() -> None:
    with pytest.raises(InputError, match=r"shape \(2, 2\)"):
        multilabel_rows([[0.5, 0.5]] * 2, [0, 1], kind="probs")
    with pytest.raises(InputError, match=r"0 or 1, or ignore_index \(-100\) where unknown; found 0…2"):
        multilabel_rows([[0.5, 0.5]] * 2, [[0, 1], [2, 0]], kind="probs")
    with pytest.raises(InputError, match=r"\(N, L\)"):
        multilabel_rows([0.5, 0.5], [0, 1], kind="probs")
    with pytest.raises(InputError, match="regression"):
        multilabel_rows([[0.5, 0.5]], [[0.2, 0.8]], kind="probs")


def test_dense_draws_without_labels_say_where_the_classes_are() -> None:
    draws = torch.zeros(2, 4, 5, 3)
    with pytest.raises(InputError, match=r"class_dim=2 .*class_dim=-1"):
        as_rows(draws, kind="logits", draws=True)
    assert as_rows(draws, kind="logits", draws=True, class_dim=-1).scores.shape == (2, 20, 3)
    assert as_rows(draws, kind="logits", draws=True, class_dim=2).scores.shape == (2, 12, 5)
    assert as_rows(draws, torch.zeros(4, 3), kind="logits", draws=True).scores.shape == (2, 12, 5)
    assert as_rows(torch.zeros(2, 4, 5, 3, 3), kind="logits", draws=True).scores.shape == (2, 36, 5)
