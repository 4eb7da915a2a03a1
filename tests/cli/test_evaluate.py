"""`avuc evaluate`: the document, its equality with the library, its outputs."""

from __future__ import annotations

import io
import json
from argparse import Namespace

import numpy as np
import pytest

from avuc import metrics
from avuc.cli import main
from avuc.cli.inputs import replicates_for
from avuc.core.progress import delayed_progress
from avuc.evaluation.files import read_scores

KEYS = {"n", "num_classes", "samples", "threshold", "metrics", "intervals", "detection"}
NAMES = [
    "accuracy",
    "nll",
    "brier",
    "ece",
    "uce",
    "avu",
    "avu_auc",
    "p_accurate_given_certain",
    "p_uncertain_given_inaccurate",
    "mean_entropy",
]


def document(path, *words):
    out = path.parent / "out.json"
    assert main(["evaluate", str(path), "--json", str(out), *words]) == 0

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(out.read_text(), parse_constant=refuse)


def test_schema_and_equality_with_the_library(validation, outside, capsys):
    found = document(validation, "--ood", str(outside), "--replicates", "60", "--seed", "3")
    assert set(found) >= KEYS
    predictions = read_scores(validation).predictions()
    assert {k: v for k, v in found["metrics"].items() if k != "mean_confidence"} == metrics.evaluate(predictions)
    assert set(NAMES) <= set(found["metrics"])
    assert found["metrics"]["mean_confidence"] == pytest.approx(float(predictions.confidence.double().mean()))
    for name, interval in metrics.intervals(predictions, replicates=60, seed=3).items():
        assert found["intervals"][name] == pytest.approx([interval.low, interval.high], nan_ok=True)
    expected = metrics.detection(predictions.entropy, read_scores(outside).entropy())
    assert found["detection"] == pytest.approx(expected)
    assert found["replicates"] == 60
    for name, (low, high) in found["detection_intervals"].items():
        assert low <= expected[name] + 1e-12
        assert expected[name] - 1e-12 <= high
    assert set(found["detection_intervals"]) == set(expected)
    assert set(expected) == {"auroc", "aupr_in", "aupr_out", "detection_accuracy", "fpr95", "wasserstein"}
    assert (found["n"], found["num_classes"], found["samples"]) == (400, 4, 1)
    assert found["threshold"] == metrics.auto_threshold(predictions.probs, predictions.labels)
    out = capsys.readouterr().out
    assert "The model is overconfident: it says" in out
    assert "out-of-distribution rows" in out
    assert "Intervals from 60 bootstrap replicates" in out


def test_fewer_replicates_for_many_rows():
    for rows, replicates in ((400, 1000), (20_000, 1000), (50_000, 400), (10**6, 200)):
        assert replicates_for(Namespace(replicates=None), rows) == replicates
    assert replicates_for(Namespace(replicates=7), 10**6) == 7


@pytest.mark.parametrize("patience", [-1.0, 1e9])
def test_progress_appears_only_when_it_takes_long(monkeypatch, patience):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("avuc.core.progress.DELAY_SECONDS", patience)
    with delayed_progress("intervals", 3) as advance:
        for _ in range(3):
            advance(1)
    assert ("intervals" in screen.getvalue() and "3/3" in screen.getvalue()) == (patience < 0)


def test_options_reach_the_library(validation):
    found = document(validation, "--replicates", "0", "--bins", "7", "--threshold", "0.4")
    predictions = read_scores(validation).predictions()
    expected = metrics.evaluate(predictions, bins=7, threshold=0.4)
    assert {name: found["metrics"][name] for name in expected} == expected
    assert found["threshold"] == 0.4
    assert found["intervals"] == {}
    assert found["detection"] == {}


def test_what_was_found_is_said(probs, capsys):
    assert main(["evaluate", str(probs), "--replicates", "0"]) == 0
    said = capsys.readouterr().out
    assert "300 × 4 probabilities from key 'predictions', labels from 'ground_truth'" in said.replace("\n", " ")


def test_undefined_figures_are_null(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.eye(3) * 5, labels=[0, 1, 2])  # no mistakes
    found = document(tmp_path / "a.npz", "--replicates", "20")
    assert found["metrics"]["p_uncertain_given_inaccurate"] is None


@pytest.mark.parametrize("rows", [1, 2])
def test_very_few_rows(tmp_path, rows, capsys):
    np.savez(tmp_path / "a.npz", logits=2 * np.eye(3)[:rows], labels=[0, 0][:rows])
    found = document(tmp_path / "a.npz", "--replicates", "20", "--report", str(tmp_path / "a.html"))
    assert found["n"] == rows
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")


def test_runs_repeat_exactly(validation):
    assert document(validation, "--replicates", "30") == document(validation, "--replicates", "30")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--json", "missing/out.json"], "does not exist; create missing first"),
        (["--json", "validation.npz"], "would overwrite an input"),
        (["--json", "./link.npz"], "would overwrite an input"),
        (["--json", "folder"], "is a folder"),
        (["--json", "a.html", "--report", "./a.html"], "are the same file"),
        (["--json", "outside.npz", "--ood", "outside.npz"], "would overwrite an input"),
        (["--ood", "five.npz"], "both files must come from the same model"),
        (["--ood", "none.npz"], "No such file"),
    ],
)
def test_bad_outputs_and_pairs(validation, outside, tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.npz").symlink_to(validation)
    np.savez(tmp_path / "five.npz", logits=np.zeros((3, 5)))
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert main(["evaluate", "validation.npz", "--replicates", "0", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


def test_all_outputs_or_none(validation, tmp_path, monkeypatch, capsys):
    """The report fails while it is written: the JSON, already complete beside its place, does not appear either."""
    from avuc.cli import evaluate

    real = evaluate.text_job

    def job(text):
        def fail(path):
            raise OSError(28, "No space left on device")

        return fail if text.startswith("<!DOCTYPE") else real(text)

    monkeypatch.setattr(evaluate, "text_job", job)
    words = ["--replicates", "0", "--json", str(tmp_path / "a.json"), "--report", str(tmp_path / "a.html")]
    assert main(["evaluate", str(validation), *words]) == 2
    assert "No space left" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {validation.name}


@pytest.mark.parametrize("link", ["same", "hard", "symbolic"])
@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_no_output_overwrites_the_labels_beside_a_npy(tmp_path, capsys, command, link):
    """test_labels.npy is read with test_logits.npy without being named."""
    np.save(tmp_path / "test_logits.npy", np.eye(3))
    np.save(tmp_path / "test_labels.npy", [0, 1, 2])
    before = (tmp_path / "test_labels.npy").read_bytes()
    out = tmp_path / ("test_labels.npy" if link == "same" else "other.npy")
    if link == "hard":
        out.hardlink_to(tmp_path / "test_labels.npy")
    elif link == "symbolic":
        out.symlink_to(tmp_path / "test_labels.npy")
    words = [command, str(tmp_path / "test_logits.npy"), "--replicates", "0"]
    if command == "calibrate":
        words += ["--method", "temperature", "--out", str(out)]
    else:
        words += ["--json", str(out)]
    assert main(words) == 2
    assert "would overwrite an input" in capsys.readouterr().err
    assert (tmp_path / "test_labels.npy").read_bytes() == before


def test_outputs_that_are_one_file_by_a_hard_link(validation, tmp_path, capsys):
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.html").hardlink_to(tmp_path / "a.json")
    words = ["--json", str(tmp_path / "a.json"), "--report", str(tmp_path / "b.html")]
    assert main(["evaluate", str(validation), "--replicates", "0", *words]) == 2
    assert "are the same file" in capsys.readouterr().err


def test_an_output_that_is_a_loop_of_links(validation, tmp_path, capsys):
    (tmp_path / "loop.json").symlink_to("loop.json")
    assert main(["evaluate", str(validation), "--replicates", "0", "--json", str(tmp_path / "loop.json")]) == 2
    assert "is a loop of symbolic links" in capsys.readouterr().err
