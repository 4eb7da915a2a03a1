"""The metrics are real torchmetrics, with the values of `avuc.metrics` in any split into batches."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import Metric, MetricCollection, MetricTracker
from torchmetrics.classification import BinaryCalibrationError, MulticlassAccuracy, MulticlassCalibrationError
from torchmetrics.wrappers import Running

from avuc.core.errors import InputError
from avuc.metrics import METRICS, evaluate
from avuc.predictions import Predictions
from avuc.torchmetrics import AURC, ECE, UCE, AvU, AvUAUC, CalibrationMetric, CalibrationSuite

Data = tuple[torch.Tensor, torch.Tensor]
NAN = dict.fromkeys(METRICS, math.nan)


def make(rows: int, classes: int, seed: int = 0) -> Data:
    """Logits of a somewhat overconfident model, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator) * 3
    return logits, torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]


def floats(values: dict[str, torch.Tensor]) -> dict[str, float]:
    assert all(isinstance(value, torch.Tensor) and value.shape == () for value in values.values())
    return {name: float(value) for name, value in values.items()}


def want(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> Any:
    return pytest.approx(evaluate(Predictions(logits.softmax(1), labels), **options), abs=1e-6, nan_ok=True)


@given(
    st.integers(1, 60),
    st.integers(2, 6),
    st.integers(1, 20),
    st.sampled_from(["auto", 0.3]),
    st.sampled_from([3, 15]),
    st.sampled_from(["logits", "probs"]),
)
@settings(max_examples=40)
def test_any_split_gives_the_values_of_the_functions(
    rows: int, classes: int, step: int, threshold: Any, bins: int, kind: Any
) -> None:
    logits, labels = make(rows, classes, rows)
    given_scores = logits if kind == "logits" else logits.softmax(1)
    suite = CalibrationSuite(classes, kind, threshold=threshold, bins=bins)
    for start in range(0, rows, step):
        suite.update(given_scores[start : start + step], labels[start : start + step])
    assert list(suite.compute()) == list(METRICS)
    assert floats(suite.compute()) == want(logits, labels, threshold=threshold, bins=bins)


@pytest.mark.parametrize("name", METRICS)
def test_single_metrics(name: str) -> None:
    logits, labels = make(100, 4)
    metric = CalibrationMetric(name, 4)
    metric.update(logits[:30], labels[:30])
    metric.update(logits[30:], labels[30:])
    assert float(metric.compute()) == pytest.approx(METRICS[name](logits.softmax(1), labels), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "name"), [(ECE, "ece"), (UCE, "uce"), (AvU, "avu"), (AvUAUC, "avu_auc"), (AURC, "aurc")]
)
def test_named_metrics(kind: type[CalibrationMetric], name: str) -> None:
    logits, labels = make(100, 4)
    metric = kind(4, "probs")
    assert isinstance(metric, Metric)
    assert float(metric(logits.softmax(1), labels)) == pytest.approx(METRICS[name](logits.softmax(1), labels), abs=1e-6)
    assert metric.higher_is_better == (name in ("avu", "avu_auc"))


def test_values_of_torchmetrics() -> None:
    logits, labels = make(3000, 5)
    probs = logits.softmax(1)
    ours = floats(CalibrationSuite(5)(logits, labels))
    theirs = {
        "accuracy": MulticlassAccuracy(5, average="micro")(probs, labels),
        "ece": MulticlassCalibrationError(5, n_bins=15, norm="l1")(probs, labels),
        "mce": MulticlassCalibrationError(5, n_bins=15, norm="max")(probs, labels),
        "classwise_ece": torch.stack(
            [BinaryCalibrationError(n_bins=15)(probs[:, k], (labels == k).long()) for k in range(5)]
        ).mean(),
        "nll": torch.nn.functional.cross_entropy(logits, labels),
    }
    # they sum in float32
    assert {name: ours[name] for name in theirs} == pytest.approx(floats(theirs), abs=2e-5)


def test_forward_returns_the_batch_and_accumulates() -> None:
    logits, labels = make(90, 3)
    suite = CalibrationSuite(3)
    for start in range(0, 90, 30):
        part = slice(start, start + 30)
        assert floats(suite(logits[part], labels[part])) == want(logits[part], labels[part])
    assert floats(suite.compute()) == want(logits, labels)
    assert suite.update_count == 3
    suite.reset()
    assert suite.confidence == []
    suite.update(logits[:5], labels[:5])
    assert floats(suite.compute()) == want(logits[:5], labels[:5])


def test_states_are_two_numbers_for_each_prediction() -> None:
    logits, labels = make(500, 100)
    suite = CalibrationSuite(100)
    suite.update(logits, labels)
    per_row = [state for state in suite.metric_state.values() if isinstance(state, list)]
    assert sum(tensor.numel() for state in per_row for tensor in state) == 2 * 500
    assert suite.classwise.shape == (100, 15)
    assert "classwise" not in ECE(100).metric_state


def test_collection_shares_the_states() -> None:
    logits, labels = make(80, 3)
    metrics = MetricCollection({"ece": ECE(3), "avu": AvU(3), "aurc": AURC(3), "suite": CalibrationSuite(3)})
    metrics.update(logits[:40], labels[:40])
    metrics.update(logits[40:], labels[40:])
    assert sorted(map(sorted, metrics.compute_groups.values())) == [["aurc", "avu", "ece"], ["suite"]]
    values = floats(metrics.compute())
    for name in ("ece", "avu", "aurc"):
        assert values[name] == pytest.approx(METRICS[name](logits.softmax(1), labels), abs=1e-6)
        assert values[f"suite_{name}"] == values[name]
    renamed = metrics.clone(prefix="val/")
    assert "val/ece" in renamed.compute()


def test_a_collection_keeps_metrics_apart_that_read_batches_differently() -> None:
    """In the first batch nothing is ignored, so all states are equal; in the second they are not."""
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(2, 40, 3, generator=generator)
    labels = torch.stack([torch.randint(low, 3, (40,), generator=generator) for low in (1, 0)])
    options: dict[str, dict[str, Any]] = {"all": {}, "some": {"ignore_index": 0}, "same": {"bins": 10}}
    alone = {name: ECE(3, **given) for name, given in options.items()}
    together = MetricCollection({name: ECE(3, **given) for name, given in options.items()})
    for batch in zip(scores, labels, strict=True):
        together.update(*batch)
        for metric in alone.values():
            metric.update(*batch)
    assert together.compute() == {name: metric.compute() for name, metric in alone.items()}
    assert sorted(map(sorted, together.compute_groups.values())) == [["all", "same"], ["some"]]


def test_tracker_finds_the_best_step() -> None:
    tracker = MetricTracker(ECE(3))
    for sharpness in (4.0, 0.5, 1.0):
        tracker.increment()
        logits, labels = make(500, 3)
        tracker.update(logits * sharpness, labels)
    assert tracker.best_metric(return_step=True)[1] == 1


@pytest.mark.parametrize("step", ["update", "forward"])
def test_a_running_window_has_the_value_of_its_batches(step: str) -> None:
    logits, labels = make(400, 3)
    running = Running(ECE(3), window=2)
    for start in range(0, 400, 100):
        getattr(running, step)(logits[start : start + 100], labels[start : start + 100])
    expected = evaluate(Predictions(logits[200:].softmax(1), labels[200:]))["ece"]
    assert float(running.compute()) == pytest.approx(expected, abs=1e-6)


def test_clone_pickle_merge_and_state_dict() -> None:
    logits, labels = make(60, 3)
    suite = CalibrationSuite(3, threshold=0.4, bins=10)
    suite.update(logits[:20], labels[:20])
    expected = want(logits, labels, threshold=0.4, bins=10)
    other = CalibrationSuite(3, threshold=0.4, bins=10)
    other.update(logits[20:], labels[20:])
    for copy in (suite.clone(), pickle.loads(pickle.dumps(suite))):
        copy.merge_state(other)
        assert floats(copy.compute()) == expected
    suite.persistent(True)
    loaded = CalibrationSuite(3, threshold=0.4, bins=10)
    loaded.persistent(True)
    loaded.load_state_dict(suite.state_dict())
    loaded.update(logits[20:], labels[20:])
    assert floats(loaded.compute()) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_precisions(dtype: torch.dtype, kind: Any) -> None:
    logits, labels = make(200, 4)
    scores = (logits if kind == "logits" else logits.softmax(1)).to(dtype)
    probs = scores if kind == "probs" else Predictions.from_logits(scores, labels).probs
    suite = CalibrationSuite(4, kind).to("cpu").half()
    suite.update(scores[:77], labels[:77])
    suite.update(scores[77:], labels[77:])
    assert suite.confidence[0].dtype == torch.float64
    expected = {name: metric(probs, labels) for name, metric in METRICS.items()}
    assert floats(suite.compute()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_stay_exact_if_the_network_is_converted(dtype: torch.dtype) -> None:
    logits, labels = make(3000, 4)
    expected = want(logits, labels)
    for convert in (lambda net: net.to(dtype), lambda net: net[1].set_dtype(dtype), lambda net: net.to("cpu", dtype)):
        net = torch.nn.ModuleList([torch.nn.Linear(2, 2), CalibrationSuite(4)])
        suite = net[1]
        for start in range(0, 3000, 100):
            if start in (0, 1500):
                convert(net)
            suite.update(logits[start : start + 100], labels[start : start + 100])
        assert floats(suite.compute()) == pytest.approx(expected, abs=1e-7)
        suite.reset()
        assert suite.sums.dtype == torch.float64
    assert net.to("meta")[1].sums.is_meta


def test_arrays_lists_and_gradients_are_accepted() -> None:
    logits, labels = make(20, 3)
    for scores, targets in (
        (logits.numpy(), labels.numpy()),
        (logits.tolist(), labels.tolist()),
        (logits.requires_grad_(), labels.float()),
    ):
        suite = CalibrationSuite(3)
        suite.update(scores, targets)
        assert floats(suite.compute()) == want(logits.detach(), labels)


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric:UserWarning")
def test_without_predictions_everything_is_nan() -> None:
    suite = CalibrationSuite(3)
    assert floats(suite.compute()) == pytest.approx(NAN, nan_ok=True)
    logits, labels = make(10, 3)
    batch = suite(logits, torch.full((10,), -100))
    assert floats(batch) == pytest.approx(NAN, nan_ok=True)
    assert math.isnan(float(ECE(3)(logits[:0], labels[:0])))
    suite.update(logits, labels)
    assert floats(suite.compute()) == want(logits, labels)


@pytest.mark.parametrize(
    ("options", "scores", "labels", "message"),
    [
        ({"num_classes": 3}, np.zeros((2, 4)), [0, 1], "expected scores of 3 classes, found 4"),
        ({"num_classes": 2}, np.zeros((2, 2)), [0, 2], "0…1 for 2 classes, found 2"),
        ({"num_classes": 2}, np.zeros((2, 2)), [0, -1], "found -1"),
        ({"num_classes": 2}, np.zeros((2, 2)), [0.5, 1.5], "regression"),
        ({"num_classes": 2}, np.full((4, 2), 0.5), [0, 1, 0, 1], "kind='probs'"),
        ({"num_classes": 2, "kind": "probs"}, np.full((4, 2), 0.7), [0, 1, 0, 1], "sum to 1"),
        ({"num_classes": 2, "kind": "probs"}, [[np.nan, 0.5]], [0], "NaN"),
        ({"num_classes": 2}, [[0.0, 0.5], [np.nan, 0.5]], [0, 0], r"logits contain NaN .*\(row 1\)"),
        ({"num_classes": 2}, [[np.inf, 0.5]], [0], "logits contain NaN or .infinity"),
        ({"num_classes": 2}, [[1, 0]], [0], "floating-point"),
        ({"num_classes": 2}, np.zeros((3, 2)), [0, 1], r"shape \(3,\)"),
        ({"num_classes": 3, "task": "multilabel"}, np.zeros((2, 4)), np.zeros((2, 4), int), "3 labels, found 4"),
    ],
)
def test_refused_batches_change_nothing(options: Any, scores: Any, labels: Any, message: str) -> None:
    suite = CalibrationSuite(**options)
    with pytest.raises(InputError, match=message):
        suite.update(scores, labels)
    assert suite.confidence == suite.entropy == []
    assert float(suite.sums.abs().sum()) == float(suite.classwise.abs().sum()) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "num_classes is needed"),
        ({"num_classes": 0}, "at least 1"),
        ({"num_classes": 3, "task": "binary"}, "2, or be left out"),
        ({"num_classes": 3, "kind": "scores"}, "'logits' or 'probs'"),
        ({"num_classes": 3, "task": "regression"}, "one of multiclass, binary, multilabel"),
        ({"num_classes": 3, "bins": 0}, "bins must be at least 1"),
        ({"num_classes": 3, "threshold": math.nan}, "threshold is NaN"),
    ],
)
def test_refused_options(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CalibrationSuite(**options)


def test_unknown_name() -> None:
    with pytest.raises(InputError, match="no metric 'f1'; choose one of accuracy"):
        CalibrationMetric("f1", 3)


def test_plots() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    logits, labels = make(50, 3)
    suite, metric = CalibrationSuite(3), ECE(3)
    steps = [suite(logits[k : k + 10], labels[k : k + 10]) for k in range(0, 50, 10)]
    figure, axes = suite.plot()
    assert {text.get_text() for text in axes.get_legend().get_texts()} == set(METRICS)
    assert figure is not None
    own = plt.figure().add_subplot()
    assert suite.plot(steps, ax=own)[1] is own
    assert len(own.get_lines()) >= len(METRICS)
    assert own.get_xlabel() == "Step"
    metric.update(logits, labels)
    assert metric.plot()[1].get_ylabel() == "ECE"
    assert metric.plot([metric(logits, labels), metric(logits, labels)])[1].get_xlabel() == "Step"
    plt.close("all")


@pytest.mark.gpu
def test_states_and_values_follow_the_device() -> None:
    logits, labels = make(300, 5)
    suite = CalibrationSuite(5).cuda()
    suite.update(logits.cuda(), labels.cuda())
    assert suite.confidence[0].is_cuda
    assert suite.compute()["ece"].is_cuda
    assert floats(suite.compute()) == want(logits, labels)
    assert floats(suite.to("cpu").compute()) == want(logits, labels)
