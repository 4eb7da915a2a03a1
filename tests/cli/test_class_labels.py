"""Results name the classes as the file labels them, whichever number the first class has."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from avuc.cli import main

from .conftest import overconfident

NAMES = ["ant", "bee", "cat", "dog"]


def run(*words):
    return main([str(word) for word in words])


def softmax(logits):
    e = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def from_one(path):
    """Labels 1 … 4 in an .npz without class names."""
    logits, labels = overconfident(600, 0)
    np.savez(path.with_suffix(".npz"), logits=logits, labels=labels + 1)
    return path.with_suffix(".npz"), ["--first-label", 1], labels + 1


def columns_from_one(path):
    """Columns 1 … 4 and labels 1 … 4."""
    logits, labels = overconfident(600, 0)
    return table(path, softmax(logits), ["1", "2", "3", "4"], labels + 1), [], labels + 1


def columns_with_gaps(path):
    """Columns and labels 3, 5, 7, 9."""
    logits, labels = overconfident(600, 0)
    numbers = np.array([3, 5, 7, 9])[labels]
    return table(path, softmax(logits), ["3", "5", "7", "9"], numbers), [], numbers


def binary_of_class_0(path):
    """One number per row, for the class 0."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 600)
    logits = 3 * (1 - 2 * labels) + rng.normal(size=600)
    np.savez(path.with_suffix(".npz"), probs=1 / (1 + np.exp(-logits)), labels=labels)
    return path.with_suffix(".npz"), ["--positive", 0], labels


def binary_from_one(path):
    """One number per row, with the labels 1 and 2."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 600)
    np.savez(path.with_suffix(".npz"), logits=6.0 * labels - 3 + rng.normal(size=600), labels=labels + 1)
    return path.with_suffix(".npz"), ["--first-label", 1], labels + 1


def table(path, scores, names, labels):
    path = path.with_suffix(".csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "label"])
        writer.writerows([*map(repr, row), label] for row, label in zip(scores.tolist(), labels, strict=True))
    return path


FILES = [from_one, columns_from_one, columns_with_gaps, binary_of_class_0, binary_from_one]


def written(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("make", FILES)
@pytest.mark.parametrize("saved", [False, True])
def test_answers_and_sets_are_labels_of_the_file(make, saved, tmp_path):
    path, words, labels = make(tmp_path / "data")
    answers, sets, fit, figures = (tmp_path / name for name in ("a.csv", "s.csv", "fit.json", "figures.json"))
    for command, to, option in (("select", answers, ["--risk", 0.2]), ("conformal", sets, [])):
        apply = ["--apply", path, "--to", to, "--json", figures]
        if saved:
            assert run(command, path, *words, *option, "--out", fit) == 0
            # without labels: a table of other names than prob_NAME is read by its labels
            assert run(command, fit, *apply, *(["--columns", "3:9"] if make is columns_with_gaps else [])) == 0
        else:
            assert run(command, path, *words, *option, *apply) == 0
    truth = [str(label) for label in labels.tolist()]
    right = [row["answer"] == label for row, label in zip(written(answers), truth, strict=True) if row["answer"]]
    assert len(right) > 300
    assert np.mean(right) > 0.8
    assert np.mean([label in row["set"].split("|") for row, label in zip(written(sets), truth, strict=True)]) >= 0.9
    if not saved:
        classes = json.loads(figures.read_text())["held_out"]["classes"]
        assert sorted(each["name"] for each in classes) == sorted(set(truth))


@pytest.mark.parametrize("make", FILES)
def test_the_table_of_predicted_classes_has_the_labels_of_the_file(make, tmp_path):
    path, words, labels = make(tmp_path / "data")
    assert run("evaluate", path, *words, "--more", "--replicates", 0, "--json", tmp_path / "j.json") == 0
    classes = json.loads((tmp_path / "j.json").read_text())["more"]["classes"]
    found = {each["name"]: each["rows"] for each in classes}
    for label in set(labels.tolist()):
        assert abs(found[str(label)] - (labels == label).sum()) < 60


@pytest.mark.parametrize("command", ["conformal", "select"])
def test_other_class_numbers_are_refused(command, tmp_path, capsys):
    fitted, _, _ = columns_with_gaps(tmp_path / "gaps")
    other, _, _ = columns_from_one(tmp_path / "counted")
    for words in (["--check", other], ["--apply", other, "--to", tmp_path / "out.csv"]):
        assert run(command, fitted, *words) == 2
        assert "has the classes '1', '2', '3', '4', but" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["conformal", "select"])
def test_a_note_says_that_names_are_not_compared(command, tmp_path, capsys):
    logits, labels = overconfident(300, 1)
    named = table(tmp_path / "named", softmax(logits), NAMES, np.array(NAMES)[labels])
    np.savez(tmp_path / "plain.npz", logits=logits, labels=labels)
    for fit, new, only in ((named, tmp_path / "plain.npz", "the fit"), (tmp_path / "plain.npz", named, named)):
        assert run(command, fit, "--check", new, new) == 0
        note = f"only {only} has class names, so classes are matched by position"
        assert note.replace(" ", "") in "".join(capsys.readouterr().out.split())


def named_table(folder):
    logits, labels = overconfident(100, 0)
    return table(folder / "named", softmax(logits), NAMES, np.array(NAMES)[labels])


def test_classes_in_another_order_than_the_columns_are_refused(tmp_path, capsys):
    path = named_table(tmp_path)
    assert run("evaluate", path, "--classes", "ant,bee,cat,dog", "--replicates", 0) == 0
    assert run("evaluate", path, "--classes", "dog,bee,cat,ant") == 2
    assert "has another order than the columns" in capsys.readouterr().err
    tags = tmp_path / "tags.csv"
    tags.write_text("prob_cat,prob_dog,cat,dog\n" + "0.9,0.2,1,0\n0.1,0.8,1,1\n" * 10)
    assert run("evaluate", tags, "--task", "multilabel", "--classes", "dog,cat") == 2
    assert "has another order than the columns" in capsys.readouterr().err


def test_a_number_does_not_leave_out_a_named_class(tmp_path, capsys):
    assert run("evaluate", named_table(tmp_path), "--ignore-index", 1) == 2
    assert "are names, but --ignore-index 1 is a number" in capsys.readouterr().err
