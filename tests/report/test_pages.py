"""The page: self-contained, escaped, and the same figures as everywhere else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from avuc.cli import main
from avuc.core.palette import ROLES
from avuc.evaluation import compare, evaluate
from avuc.evaluation.files import read_scores
from avuc.evaluation.result import json_value
from avuc.metrics import METRICS
from avuc.predictions import Predictions
from avuc.report.metric_text import METRIC_TEXT, change_rows, compared_verdict, verdict
from avuc.report.numbers import number, percent
from avuc.report.single.charts import avu_chart, risk_chart
from avuc.report.single.page import assessment_page, comparison_page, ranking_page

NASTY = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def model(scale=3.0, rows=300, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (rows,), generator=g)
    logits = torch.randn(rows, classes, generator=g)
    logits[torch.arange(rows), labels] += 2
    return Predictions.from_logits(scale * logits, labels)


@pytest.fixture(scope="module")
def result():
    outside = torch.rand(100, generator=torch.Generator().manual_seed(1)) * 1.3
    return evaluate(model(), outside_entropy=outside, replicates=20)


@pytest.fixture(scope="module")
def page(result):
    return assessment_page(result, title=NASTY, source=NASTY)


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in ("meta", "br", "img", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(text):
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    return reader


def test_hostile_names_are_text(page):
    reader = read(page)
    assert not [tag for tag, _ in reader.tags if tag in ("script", "img", "iframe", "object", "link")]
    assert "alert(1)" in page
    assert "<script" not in page
    for _, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on")]


def test_nothing_comes_from_outside(page):
    for _, attributes in read(page).tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action"):
                assert value.startswith("#")
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in page


def test_names_inside_the_drawings_are_unique_and_resolved(page):
    ids = read(page).ids
    assert len(ids) == len(set(ids))
    for name in re.findall(r'(?:url\(#|href="#)([^")]+)', page):
        assert name in ids


def test_colours_come_from_the_palette(page):
    drawings = page[page.index("<svg") :]
    assert not set(re.findall(r"#[0-9a-f]{6}", drawings)) - {"#000000"}
    assert "prefers-color-scheme:dark" in page
    assert len({bright for bright, _ in ROLES.values()}) == len(ROLES)


def test_figures_and_charts_are_there(page, result):
    assert page.count("<svg") == 6
    assert "Detecting 100 out-of-distribution (OOD) rows by entropy" in page
    for name, value in result.metrics.items():
        assert METRIC_TEXT[name].title in page
        assert number(value, percent=METRIC_TEXT[name].percent) in page
    for sentence in verdict(result):
        assert sentence.replace("'", "&#x27;") in page


def test_every_metric_has_words():
    assert set(METRICS) <= set(METRIC_TEXT)


def test_same_input_same_page(result):
    assert assessment_page(result, title="a", source="b") == assessment_page(result, title="a", source="b")


def test_comparison_page(tmp_path):
    import numpy as np

    g = np.random.default_rng(0)
    labels = g.integers(0, 3, 200)
    np.savez(tmp_path / "a.npz", logits=(g.normal(size=(200, 3)) + 2 * np.eye(3)[labels]) * 3, labels=labels)
    _, result = compare(read_scores(tmp_path / "a.npz"), "temperature", replicates=10)
    text = comparison_page(result, title=NASTY, source="s")
    read(text)
    assert text.count("<svg") == 7
    assert "How the temperature was found" in text
    assert "held-out rows" in text


def test_ranking_page(result):
    text = ranking_page({"as trained": result, "a": result, NASTY: result}, ["One sentence."], title="t", source="s")
    read(text)
    assert "<script" not in text
    assert text.count("<tr>") >= 4


@pytest.mark.parametrize(
    ("shift", "replicates", "says"),
    [
        (0.0, 100, "which may be chance"),
        (0.1, 100, "hardly any separation"),
        (-0.5, 100, "worse than chance"),
        (0.5, 100, "a weak separation"),
        (0.1, 0, "no better than chance"),
    ],
)
def test_the_verdict_on_detection_agrees_with_its_interval(shift, replicates, says):
    predictions = model(1.0)
    place = (torch.arange(4000) + 0.5) / 4000 * (len(predictions) - 1)  # entropies of the test rows, moved
    outside = predictions.entropy.sort().values[place.round().long()] * (1 + shift)
    assert verdict(evaluate(predictions, outside_entropy=outside, replicates=replicates))[-1].endswith(f"({says}).")


@pytest.mark.parametrize("replicates", [200, 0])
def test_the_verdict_on_a_calibrated_model_does_not_blame_noise(replicates):
    """A perfectly calibrated model has an ECE of about 0.06 on 300 rows."""
    rng = np.random.default_rng(0)
    blamed = 0
    for _ in range(20):
        scores = np.exp(2 * rng.normal(size=(300, 5)))
        probs = scores / scores.sum(1, keepdims=True)
        labels = (probs.cumsum(1) > rng.random((300, 1))).argmax(1)
        result = evaluate(Predictions(probs, labels), replicates=replicates)
        assert result.metrics["ece"] > 0.03
        close = verdict(result)[0].startswith(("On average", "Confidence and accuracy do not differ"))
        blamed += not close or "may be chance" not in verdict(result)[1]
    assert blamed <= 3


def test_the_verdict_on_few_rows_does_not_say_that_79_percent_matches_73():
    """The difference is not significant on 30 rows, but it is there for everybody to see."""
    result = evaluate(Predictions(np.tile([0.79, 0.21], (30, 1)), (np.arange(30) >= 22).astype(int)), replicates=200)
    first = verdict(result)[0]
    assert first == "Confidence and accuracy do not differ significantly: it says 79 % and is right 73 % of the time."


@pytest.mark.parametrize("replicates", [200, 0])
def test_the_verdict_finds_confidences_that_are_wrong_in_both_directions(replicates):
    high = np.arange(2000) % 2 == 0  # says 90 % and 60 %, is right 75 % of the time in both cases
    labels = (np.arange(2000) // 2 % 4 == 0).astype(int)
    first = np.where(high, 0.9, 0.6)
    lines = verdict(evaluate(Predictions(np.stack([first, 1 - first], 1), labels), replicates=replicates))
    assert lines[1] == "However, single confidences are wrong by 15 % on average: some are too high, others too low."


def rare(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated log-odds of a rare class, and labels."""
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(-2.8, 1.5, rows)
    return log_odds, (rng.random(rows) < 1 / (1 + np.exp(-log_odds))).astype(int)


def test_the_verdict_finds_the_class_that_gets_too_much_probability():
    """Class weights: ECE is 0.01, but the probabilities expect class 1 in 36 % of the rows instead of 11 %."""
    log_odds, labels = rare(4000, 0)
    shifted = np.stack((0 * log_odds, log_odds + 2), 1)
    result = evaluate(Predictions.from_logits(shifted, labels), replicates=200)
    assert result.metrics["ece"] < 0.02 < 0.2 < result.metrics["classwise_ece"]
    doubt = [line for line in verdict(result) if "one class gets too much, the other too little" in line]
    assert len(doubt) == 1
    # "auto" may choose another one, but not for multi-label models
    assert "A temperature does not repair this; calibrate with --method vector." in doubt[0]
    _, with_temperature = compare(shifted, "temperature", labels=labels, replicates=200)
    assert doubt[0][:60] in " ".join(compared_verdict(with_temperature))
    _, repaired = compare(shifted, "vector", labels=labels, replicates=200)
    assert "one class" not in " ".join(compared_verdict(repaired))


def test_the_verdict_explains_figures_that_get_worse_with_right_probabilities():
    """UCE of an overconfident model may be near 0, and rises to that of a calibrated one."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 600)
    logits = 3 * (rng.normal(size=(600, 4)) + 1.5 * np.eye(4)[labels])
    _, compared = compare(logits, "temperature", labels=labels, replicates=200)
    assert compared.change["nll"][2] < 0 < compared.change["uce"][1]
    (line,) = [line for line in compared_verdict(compared) if line.startswith("Worse, although NLL gets better: UCE")]
    assert line.endswith("Judge the calibrator by NLL, Brier score and ECE.")
    _, unchanged = compare(logits / 3, "temperature", labels=labels, replicates=200)
    assert not any("although" in line for line in compared_verdict(unchanged))


@pytest.mark.parametrize("replicates", [200, 0])
@pytest.mark.parametrize("scale", [1, 3])
def test_the_verdict_on_a_rare_class_does_not_blame_noise(scale, replicates):
    for seed in range(10):
        log_odds, labels = rare(200, seed)
        logits = np.stack((0 * log_odds, scale * log_odds), 1)
        lines = verdict(evaluate(Predictions.from_logits(logits, labels), replicates=replicates))
        assert "one class" not in " ".join(lines)


@pytest.mark.parametrize("replicates", [200, 0])
@pytest.mark.parametrize(
    ("rows", "says"), [(20, "Confidence and accuracy do not differ"), (2000, "The model is underconfident")]
)
def test_the_verdict_on_a_model_without_mistakes_counts_the_rows(rows, says, replicates):
    probs = np.tile([[0.96, 0.04]], (rows, 1))
    assert verdict(evaluate(Predictions(probs, np.zeros(rows, int)), replicates=replicates))[0].startswith(says)


@pytest.mark.parametrize(("scale", "says"), [(6.0, "The model is overconfident"), (0.3, "The model is underconfident")])
def test_verdict(scale, says):
    assert verdict(evaluate(model(scale), replicates=20))[0].startswith(says)


@pytest.mark.parametrize("classes", [2, 50])
@pytest.mark.parametrize("kind", ["all right", "all wrong", "one row", "certain"])
def test_extremes_make_a_page(kind, classes):
    logits = torch.eye(classes)[:2] * (1e4 if kind == "certain" else 3.0)
    labels = torch.tensor([1, 0]) if kind == "all wrong" else torch.tensor([0, 1])
    if kind == "one row":
        logits, labels = logits[:1], labels[:1]
    result = evaluate(Predictions.from_logits(logits, labels), replicates=10)
    read(assessment_page(result, title="t", source="s"))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("chart", [avu_chart, risk_chart])
def test_equally_certain_rows_are_one_visible_point(monkeypatch, chart, count):
    result = evaluate(Predictions(torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])), replicates=0)
    axes = Figure().add_subplot()
    monkeypatch.setattr("avuc.report.single.charts._drawing", lambda name, paint: paint(axes))
    chart([("before", result), ("after", result)][:count])
    curves = [line for line in axes.lines if line.get_label() in ("AvU", "AvU before", "before", "this model")]
    assert [(line.get_marker(), len({*line.get_xdata()})) for line in curves] == [("o", 1)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.874, "87 %"),
        (0.9962, "99.6 %"),
        (1, "100 %"),
        (0, "0 %"),
        (0.004, "0.4 %"),
        (0.9997, "99.97 %"),  # "is right 100.0 % of the time" would be false
        (0.00002, "0.002 %"),
    ],
)
def test_percent(value, text):
    assert percent(value) == text


def test_the_change_of_a_percentage_is_in_percentage_points():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    before, after = (torch.from_numpy(rng.normal(size=(300, 3)) + scale * np.eye(3)[labels]) for scale in (1, 2))
    results = [
        evaluate(Predictions.from_logits(each, torch.from_numpy(labels)), replicates=20) for each in (before, after)
    ]
    gain = results[1].metrics["accuracy"] - results[0].metrics["accuracy"]
    changes = {"accuracy": (gain, gain - 0.01, gain + 0.01), "nll": (-0.25, -0.5, -0.125)}
    changes |= {"ece": (-0.00004, -0.001, 0.00002), "brier": (-0.0001, -0.0002, 0.00001)}
    rows = {row[0]: row for row in change_rows(SimpleNamespace(before=results[0], after=results[1], change=changes))}
    _, _, after, change, interval, _ = rows["Accuracy"]
    assert after == f"{100 * results[1].metrics['accuracy']:.2f} %"
    assert change == f"{100 * gain:+.2f} pp"
    assert interval == f"{100 * gain - 1:+.2f} pp … {100 * gain + 1:+.2f} pp"
    assert rows["NLL"][3:] == ("-0.2500", "-0.5000 … -0.1250", "better")
    assert rows["ECE"][3:] == ("0.0000", "-0.0010 … 0.0000", "unchanged")
    assert rows["Brier score"][3:] == ("-0.0001", "-0.0002 … 0.0000", "better, not significant")


def test_json_value_has_no_nan():
    assert json_value({"a": float("nan"), "b": [float("inf"), 1, "x", None, True]}) == {
        "a": None,
        "b": [None, 1, "x", None, True],
    }


def test_a_multilabel_page_counts_rows_and_decisions(tmp_path):
    """Not each decision as a row: unknown ones (-100) are no decisions."""
    rng = np.random.default_rng(0)
    probs = rng.random((60, 3))
    labels = (rng.random((60, 3)) < probs).astype(int)
    labels[:5, 0] = -100
    np.savez(tmp_path / "tags.npz", probs=probs, labels=labels)
    words = ["evaluate", str(tmp_path / "tags.npz"), "--task", "multilabel", "--replicates", "0"]
    assert main([*words, "--report", str(tmp_path / "page.html")]) == 0
    footer = (tmp_path / "page.html").read_text(encoding="utf-8").partition("<footer>")[2]
    assert footer.startswith("60 rows × 3 labels: 175 known decisions; 15 bins; a decision is certain up to")
