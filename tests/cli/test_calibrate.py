"""`avuc calibrate`: what it fits, what it says, what it writes."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

from avuc import metrics
from avuc.calibration import CALIBRATORS, AvUTemperatureScaling, Calibrator, TemperatureScaling
from avuc.cli import main
from avuc.core.calibrator_names import CALIBRATOR_NAMES as METHODS
from avuc.evaluation import compare
from avuc.evaluation.compare import hurt_scores
from avuc.evaluation.files import read_scores
from avuc.predictions import Predictions

# they give some classes a probability of 0, which the check of a few hundred rows refuses
FREE_FORM = ("isotonic", "histogram")


@pytest.mark.parametrize("method", METHODS)
def test_fit_apply_and_document(validation, probs, tmp_path, method, capsys):
    out, moved, figures = tmp_path / "cal.json", tmp_path / "moved.npz", tmp_path / "figures.json"
    words = ["--apply", str(probs), "--to", str(moved), "--json", str(figures), "--replicates", "20"]
    words += ["--keep-worse"] if method in FREE_FORM else []
    assert main(["calibrate", str(validation), "--method", method, "--out", str(out), *words]) == 0
    file, applied = read_scores(validation), read_scores(probs)
    expected = CALIBRATORS[method]().fit(file.scores, file.labels)
    saved = Calibrator.from_json(out.read_text())
    assert saved.to_json() == expected.to_json()
    again = read_scores(moved)
    assert again.scores_from == "key 'predictions'"
    assert torch.equal(again.labels, applied.labels)
    torch.testing.assert_close(again.scores, expected.transform(applied.logits()).softmax(1))
    found = json.loads(figures.read_text())
    assert {"n", "num_classes", "samples", "threshold", "metrics", "intervals", "detection"} <= set(found)
    assert {"temperature", "before", "after", "warnings"} <= set(found)
    assert found["before"] == metrics.evaluate(file.predictions())
    assert found["temperature"] == (expected.temperature_ if isinstance(expected, TemperatureScaling) else None)
    assert found["after"]["ece"] == found["metrics"]["ece"]
    if method in ("temperature", "vector"):
        assert found["after"]["ece"] < found["before"]["ece"]
        assert found["after"]["nll"] < found["before"]["nll"]
    assert "held-out rows (5 parts" in capsys.readouterr().out.replace("\n", " ")


def test_figures_after_come_from_rows_the_fit_has_not_seen(validation):
    file = read_scores(validation)
    _, result = compare(file, "temperature", folds=4, replicates=0, seed=5)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(5))
    probs = torch.empty(400, 4)
    for part in order.reshape(4, 100):
        rest = torch.tensor([i for i in range(400) if i not in set(part.tolist())])
        fitted = CALIBRATORS["temperature"]().fit(file.scores[rest], file.labels[rest])
        probs[part] = fitted.transform(file.scores[part]).softmax(1)
    expected = metrics.evaluate(Predictions(probs, file.labels))
    assert result.after.metrics == pytest.approx(expected, rel=1e-5)


def test_changes_are_paired(validation):
    file = read_scores(validation)
    _, result = compare(file, "temperature", replicates=50)
    value, low, high = result.change["nll"]
    assert value == pytest.approx(result.after.metrics["nll"] - result.before.metrics["nll"])
    assert low <= value <= high < 0
    for options in ({}, {"bins": 10, "threshold": 0.5}):
        _, result = compare(file, "avuts", replicates=50, **options)
        assert set(result.change) == set(metrics.METRICS)
        for name, (value, low, high) in result.change.items():
            assert value == result.after.metrics[name] - result.before.metrics[name]
            assert low <= value <= high, name
    _, plain = compare(file, "temperature", replicates=0)
    assert np.isnan(plain.change["nll"][1])


def test_the_guard_says_that_it_acted(tmp_path, capsys):
    """Ideal logits, sharpened: entropy happens to match the error rate, and any higher temperature spoils that."""
    generator = torch.Generator().manual_seed(0)
    ideal = 2 * torch.randn(3000, 10, generator=generator)
    labels = torch.multinomial(ideal.softmax(1), 1, generator=generator)[:, 0]
    np.savez(tmp_path / "v.npz", logits=(1.26 * ideal).numpy(), labels=labels.numpy())
    words = ["--out", str(tmp_path / "c.json"), "--replicates", "0"]
    assert main(["calibrate", str(tmp_path / "v.npz"), "--method", "avuts", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the guard moved it back to" in said
    assert main(["calibrate", str(tmp_path / "v.npz"), "--method", "temperature", *words]) == 0
    assert "the guard" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ece": (-0.1, -0.2, -0.05), "nll": (0.2, 0.1, 0.3)}, ["ECE got better, but NLL got worse by 0.2000"]),
        ({"avu": (0.1, 0.05, 0.2), "brier": (0.2, -0.1, 0.3)}, ["AvU got better, but the Brier score got worse"]),
        ({"ece": (-0.1, -0.2, 0), "avu": (0.1, 0, 1), "nll": (1, 0.5, 2), "brier": (1, 0.5, 2)}, ["ECE and AvU"] * 2),
        ({"ece": (-0.1, -0.2, -0.05), "nll": (-0.2, -0.3, -0.1)}, []),
        ({"ece": (0.1, 0.05, 0.2), "nll": (0.2, 0.1, 0.3)}, []),
        ({"ece": (0.0, 0.0, 0.0), "avu": (0.0, 0.0, 0.0), "nll": (0.2, 0.1, 0.3)}, []),
    ],
)
def test_worse_scores_are_said(change, says):
    found = hurt_scores(change)
    assert len(found) == len(says)
    for line, start in zip(found, says, strict=True):
        assert line.startswith(start)
        assert "less accurate than before" in line
    if "avu" in change and "brier" in change and len(says) == 1:
        assert "which may be chance" in found[0]


def test_the_warning_is_prominent_everywhere(validation, tmp_path, monkeypatch, capsys):
    """A calibrator that buys ECE with NLL: seen on the terminal, in the document and on the page."""
    module = sys.modules[compare.__module__]
    monkeypatch.setattr(module, "hurt_scores", lambda change: ["ECE got better, but NLL got worse <b>"])
    words = ["--json", str(tmp_path / "a.json"), "--report", str(tmp_path / "a.html"), "--replicates", "0"]
    assert main(["calibrate", str(validation), "--method", "temperature", "--out", str(tmp_path / "c"), *words]) == 0
    assert "WARNING  ECE got better, but NLL got worse <b>" in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())["warnings"] == ["ECE got better, but NLL got worse <b>"]
    page = (tmp_path / "a.html").read_text()
    assert '<div class="warning" role="alert">' in page
    assert "NLL got worse &lt;b&gt;" in page


@pytest.fixture(scope="module")
def forest(tmp_path_factory):
    """`predict_proba` of twenty trees on real digits, with many zeros; 50 rows of training: often sure and wrong."""
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    images, digits = images[order], digits[order]
    paths = {}
    for rows in (50, 100, 600):
        probs = RandomForestClassifier(20, random_state=0).fit(images[:rows], digits[:rows]).predict_proba(images[897:])
        paths[rows] = tmp_path_factory.mktemp("forest") / f"{rows}.npz"
        np.savez(paths[rows], probs=probs, labels=digits[897:])
    return paths


def test_a_worse_calibrator_is_refused_loudly(forest, tmp_path, capsys):
    out, figures, page, moved = (tmp_path / name for name in ("c.json", "f.json", "p.html", "m.npz"))
    words = ["calibrate", str(forest[50]), "--method", "temperature", "--out", str(out), "--replicates", "20"]
    more = ["--json", str(figures), "--report", str(page), "--apply", str(forest[100]), "--to", str(moved)]
    assert main([*words, *more]) == 0
    said = " ".join(capsys.readouterr().out.split())
    text = "this temperature calibrator is worse than leaving the scores alone: the Brier score rises from 0.5086 to 0."
    assert f"WARNING {text}" in said
    assert "The temperature calibrator was refused" in said
    assert "--method auto looks for one that helps" in said
    assert text in page.read_text()
    found = json.loads(figures.read_text())
    assert text in found["warnings"][0]
    # what is written changes nothing, and the document says so
    assert found["temperature"] == 1
    assert found["after"] == found["before"]
    assert set(map(tuple, found["change"].values())) == {(0, 0, 0)}
    saved = Calibrator.load(out)
    assert saved.temperature_ == 1
    assert saved.num_classes_ == 10
    kept = np.load(forest[100])["probs"]
    np.testing.assert_allclose(np.load(moved)["probs"], kept, rtol=1e-6)
    assert np.array_equal(np.load(moved)["probs"] == 0, kept == 0)
    # and what was refused, with its figures
    refused = found["refused"]
    assert refused["temperature"] == pytest.approx(4.28, abs=0.01)
    assert refused["after"]["brier"] - refused["before"]["brier"] == pytest.approx(refused["change"]["brier"][0])
    assert refused["after"]["brier"] > refused["before"]["brier"] + 0.1
    assert any("Brier" in reason for reason in refused["reasons"])
    assert found["check"]["worse"]
    assert found["check"]["figures"]["brier"]["after"] == pytest.approx(refused["after"]["brier"])
    assert (found["check"]["rows"], found["check"]["rows_given"], found["check"]["folds"]) == (900, 900, 5)


def test_keep_worse_writes_it_all_the_same(forest, tmp_path, capsys):
    out, figures = tmp_path / "c.json", tmp_path / "f.json"
    words = ["--out", str(out), "--json", str(figures), "--replicates", "0", "--keep-worse"]
    assert main(["calibrate", str(forest[50]), "--method", "temperature", *words]) == 0
    assert "worse than leaving the scores alone" in " ".join(capsys.readouterr().out.split())
    found = json.loads(figures.read_text())
    assert found["refused"] is None
    assert found["check"]["worse"]
    assert "worse than leaving the scores alone" in found["warnings"][0]
    assert Calibrator.load(out).temperature_ == found["temperature"] == pytest.approx(4.28, abs=0.01)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in FREE_FORM])
@pytest.mark.parametrize("rows", [100, 600])
def test_zeros_of_a_forest_do_not_spoil_the_fit(forest, tmp_path, method, rows):
    """100 rows of training gave T = 4.12 and an ECE of .305 before, .557 after, without a warning."""
    words = ["--out", str(tmp_path / "c.json"), "--json", str(tmp_path / "f.json"), "--replicates", "0"]
    assert main(["calibrate", str(forest[rows]), "--method", method, *words]) == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["refused"] is None
    limits = {"nll": 0.8, "brier": 0.8, "ece": 0.2}
    limits |= {"venn-abers": {"ece": 0.45}, "dirichlet": {"brier": 0.82, "ece": 0.3}}.get(method, {})
    for name, factor in limits.items():
        assert found["after"][name] < factor * found["before"][name]


@pytest.mark.parametrize("method", FREE_FORM)
def test_few_rows_refuse_a_free_form(validation, tmp_path, method):
    words = ["--out", str(tmp_path / "c.json"), "--json", str(tmp_path / "f.json"), "--replicates", "0"]
    assert main(["calibrate", str(validation), "--method", method, *words]) == 0
    assert "NLL rises" in json.loads((tmp_path / "f.json").read_text())["warnings"][0]
    assert Calibrator.load(tmp_path / "c.json").is_identity


def test_draws_that_a_calibrator_makes_worse(tmp_path, monkeypatch):
    """The check covers Monte Carlo logits: the printed AvUC loss, as if it were the default."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 600)
    seen = np.where(rng.random(600) < 0.4, rng.integers(0, 10, 600), labels)
    np.savez(tmp_path / "a.npz", logits=0.6 * (rng.normal(size=(8, 600, 10)) + 3 * np.eye(10)[seen]), labels=labels)
    file = read_scores(tmp_path / "a.npz")
    calibrator, result = compare(file, "avuts", replicates=0)
    assert result.refused is None
    monkeypatch.setitem(CALIBRATORS, "avuts", Printed)
    calibrator, result = compare(file, "avuts", replicates=0)
    assert calibrator.temperature_ == 1
    assert result.refused.temperature == 0.05
    assert result.refused.after.metrics["nll"] > result.before.metrics["nll"] + 0.5
    kept, result = compare(file, "avuts", replicates=0, keep_worse=True)
    assert kept.temperature_ == 0.05


class Printed(AvUTemperatureScaling):
    def __init__(self):
        super().__init__("paper")


def test_a_fit_at_the_edge_is_a_warning(tmp_path, capsys):
    """Labels that contradict the logits: the best temperature is infinite."""
    logits = np.random.default_rng(0).normal(size=(300, 3)) * 5
    np.savez(
        tmp_path / "a.npz", logits=logits, labels=np.where(np.arange(300) < 250, logits.argmin(1), logits.argmax(1))
    )
    words = ["--method", "temperature", "--out", str(tmp_path / "c.json"), "--replicates", "0"]
    assert main(["calibrate", str(tmp_path / "a.npz"), *words]) == 0
    assert "WARNING" in capsys.readouterr().out


def test_draws(tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    draws = rng.normal(size=(4, 200, 3)) + 3 * np.eye(3)[labels]
    np.savez(tmp_path / "a.npz", logits=draws * 3, labels=labels)
    words = ["--method", "temperature", "--out", str(tmp_path / "c.json"), "--replicates", "0"]
    words += ["--apply", str(tmp_path / "a.npz"), "--to", str(tmp_path / "b.npz"), "--json", str(tmp_path / "j.json")]
    assert main(["calibrate", str(tmp_path / "a.npz"), *words]) == 0
    assert "4 samples of 200 × 3" in capsys.readouterr().out
    t = json.loads((tmp_path / "j.json").read_text())["temperature"]
    np.testing.assert_allclose(np.load(tmp_path / "b.npz")["logits"], draws * 3 / t, rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--apply", "test.npz"], "--apply and --to need each other"),
        (["--to", "x.npz"], "--apply and --to need each other"),
        (["--apply", "test.npz", "--to", "x.csv"], "must have the format"),
        (["--apply", "test.npz", "--to", "test.npz"], "would overwrite an input"),
        (["--apply", "five.npz", "--to", "x.npz"], "both files must come from the same model"),
        (["--folds", "1"], "holds out no rows"),
        (["--json", "cal.json"], "are the same file"),
        (["--json", "missing/x.json"], "does not exist"),
    ],
)
def test_bad_requests_write_nothing(validation, probs, tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    np.savez("five.npz", logits=np.zeros((3, 5)))
    before = sorted(p.name for p in tmp_path.iterdir())
    assert main(["calibrate", "validation.npz", "--method", "temperature", "--out", "cal.json", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_no_labels_is_refused(outside, tmp_path, capsys):
    assert main(["calibrate", str(outside), "--method", "temperature", "--out", str(tmp_path / "c.json")]) == 2
    assert "no labels" in capsys.readouterr().err
    assert not (tmp_path / "c.json").exists()


def test_groups_of_a_multilabel_file_are_refused(tmp_path, capsys):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 3))
    np.savez(tmp_path / "tags.npz", logits=logits, labels=(logits > 0).astype(int), patient=np.arange(60) // 3)
    words = ["calibrate", tmp_path / "tags.npz", "--task", "multilabel", "--method", "temperature"]
    assert main([str(word) for word in [*words, "--out", tmp_path / "c.json", "--group", "patient"]]) == 2
    assert "--group is not for multi-label models" in capsys.readouterr().err


def test_a_note_says_that_names_of_labels_are_not_compared(tmp_path, capsys):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 2))
    labels = (logits + rng.normal(size=logits.shape) > 0).astype(int)
    for name in ("plain", "named"):
        np.savez(tmp_path / f"{name}.npz", logits=logits, labels=labels)
    for fit, new, only in (("plain", "named", tmp_path / "named.npz"), ("named", "plain", "named.json")):
        words = {"plain": [], "named": ["--classes", "cat,dog"]}
        options = ["--task", "multilabel", "--method", "temperature", "--out", tmp_path / f"{fit}.json", *words[fit]]
        assert main([str(word) for word in ["calibrate", tmp_path / f"{fit}.npz", *options]]) == 0
        capsys.readouterr()
        options = [tmp_path / f"{new}.npz", "--to", tmp_path / "to.npz", *words[new]]
        assert main([str(word) for word in ["apply", tmp_path / f"{fit}.json", *options]]) == 0
        note = f"only {only} has names of labels, so labels are matched by position"
        assert note.replace(" ", "") in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("method", ["temperature", "smoothed", "ets"])
def test_every_prediction_is_only_said_of_a_temperature_alone(method, tmp_path, capsys):
    """A mixture with the uniform distribution lowers the highest confidences, whatever the temperature does."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 5, 2000)
    logits = 1.2 * (rng.normal(size=(2000, 5)) + 2.5 * np.eye(5)[labels])
    noisy = np.where(rng.random(2000) < 0.06, rng.integers(0, 5, 2000), labels)
    path, to = tmp_path / "a.npz", tmp_path / "to.npz"
    np.savez(path, logits=logits, labels=noisy)
    words = ["--method", method, "--out", str(tmp_path / "c.json"), "--replicates", "0", "--apply", str(path)]
    assert main(["calibrate", str(path), *words, "--to", str(to)]) == 0
    said = "raises the confidence of every prediction" in capsys.readouterr().out
    before, after = (torch.from_numpy(np.load(each)["logits"]).softmax(1).amax(1) for each in (path, to))
    assert said == (method == "temperature")
    assert bool((after > before).all()) or not said
