"""How predictions, results and calibrators show themselves."""

from __future__ import annotations

import math
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from avuc import Predictions
from avuc.calibration import CALIBRATORS, TemperatureScaling
from avuc.core.display import html_table
from avuc.core.errors import MissingExtra
from avuc.evaluation import Comparison, EvaluationResult, compare, evaluate
from avuc.evaluation.files import read_scores
from avuc.methods import Vanilla
from avuc.predictions import MultiLabelPredictions
from avuc.train import Calibrated, TrainSettings, fit


def sample(rows: int = 60) -> Predictions:
    """Calibrated predictions: each label is drawn from its own row."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(rows, 3, generator=generator)
    return Predictions.from_logits(logits, torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0])


class Cells(HTMLParser):
    """The texts of a page, and whether all tags are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize(
    ("predictions", "expected"),
    [
        (Predictions([[0.9, 0.1], [0.6, 0.4]], [0, 1]), "Predictions(rows=2, classes=2, accuracy=0.5)"),
        (Predictions([[0.9, 0.1], [0.6, 0.4]], [0, -1]), "Predictions(rows=2, classes=2, labelled=1, accuracy=1)"),
        (Predictions([[0.9, 0.1]], [-1]), "Predictions(rows=1, classes=2, labelled=0)"),
        (
            Predictions.from_samples(torch.zeros(4, 2, 3), [0, 0], check=False),
            "Predictions(rows=2, classes=3, samples=4, accuracy=1)",
        ),
        (
            Predictions(np.full((1, 2, 2, 2), 0.5), np.array([[[0, 0], [0, -100]]])),
            "Predictions(rows=3, classes=2, shape=(1, 2, 2), accuracy=1)",
        ),
        (Predictions(np.zeros((0, 2)), np.zeros(0, int)), "Predictions(rows=0, classes=2)"),
    ],
)
def test_predictions_are_one_line(predictions: Predictions, expected: str) -> None:
    assert repr(predictions) == expected
    assert expected in Cells(predictions._repr_html_()).texts


def test_a_training_is_one_line() -> None:
    """It was the whole network, several times, and every epoch."""
    data = torch.zeros(8, 2), torch.arange(8) % 2
    settings = TrainSettings(epochs=1, milestones=(), factors=())
    fitted = fit(Vanilla(), torch.nn.Linear(2, 2), data, settings=settings, progress=False)
    nll, accuracy, seconds = fitted.history[-1]["nll"], fitted.history[-1]["accuracy"], fitted.seconds
    line = f"epochs=1, nll={nll:.4g}, accuracy={accuracy:.4g}, seconds={seconds:.4g})"
    assert repr(fitted) == f"Fitted(models=1, posterior=DeterministicPosterior, {line}"
    scaler = TemperatureScaling().fit(np.eye(2)[[0, 1, 0, 1]] - 0.5, [0, 1, 0, 0])
    temperature = f"calibrator=TemperatureScaling, temperature={scaler.temperature_:.4g})"
    assert repr(Calibrated(fitted.posterior, scaler)) == f"Calibrated(posterior=DeterministicPosterior, {temperature}"
    assert "epochs" in Cells(fitted._repr_html_()).texts


def test_html_is_escaped() -> None:
    page = html_table("<script>", ("<b>",), [("a&b", math.nan)])
    assert "<script>" not in page
    assert Cells(page).texts == ["<script>", "<b>", "a&b", "–"]


def test_the_frame_of_predictions() -> None:
    predictions = sample()
    frame = predictions.to_frame()
    assert list(frame) == ["label", "predicted", "confidence", "entropy", "correct"]
    assert frame["correct"].dtype == bool
    assert frame["correct"].mean() == pytest.approx(float(predictions.correct.float().mean()))
    assert frame["entropy"].tolist() == predictions.entropy.tolist()


def test_the_frame_says_where_rows_come_from() -> None:
    dense = Predictions(np.full((1, 2, 2, 2), 0.5), np.array([[[0, -1], [-100, 1]]]))
    frame = dense.to_frame()
    assert frame.index.tolist() == [0, 1, 3]
    assert frame["correct"].tolist()[::2] == [True, False]
    assert frame["correct"].isna().tolist() == [False, True, False]
    draws = Predictions.from_samples(torch.randn(3, 5, 2), torch.zeros(5, dtype=torch.long))
    assert "mutual_information" in draws.to_frame()


def test_multi_label_predictions() -> None:
    many = MultiLabelPredictions([[0.9, 0.2], [0.6, 0.4]], [[1, 0], [0, -100]], names=["<cat>", "dog"])
    assert repr(many) == "MultiLabelPredictions(rows=2, labels=2, decisions=3, accuracy=0.6667)"
    assert "<cat>" not in many._repr_html_()
    texts = Cells(many._repr_html_()).texts
    assert texts[texts.index("<cat>") :][:5] == ["<cat>", "2", "0.5", "0.75", "0.5"]
    frame = many.to_frame()
    assert frame["row"].tolist() == [0, 0, 1]
    assert frame["name"].tolist() == ["<cat>", "dog", "<cat>"]
    assert frame["correct"].tolist() == [True, True, False]
    unlabelled = MultiLabelPredictions([[0.9, 0.2]])
    assert repr(unlabelled) == "MultiLabelPredictions(rows=1, labels=2, decisions=2, labelled=0)"
    assert "–" in Cells(unlabelled._repr_html_()).texts


def test_an_evaluation_shows_its_metrics() -> None:
    result = evaluate(sample(), replicates=50)
    assert isinstance(result, EvaluationResult)
    line = repr(result)
    assert line.startswith("EvaluationResult(rows=60, classes=3, accuracy=")
    assert len(line) < 150
    frame = result.to_frame()
    assert list(frame) == ["metric", "value", "low", "high"]
    assert dict(zip(frame["metric"], frame["value"], strict=True)) == result.metrics
    assert frame["low"].tolist() == [result.intervals[name][0] for name in result.metrics]
    assert {"avu_auc", "low", f"{result.metrics['ece']:.4g}"} <= set(Cells(result._repr_html_()).texts)
    assert evaluate(sample(), replicates=0).to_frame()["low"].isna().all()


def comparison(folder: Path) -> Comparison:
    predictions = sample(80)
    np.savez(folder / "a.npz", logits=3 * predictions.probs.log().numpy(), labels=predictions.labels.numpy())
    return compare(read_scores(folder / "a.npz"), "temperature", replicates=50)[1]


def test_a_comparison_shows_before_and_after(tmp_path: Path) -> None:
    found = comparison(tmp_path)
    before, after = found.before.metrics, found.after.metrics
    assert f"nll={before['nll']:.4g} → {after['nll']:.4g}" in repr(found)
    frame = found.to_frame().set_index("metric")
    assert frame.loc["ece", "change"] == pytest.approx(after["ece"] - before["ece"])
    assert {"before", "after", "nll"} <= set(Cells(found._repr_html_()).texts)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_calibrators_in_a_notebook(name: str) -> None:
    calibrator = CALIBRATORS[name]()
    assert "not fitted" in calibrator._repr_html_()
    predictions = sample()
    calibrator.fit(2 * predictions.probs.log(), predictions.labels)
    texts = Cells(calibrator._repr_html_()).texts
    assert texts[0] == repr(calibrator)
    assert texts[texts.index("temperature_") + 1] == f"{calibrator.temperature_:.4g}"


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'avuc\[pandas\]'"):
        sample().to_frame()


def test_a_calibrator_keeps_its_repr() -> None:
    assert repr(TemperatureScaling()) == "TemperatureScaling()"
