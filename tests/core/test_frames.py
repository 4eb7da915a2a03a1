"""Data frames and series: their numbers, and what their index and columns say about rows and classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix

import avuc
from avuc.calibration import AutoCalibrator, MultiLabelCalibrator, check_calibrator
from avuc.conformal import ConformalClassifier, SelectiveClassifier
from avuc.core.arrays import as_array, as_tensor
from avuc.core.errors import InputError
from avuc.evaluation import compare
from avuc.metrics import accuracy, bootstrap, detection_intervals, nll, paired_bootstrap
from avuc.predictions import MultiLabelPredictions, Predictions
from avuc.sklearn import CalibratedClassifier

RNG = np.random.default_rng(0)
ROWS = RNG.permutation(np.arange(1000, 1200))
LABELS = pd.Series(RNG.integers(0, 3, 200), index=ROWS)
LOGITS = pd.DataFrame(RNG.normal(size=(200, 3)) + 2 * np.eye(3)[LABELS], index=ROWS)
PROBS = np.exp(LOGITS).div(np.exp(LOGITS).sum(axis=1), axis=0)
TAGS = (RNG.random((200, 3)) < 0.5).astype(int)
NOISE = RNG.uniform(-0.4, 0.2, (200, 3)) * np.where(TAGS, 1, -1)

TAKERS: dict[str, Callable[[Any, Any], object]] = {
    "metric": lambda rows, labels: avuc.metrics.ece(PROBS.loc[rows.index], labels),
    "all metrics": lambda rows, labels: avuc.metrics.evaluate(PROBS.loc[rows.index], labels),
    "Predictions": lambda rows, labels: Predictions(PROBS.loc[rows.index], labels),
    "from_logits": Predictions.from_logits,
    "temperature": lambda rows, labels: avuc.TemperatureScaling().fit(rows, labels),
    "compare": lambda rows, labels: compare(rows, "temperature", labels=labels),
    "conformal": lambda rows, labels: ConformalClassifier().fit(PROBS.loc[rows.index], labels),
    "scikit-learn": lambda rows, labels: CalibratedClassifier(cv=2).fit(rows, labels),
}


@pytest.mark.parametrize("name", TAKERS)
def test_the_same_index_in_another_order_is_refused(name: str) -> None:
    """A label of another row: accuracy 0.52 instead of 0.96 without a word, for a model of the breast cancer data."""
    take = TAKERS[name]
    take(LOGITS, LABELS)
    take(LOGITS, LABELS.reset_index(drop=True))  # a default index says nothing: rows are matched by position
    take(LOGITS, LABELS.to_numpy())
    take(LOGITS, LABELS.set_axis(LABELS.index + 5000))  # nothing in common
    for shuffled in (LABELS.sort_index(), LABELS.sample(frac=1, random_state=0)):
        with pytest.raises(InputError, match=r"have the same index in another order.*\.loc\["):
            take(LOGITS, shuffled)


DEPENDENT: dict[str, Callable[[Any, Any], object]] = {
    "sample_weight": lambda labels, values: avuc.TemperatureScaling().fit(LOGITS, labels, sample_weight=values),
    "sample_weight of labels": lambda labels, values: avuc.TemperatureScaling().fit(LOGITS.to_numpy(), labels, values),
    "decisions": lambda labels, values: MultiLabelCalibrator().fit(
        LOGITS[[0]], (labels == 0).to_frame(0), values.to_frame(0)
    ),
    "auto": lambda labels, values: AutoCalibrator().fit(LOGITS, labels, groups=values),
    "check": lambda labels, values: check_calibrator(avuc.TemperatureScaling(), LOGITS, labels, groups=values),
    "compare": lambda labels, values: compare(LOGITS, "temperature", labels=labels, groups=values),
    "bootstrap": lambda labels, values: bootstrap(accuracy, PROBS, labels, groups=values, replicates=5),
    "paired": lambda labels, values: paired_bootstrap(nll, PROBS, PROBS, labels, groups=values, replicates=5),
    "detection": lambda labels, values: detection_intervals(PROBS[0], PROBS[1], in_groups=values, replicates=5),
    "conformal": lambda labels, values: ConformalClassifier().fit(PROBS, labels, groups=values),
    "selective": lambda labels, values: SelectiveClassifier().fit(PROBS, labels, groups=values),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_weights_and_groups_in_another_order_are_refused(name: str) -> None:
    """The weight, or the patient, of another row: they were matched by position without a word."""
    take, values = DEPENDENT[name], pd.Series(1 + np.arange(200) % 40, index=ROWS)
    take(LABELS, values)
    take(LABELS, values.reset_index(drop=True))
    for shuffled in (values.sort_index(), values.sample(frac=1, random_state=0)):
        with pytest.raises(InputError, match="have the same index in another order"):
            take(LABELS, shuffled)


@pytest.mark.parametrize("name", ["sample_weight", "groups"])
def test_weights_and_groups_of_other_rows_are_refused(name: str) -> None:
    values = pd.Series(1 + np.arange(200) % 8, index=ROWS)
    CalibratedClassifier(cv=2).fit(LOGITS, LABELS, **{name: values})
    with pytest.raises(InputError, match=rf"X and {name} have the same index in another order"):
        CalibratedClassifier(cv=2).fit(LOGITS, LABELS, **{name: values.sort_index()})


def test_multi_label_scores_and_labels_have_the_same_columns() -> None:
    scores = pd.DataFrame(0.25 + 0.5 * TAGS + NOISE, columns=["cat", "dog", "cow"])
    tags = pd.DataFrame(TAGS, columns=["cat", "dog", "cow"])
    takers: list[Callable[[Any, Any], object]] = [
        MultiLabelPredictions,
        lambda s, t: MultiLabelPredictions.from_logits(8 * s - 4, t),
        lambda s, t: MultiLabelCalibrator().fit(8 * s - 4, t),
    ]
    for take in takers:
        take(scores, tags)
        with pytest.raises(InputError, match=r"have the same columns in another order.*\[\w+\.columns\]"):
            take(scores, tags[["dog", "cat", "cow"]])


@pytest.mark.parametrize(
    ("columns", "order"),
    [([1, 0, 2], "1, 0, 2"), (["2", "1", "0"], "2, 1, 0"), (["prob_1", "prob_3", "prob_2"], "prob_1, prob_3, prob_2")],
)
def test_columns_numbered_in_another_order_are_refused(columns: list[Any], order: str) -> None:
    with pytest.raises(InputError, match=rf"numbered in another order than the classes \({order}\)"):
        avuc.metrics.ece(PROBS.set_axis(columns, axis=1), LABELS)


@pytest.mark.parametrize("columns", [[0, 1, 2], [1, 2, 3], ["c", "b", "a"], ["b2", "a1", "c0"], [7, 5, 6]])
def test_other_columns_are_read_by_position(columns: list[Any]) -> None:
    want = avuc.metrics.ece(PROBS.to_numpy(), LABELS)
    assert avuc.metrics.ece(PROBS.set_axis(columns, axis=1), LABELS) == want


@pytest.mark.parametrize("dtype", ["Float64", "Float32", "double[pyarrow]"])
def test_types_of_pandas_are_numbers(dtype: str) -> None:
    frame = LOGITS.astype(dtype)
    np.testing.assert_allclose(as_tensor(frame, "logits").numpy(), LOGITS.to_numpy(), rtol=1e-6)
    frame.iloc[3, 1] = pd.NA
    assert np.isnan(as_array(frame, "logits")[3, 1])
    with pytest.raises(InputError, match="NaN"):
        Predictions.from_logits(frame, LABELS)


def test_a_series_of_lists_is_one_row_each() -> None:
    rows = LOGITS.to_numpy()
    for series in (pd.Series(list(rows)), pd.Series(rows.tolist())):
        np.testing.assert_array_equal(as_tensor(series, "logits").numpy(), rows)
    with pytest.raises(InputError, match="must be numbers"):
        as_tensor(pd.Series([[1.0, 2.0], [1.0]]), "logits")


def test_a_sparse_matrix_has_a_remedy() -> None:
    with pytest.raises(InputError, match=r"probabilities must be an array or a tensor, found csr_matrix: give \.toarr"):
        avuc.metrics.ece(csr_matrix(PROBS.to_numpy()), LABELS)


def test_outputs_of_transformers_have_a_remedy() -> None:
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.SequenceClassifierOutput(logits=torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"logits must be .*, found SequenceClassifierOutput: give \.logits"):
        avuc.Predictions.from_logits(output, [0, 1])
    pair = transformers.EvalPrediction(predictions=np.zeros((2, 3)), label_ids=np.array([0, 1]))
    with pytest.raises(InputError, match=r"found EvalPrediction: give \.predictions, and \.label_ids as labels"):
        avuc.TemperatureScaling().fit(pair, [0, 1])


def test_one_vs_rest_scores_have_a_remedy() -> None:
    """A softmax of numbers from 0 to 1 would make every prediction unsure."""
    with pytest.raises(InputError, match="divide each row by its sum if these are one-vs-rest scores"):
        avuc.metrics.ece(1 / (1 + np.exp(-LOGITS)), LABELS)
