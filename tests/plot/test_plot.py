"""Every chart: what it draws against plain loops, odd inputs, other people's axes, and no change of global state."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import avuc.plot as plot
from avuc import Predictions
from avuc.calibration import CalibrationWarning, MultiLabelCalibrator, TemperatureScaling, VectorScaling
from avuc.core.errors import InputError, MissingExtra
from avuc.metrics import aurc, avu_curves, bootstrap, ece, reliability_curve, risk_coverage_curve, uce
from avuc.plot.axes import share_interval
from avuc.predictions import MultiLabelPredictions

CHARTS: dict[str, Callable[..., Axes]] = {
    "reliability": plot.reliability,
    "uncertainty_reliability": plot.uncertainty_reliability,
    "avu_curve": plot.avu_curve,
    "risk_coverage": plot.risk_coverage,
    "entropy_histogram": plot.entropy_histogram,
}


def sample(rows: int = 200, classes: int = 4, seed: int = 0) -> Predictions:
    """Calibrated predictions: each label is drawn from its own row."""
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(-1)
    return Predictions(probs, torch.multinomial(probs, 1, generator=generator)[:, 0])


def draw(ax: Axes) -> None:
    """Render, so that an artist that cannot be drawn fails here."""
    ax.figure.savefig(_Nothing(), format="png")


class _Nothing:
    """A file that forgets."""

    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        pass


def curve(ax: Axes) -> Any:
    return next(line for line in ax.lines if line.get_gid() == "avuc-curve")


@pytest.mark.parametrize("name", CHARTS)
def test_charts_take_predictions_arrays_and_pairs(name: str) -> None:
    predictions = sample()
    probs, labels = predictions.probs.numpy(), predictions.labels.numpy()
    pictures = []
    for arguments in ((predictions,), (probs, labels), ((probs, labels),), (probs.tolist(), labels.tolist())):
        ax = CHARTS[name](*arguments)
        assert isinstance(ax, Axes)
        pictures.append([line.get_xydata().tolist() for line in ax.lines])
    assert all(picture == pictures[0] for picture in pictures)
    draw(ax)


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        ([[0.9, 0.1]], [0]),  # one row
        ([[0.9, 0.1], [0.2, 0.8]], [0, 1]),  # all right
        ([[0.9, 0.1], [0.2, 0.8]], [1, 0]),  # all wrong
        ([[0.9, 0.1]] * 5, [0, 0, 0, 0, 1]),  # one confidence
        ([[1.0, 0.0], [0.0, 1.0]], [0, 0]),  # exactly 0 and 1
        ([[0.25] * 4] * 3, [0, 1, 2]),  # nothing is known
        (np.full((3, 1000), 0.001), [0, 500, 999]),  # 1,000 classes
        (np.array([[0.9, 0.1], [0.5, 0.5]], np.float16), [0, 1]),
        ([0.9, 0.2, 0.4], [1, 0, 1]),  # binary
        ([[0.9, 0.1], [0.5, 0.5]], [0, -1]),  # a row without a label
    ],
)
def test_extremes_are_drawn(name: str, probs: Any, labels: Any) -> None:
    draw(CHARTS[name](Predictions(probs, labels)))


@pytest.mark.parametrize("name", CHARTS)
def test_the_decisions_of_a_multi_label_model_are_drawn(name: str) -> None:
    many = MultiLabelPredictions(np.random.default_rng(0).random((20, 3)), np.arange(60).reshape(20, 3) % 2)
    found, expected = (CHARTS[name](one) for one in (many, many.flatten()))
    assert [line.get_xydata().tolist() for line in found.lines] == [
        line.get_xydata().tolist() for line in expected.lines
    ]
    draw(found)


@pytest.mark.parametrize("name", CHARTS)
def test_refusals(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} needs Predictions, or probabilities and labels"):
        CHARTS[name]([[0.9, 0.1]])
    with pytest.raises(InputError, match="without any"):
        CHARTS[name](Predictions([[0.9, 0.1]], [-1]))
    with pytest.raises(InputError, match="level"):
        CHARTS[name](sample(), level=95)
    with pytest.raises(InputError, match="ax must be matplotlib Axes"):
        CHARTS[name](sample(), ax="here")


@pytest.mark.parametrize("name", CHARTS)
def test_nothing_global_changes_and_other_axes_are_used(name: str) -> None:
    import matplotlib.pyplot as plt

    before, numbers = dict(mpl.rcParams), plt.get_fignums()
    CHARTS[name](sample())
    assert plt.get_fignums() == numbers
    assert dict(mpl.rcParams) == before
    mine = Figure().subplots(1, 2)
    assert CHARTS[name](sample(), ax=mine[1]) is mine[1]
    assert not mine[0].lines
    draw(mine[1])


def test_reliability_points_are_those_of_the_metric() -> None:
    predictions = sample()
    expected = reliability_curve(predictions.probs, predictions.labels, bins=10)
    full = expected.rows > 0
    found = curve(plot.reliability(predictions, bins=10))
    np.testing.assert_allclose(found.get_xdata(), expected.stated[full])
    np.testing.assert_allclose(found.get_ydata(), expected.observed[full])
    assert found.get_label() == f"ECE {ece(predictions.probs, predictions.labels, bins=10):.3f}"


def test_avu_and_risk_curves_are_those_of_the_metrics() -> None:
    predictions = sample()
    avu = avu_curves(predictions.probs, predictions.labels, points=31)
    found = curve(plot.avu_curve(predictions, points=31))
    np.testing.assert_allclose(found.get_xdata(), avu.threshold)
    np.testing.assert_allclose(found.get_ydata(), avu.avu)
    risk = risk_coverage_curve(predictions.probs, predictions.labels)
    ax = plot.risk_coverage(predictions)
    np.testing.assert_allclose(curve(ax).get_xdata(), risk.coverage)
    np.testing.assert_allclose(curve(ax).get_ydata(), risk.risk)
    assert curve(ax).get_label() == f"AURC {aurc(predictions.probs, predictions.labels):.3f}"


def test_equal_entropies_are_one_visible_point() -> None:
    line = curve(plot.avu_curve([[0.9, 0.1], [0.1, 0.9]], [0, 0]))
    assert (len(line.get_xdata()), line.get_marker(), line.get_ydata()[0]) == (1, "o", 0.5)


def test_the_curve_of_many_rows_has_few_points() -> None:
    assert len(curve(plot.risk_coverage(sample(5000))).get_xdata()) <= 400


def test_entropy_bars_sum_to_one_for_each_group() -> None:
    predictions = sample()
    ax = plot.entropy_histogram(predictions, outside=sample(50, 4, seed=1), bins=12)
    stairs = [patch for patch in ax.patches if type(patch).__name__ == "StepPatch"]
    assert len(stairs) == 3
    for patch in stairs:
        values, edges, _ = patch.get_data()
        assert (values * np.diff(edges)).sum() == pytest.approx(1.0)
    right = int(predictions.correct.sum())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        f"right ({right} rows)",
        f"wrong ({200 - right} rows)",
        "out of distribution (50 rows)",
    ]


@pytest.mark.parametrize("name", ["reliability", "uncertainty_reliability", "avu_curve", "risk_coverage"])
def test_a_second_model_has_another_colour(name: str) -> None:
    ax = CHARTS[name](sample(), label="one")
    CHARTS[name](sample(seed=1), label="two", ax=ax)
    lines = [line for line in ax.lines if line.get_gid() == "avuc-curve"]
    assert len({line.get_color() for line in lines}) == len(lines) == 2
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"one", "two"} <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["reliability", "uncertainty_reliability", "avu_curve", "risk_coverage"])
def test_no_two_of_many_models_look_the_same(name: str) -> None:
    ax = CHARTS[name](sample(), label="0")
    for k in range(1, 20):
        CHARTS[name](sample(seed=k), label=str(k), ax=ax)
    lines = [line for line in ax.lines if line.get_gid() == "avuc-curve"]
    assert len({(line.get_color(), str(line._dash_pattern)) for line in lines}) == len(lines) == 20


def test_boxes_of_many_methods_have_different_names_in_the_legend() -> None:
    ax = plot.shift_boxes({f"method {k}": {1: [0.1 * k, 0.2 * k]} for k in range(12)})
    handles = ax.get_legend_handles_labels()[0]
    assert len({(line.get_color(), str(line._dash_pattern)) for line in handles}) == len(handles) == 12


# ---- the interval


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_of_a_share_solves_its_equation(rows: int, data: Any, level: float) -> None:
    """Oracle: the ends p are those where |events/rows − p| = z √(p(1 − p)/rows)."""
    from scipy.stats import norm

    events = data.draw(st.integers(0, rows))
    low, high = (float(end) for end in share_interval(events, rows, level))
    assert 0 <= low <= events / rows <= high <= 1
    z = norm.ppf((1 + level) / 2)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(events / rows - end) == pytest.approx(z * math.sqrt(end * (1 - end) / rows), abs=1e-9)


def test_the_band_covers_the_truth_as_often_as_it_says() -> None:
    """The true accuracy of a bin of calibrated predictions is its mean confidence."""
    inside = total = 0
    for seed in range(60):
        predictions = sample(400, seed=seed)
        stated = reliability_curve(predictions.probs, predictions.labels)
        full = stated.rows > 0
        low, high = share_interval((stated.observed * stated.rows)[full], stated.rows[full], 0.95)
        inside += int(((low <= stated.stated[full]) & (stated.stated[full] <= high)).sum())
        total += int(full.sum())
    assert 0.93 < inside / total < 0.99


def test_the_band_agrees_with_the_bootstrap_where_that_is_right() -> None:
    predictions = sample(2000)
    right = int(predictions.correct.sum())
    low, high = share_interval(right, 2000, 0.95)
    from avuc.metrics import accuracy

    interval = bootstrap(accuracy, predictions.probs, predictions.labels, replicates=2000)
    assert float(low) == pytest.approx(interval.low, abs=0.004)
    assert float(high) == pytest.approx(interval.high, abs=0.004)


# ---- temperatures and boxes


def test_the_temperature_curve_is_that_of_the_fit() -> None:
    predictions = sample()
    logits = 2 * predictions.probs.log()
    for scaler in (TemperatureScaling(), VectorScaling()):
        scaler.fit(logits, predictions.labels)
        ax = plot.temperature_curve(scaler)
        np.testing.assert_allclose(curve(ax).get_xydata().T, np.stack(scaler.curve_))
        assert ax.get_legend().get_texts()[0].get_text() == f"T = {scaler.temperature_:.4g}"
        draw(ax)


def test_the_temperature_curve_of_predictions_has_a_band() -> None:
    """Mean NLL and its interval at each temperature, by a plain loop; the fit on log p is marked."""
    predictions = sample(50)
    probs, labels = predictions.probs.double().numpy(), predictions.labels.numpy()
    ax = plot.temperature_curve(predictions, level=0.9)
    scaler = TemperatureScaling().fit(predictions.probs.double().log(), predictions.labels)
    assert ax.get_legend().get_texts()[0].get_text() == f"T = {scaler.temperature_:.4g}"
    (shade,) = ax.collections
    corners = {(round(float(x), 9), round(float(y), 9)) for x, y in shade.get_paths()[0].vertices}
    for temperature, mean in curve(ax).get_xydata():
        rows = []
        for p, y in zip(probs, labels, strict=True):
            powers = [math.exp(math.log(value) / temperature) for value in p]
            rows.append(-math.log(max(powers[y] / sum(powers), 1e-12)))
        assert mean == pytest.approx(sum(rows) / 50)
        half = 1.6448536 * math.sqrt(sum((row - mean) ** 2 for row in rows) / 49 / 50)
        for end in (max(mean - half, 0), mean + half):
            near = min(corners, key=lambda at: abs(at[0] - temperature) + abs(at[1] - end))
            assert near == pytest.approx((temperature, end), abs=1e-6)
    same = plot.temperature_curve(predictions.probs, predictions.labels)
    np.testing.assert_allclose(curve(same).get_xydata(), curve(ax).get_xydata())
    with pytest.warns(CalibrationWarning, match="no minimum inside"):
        alone = plot.temperature_curve(sample(1))
    assert not alone.collections  # one row has no band
    draw(alone)
    with pytest.raises(InputError, match="leave `labels` out"):
        plot.temperature_curve(scaler, predictions.labels)


def test_a_scaler_without_a_curve_is_refused() -> None:
    with pytest.raises(InputError, match="call fit first"):
        plot.temperature_curve(TemperatureScaling())


def test_boxes_by_method_and_from_a_table() -> None:
    import pandas

    values = {"SVI": {0: [0.1], 1: [0.1, 0.3, 0.2]}, "Dropout": {0: [0.2], 1: [0.4, math.nan, 0.5], 3: [0.9, 0.8]}}
    rows = [(m, s, v) for m, by_level in values.items() for s, numbers in by_level.items() for v in numbers]
    table = pandas.DataFrame(rows, columns=["method", "severity", "ece"])
    pictures = []
    for given_values in (values, table, {name: table[name].tolist() for name in table}):
        ax = plot.shift_boxes(given_values, metric="ece")
        draw(ax)
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["clean", "1", "3"]
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["SVI", "Dropout"]
        pictures.append([line.get_xydata().tolist() for line in ax.lines])
    assert pictures[0] == pictures[1] == pictures[2]
    medians = [line.get_ydata()[0] for line in ax.lines if len(line.get_ydata()) == 2 and line.get_linewidth() == 1.8]
    assert 0.45 in np.round(medians, 6)  # of 0.4 and 0.5; NaN is left out


def test_boxes_without_numbers_are_refused() -> None:
    for bad, problem in (
        ({}, "no finite number"),
        ({1: [math.nan]}, "no finite number"),
        ({1: ["a"]}, "numbers are needed"),
        ([1, 2], "found list"),
        ({"severity": [1], "ece": [0.1]}, "no column 'uce'"),
    ):
        with pytest.raises(InputError, match=problem):
            plot.shift_boxes(bad, metric="uce")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'avuc\[report\]'"):
        plot.reliability(sample())


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "guide" / "plots.md"
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(block, page.name, "exec"), {})
    assert (tmp_path / "reliability.png").stat().st_size > 1000


def test_outside_predictions_of_every_kind() -> None:
    """A multi-label model's decisions need no labels; the labels of a pair are not a row of probabilities."""
    probs = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    inside = MultiLabelPredictions(probs, torch.ones(40, 3).long())
    unknown = MultiLabelPredictions(probs, torch.full((40, 3), -100))
    assert (
        "out of distribution (120 rows)"
        in plot.entropy_histogram(inside, outside=unknown).get_legend_handles_labels()[1]
    )
    pair = ([0.5, 0.5], [0, 1])
    one = plot.entropy_histogram([0.2, 0.9], [0, 1], outside=pair)
    other = plot.entropy_histogram([0.2, 0.9], [0, 1], outside=pair[0])
    assert [patch.get_data().values.tolist() for patch in one.patches] == [
        patch.get_data().values.tolist() for patch in other.patches
    ]


def test_messages_for_other_objects() -> None:
    predictions = sample()
    with pytest.raises(InputError, match="have labels of their own"):
        plot.reliability(predictions, predictions.labels)
    labels = torch.tensor([[0], [1], [1], [0]])
    fitted = MultiLabelCalibrator().fit(torch.tensor([[-2.0], [2.0], [-1.0], [-3.0]]), labels)
    with pytest.raises(InputError, match="a temperature for each label"):
        plot.temperature_curve(fitted)


@pytest.mark.parametrize(
    "name", ["reliability", "uncertainty_reliability", "avu_curve", "risk_coverage", "temperature_curve"]
)
def test_a_name_that_begins_with_an_underscore_is_in_the_legend(name: str) -> None:
    """matplotlib leaves such names out of the legend."""
    ax = getattr(plot, name)([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]], [0, 0, 1], label="_baseline")
    assert any(text.get_text().endswith("_baseline") for text in ax.get_legend().get_texts())


def test_every_method_of_the_boxes_is_in_the_legend() -> None:
    ax = plot.shift_boxes({"_baseline": {1: [0.1, 0.2]}, "other": {1: [0.3, 0.2]}})
    assert [text.get_text().strip("\u200b") for text in ax.get_legend().get_texts()] == ["_baseline", "other"]


def test_a_calibrated_model_is_not_on_the_line_of_the_uncertainty_diagram() -> None:
    """With two classes, entropy / log 2 is far above the error rate: the line is no line of perfect calibration."""
    predictions = sample(5000, classes=2)
    assert ece(predictions.probs, predictions.labels) < 0.03 < 0.2 < uce(predictions.probs, predictions.labels)
    lines = {
        name: {text.get_text() for text in CHARTS[name](predictions).get_legend().get_texts()}
        for name in ("reliability", "uncertainty_reliability")
    }
    assert "perfect calibration" in lines["reliability"]
    assert "perfect calibration" not in lines["uncertainty_reliability"]
    assert "error rate = uncertainty" in lines["uncertainty_reliability"]
