"""`avuc calibrate --apply`: what is written is finite and means the same, or nothing is written."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from scipy.special import softmax

from avuc.calibration import Calibrator
from avuc.cli import main
from avuc.core.calibrator_names import CALIBRATOR_NAMES as METHODS
from avuc.evaluation.files import read_scores, write_scores

NAMES = ["ant", "bee", "cat", "dog"]


def unsure(rows=500, scale=0.06, seed=0):
    """Logits that want a temperature of 0.05."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, rows)
    return (rng.normal(size=(rows, 4)) + 2 * np.eye(4)[labels]) * scale, labels


def calibrate(*words):
    return main(["calibrate", *map(str, words), "--replicates", "0"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("dtype", "scale"), [(np.float16, 8e3), (np.float16, 1.0), (np.float32, 4e37), (np.float64, 4e37)]
)
def test_large_logits_stay_finite_and_mean_the_same(tmp_path, method, dtype, scale):
    logits, labels = unsure()
    np.savez(tmp_path / "fit.npz", logits=logits, labels=labels)
    large = unsure(seed=1, scale=1.0)[0] * scale
    large = large.astype(dtype)
    large[0] = [1.0, 0.5, 0.0, 0.0]  # a small row among the large ones stays as precise as it was
    np.savez(tmp_path / "large.npz", logits=large)
    out = tmp_path / "c.json"
    words = ["--method", method, "--out", out, "--apply", tmp_path / "large.npz", "--to", tmp_path / "to.npz"]
    free_form = method in ("isotonic", "histogram")  # refused for so few rows: some probabilities are 0
    without = ("isotonic", "histogram", "venn-abers", "dirichlet")  # no temperature
    assert calibrate(tmp_path / "fit.npz", *words, *(["--keep-worse"] if free_form else [])) == 0
    written = np.load(tmp_path / "to.npz")["logits"]
    assert written.dtype == dtype
    assert np.isfinite(written).all()
    calibrator = Calibrator.load(out)
    assert calibrator.temperature_ == 1 if method in without else calibrator.temperature_ < 0.1
    expected = softmax(calibrator.transform(large.astype(np.float64)), axis=1)
    np.testing.assert_allclose(
        softmax(written.astype(np.float64), axis=1), expected, atol=2e-2 if dtype == np.float16 else 1e-5
    )


def test_large_draws(tmp_path):
    logits, labels = unsure()
    np.savez(tmp_path / "fit.npz", logits=np.stack([logits, logits]), labels=labels)
    np.savez(tmp_path / "large.npz", logits=(np.stack([logits, logits]) * 1e5).astype(np.float16))
    words = ["--method", "temperature", "--out", tmp_path / "c.json"]
    assert calibrate(tmp_path / "fit.npz", *words, "--apply", tmp_path / "large.npz", "--to", tmp_path / "to.npz") == 0
    written = np.load(tmp_path / "to.npz")["logits"]
    assert written.shape == (2, 500, 4)
    assert np.isfinite(written).all()
    assert np.array_equal(written.argmax(-1), np.load(tmp_path / "large.npz")["logits"].argmax(-1))


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_of_zero_stay_probabilities(tmp_path, method):
    logits, labels = unsure(scale=3.0)
    np.savez(tmp_path / "fit.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "hot.npz", probs=np.eye(4, dtype=np.float16)[labels])
    words = [
        "--method",
        method,
        "--out",
        tmp_path / "c.json",
        "--apply",
        tmp_path / "hot.npz",
        "--to",
        tmp_path / "to.npz",
    ]
    assert calibrate(tmp_path / "fit.npz", *words) == 0
    written = np.load(tmp_path / "to.npz")["probs"].astype(np.float64)
    np.testing.assert_allclose(written.sum(1), 1, atol=2e-3)
    assert np.array_equal(written.argmax(1), labels)


def test_logits_and_their_probabilities_are_calibrated_alike(tmp_path):
    """A calibrator fitted on logits means the same for the probabilities of these logits."""
    logits, labels = unsure(scale=3.0)
    np.savez(tmp_path / "logits.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "probs.npz", probs=softmax(logits, axis=1), labels=labels)
    for fit in ("logits", "probs"):
        found = []
        for apply, key in (("logits", "logits"), ("probs", "probs")):
            words = ["--method", "vector", "--out", tmp_path / "c.json", "--to", tmp_path / "to.npz"]
            assert calibrate(tmp_path / f"{fit}.npz", *words, "--apply", tmp_path / f"{apply}.npz") == 0
            values = np.load(tmp_path / "to.npz")[key]
            found.append(softmax(values, axis=1) if apply == "logits" else values)
        np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def table(path, names, logits, labels=None):
    """A .csv with one column per class; the labels are names."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"logits_{name}" for name in names), *([] if labels is None else ["label"])])
        for i, row in enumerate(logits):
            writer.writerow([*map(repr, map(float, row)), *([] if labels is None else [NAMES[labels[i]]])])
    return path


@pytest.fixture
def named(tmp_path):
    """Class 0 is far too likely, which vector scaling repairs and no temperature does."""
    logits, labels = unsure(scale=1.5)
    logits = logits + np.array([3.0, 0.0, 0.0, 0.0])
    return table(tmp_path / "fit.csv", NAMES, logits, labels), logits


def test_classes_are_matched_by_name(named, tmp_path):
    fit, logits = named
    order = [2, 0, 3, 1]
    other = table(tmp_path / "other.csv", [NAMES[k] for k in order], logits[:, order])
    same = table(tmp_path / "same.csv", NAMES, logits)
    found = {}
    for path in (other, same):
        words = ["--method", "vector", "--out", tmp_path / "c.json", "--apply", path, "--to", tmp_path / "to.csv"]
        assert calibrate(fit, *words) == 0
        found[path] = read_scores(tmp_path / "to.csv")
    assert found[other].class_names == tuple(NAMES[k] for k in order)
    torch.testing.assert_close(found[other].scores, found[same].scores[:, order])
    assert json.loads((tmp_path / "c.json").read_text())["class_names"] == NAMES
    # and from Python, with the file that was saved
    saved = Calibrator.load(tmp_path / "c.json")
    torch.testing.assert_close(read_scores(other).calibrated(saved), found[other].scores)
    torch.testing.assert_close(
        read_scores(other).entropy(saved), read_scores(same).entropy(saved), rtol=1e-4, atol=1e-6
    )


def test_other_classes_are_refused(named, tmp_path, capsys):
    fit, logits = named
    other = table(tmp_path / "other.csv", ["ant", "bee", "cat", "eel"], logits)
    words = ["--method", "temperature", "--out", tmp_path / "c.json", "--apply", other, "--to", tmp_path / "to.csv"]
    assert calibrate(fit, *words) == 2
    said = capsys.readouterr().err
    assert (
        "has the classes 'ant', 'bee', 'cat', 'eel', but the calibrator was fitted on 'ant', 'bee', 'cat', 'dog'"
        in said
    )
    assert said.count("\n") == 1
    assert not (tmp_path / "c.json").exists()
    assert not (tmp_path / "to.csv").exists()


@pytest.mark.parametrize(
    ("numbers", "code"), [("3579", 0), ("9573", 0), ("3456", 2), ("1234", 2), ("0123", 2), ("5793", 0)]
)
def test_numbers_that_are_not_positions_are_names(named, tmp_path, capsys, numbers, code):
    """Classes 3, 5, 7, 9 were matched by position with classes 1, 2, 3, 4."""
    _, logits = named
    columns = dict(zip("3579", logits.T, strict=True))

    def write(path, heads, labels=None):
        rows = np.column_stack([columns.get(head, logits[:, k]) for k, head in enumerate(heads)])
        lines = [[f"class{head}" for head in heads] + ([] if labels is None else ["label"])]
        lines += [[*map(repr, map(float, row))] + ([] if labels is None else [labels[i]]) for i, row in enumerate(rows)]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(lines)
        return path

    fit = write(tmp_path / "fit.csv", "3579", [int("3579"[k]) for k in unsure(scale=1.5)[1]])
    other = write(tmp_path / "other.csv", numbers)
    words = ["--method", "vector", "--out", tmp_path / "c.json", "--apply", other, "--to", tmp_path / "to.csv"]
    assert calibrate(fit, *words, *(["--columns", "class*"] if numbers == "3456" else [])) == code
    if code:
        assert "other.csv" in capsys.readouterr().err
        assert not (tmp_path / "to.csv").exists()
        return
    assert json.loads((tmp_path / "c.json").read_text())["class_names"] == list("3579")
    expected = Calibrator.load(tmp_path / "c.json").transform(logits)
    with (tmp_path / "to.csv").open() as file:
        found = {key: np.array(value, float) for key, *value in zip(*csv.reader(file), strict=True)}
    for k, number in enumerate("3579"):
        np.testing.assert_allclose(found[f"class{number}"], expected[:, k], atol=1e-4)


def test_names_in_one_file_only_are_said(named, tmp_path, capsys):
    fit, logits = named
    np.savez(tmp_path / "other.npz", logits=logits)
    words = ["--method", "temperature", "--out", tmp_path / "c.json", "--apply", tmp_path / "other.npz"]
    assert calibrate(fit, *words, "--to", tmp_path / "to.npz") == 0
    assert "has class names, so classes are matched by position" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_not_written(tmp_path, value):
    np.savez(tmp_path / "a.npz", logits=np.zeros((3, 2)))
    file = read_scores(tmp_path / "a.npz")
    scores = file.scores.clone()
    scores[1, 0] = value
    with pytest.raises(ValueError, match="the new scores contain NaN or infinity"):
        write_scores(file, scores, tmp_path / "b.npz")
    assert not (tmp_path / "b.npz").exists()


ODD = {
    "one row": (unsure(1), 1),
    "two rows": (unsure(2), 2),
    "three rows": (unsure(3), 3),
    "one class in the labels": ((unsure()[0], np.zeros(500, int)), 5),
    "all right": ((unsure()[0], unsure()[0].argmax(1)), 5),
    "all wrong": ((unsure()[0], (unsure()[0].argmax(1) + 1) % 4), 5),
    "all scores equal": ((np.ones((500, 4)), unsure()[1]), 5),
    "a class that never occurs": ((unsure()[0], np.minimum(unsure()[1], 2)), 5),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ODD)
def test_odd_files_end_in_figures_and_warnings(tmp_path, capsys, method, case):
    (logits, labels), folds = ODD[case]
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels)
    words = ["--method", method, "--out", tmp_path / "c.json", "--json", tmp_path / "f.json"]
    words += ["--report", tmp_path / "p.html"] if method == "temperature" else []
    words += ["--apply", tmp_path / "a.npz", "--to", tmp_path / "to.npz"]
    assert calibrate(tmp_path / "a.npz", *words) == 0
    found = json.loads((tmp_path / "f.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert found["check"]["folds"] == folds
    assert np.isfinite(np.load(tmp_path / "to.npz")["logits"]).all()
    saved = Calibrator.load(tmp_path / "c.json")
    if found["refused"] or case == "one row":
        assert found["refused"]
        assert saved.temperature_ == 1
        assert "worse than leaving the scores alone" in found["warnings"][0]
        assert "WARNING" in capsys.readouterr().out
    if saved.at_bound_:
        assert any("no minimum inside" in text for text in found["warnings"])
