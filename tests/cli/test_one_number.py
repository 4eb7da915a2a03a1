"""One number per row in a file without labels: the name of its column says which class of the fit it stands for."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from avuc.cli import main

RNG = np.random.default_rng(0)
TRUE = RNG.integers(0, 2, 800)
# of the class "yes", and not symmetric: a class that is read as the other one changes every result
YES = 1 / (1 + np.exp(-2 * (1.5 * (2 * TRUE - 1) + 1 + 2 * RNG.normal(size=800))))
WORDS = np.array(["no", "yes"])[TRUE]
COLUMNS = {
    "yes": {"prob_yes": YES},
    "no": {"prob_no": 1 - YES},
    "both": {"prob_no": 1 - YES, "prob_yes": YES},
    "swapped": {"prob_yes": YES, "prob_no": 1 - YES},
}


def run(*words):
    return main([str(word) for word in words])


def write(path, columns, labels=WORDS):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "label"])
        writer.writerows(zip(*[values.tolist() for values in columns.values()], labels, strict=True))
    return path


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def probability_of_yes(path):
    rows = read(path)
    if "prob_yes" in rows[0] and "prob_no" in rows[0]:
        np.testing.assert_allclose([float(row["prob_yes"]) + float(row["prob_no"]) for row in rows], 1, atol=1e-5)
    return [float(row["prob_yes"]) if "prob_yes" in row else 1 - float(row["prob_no"]) for row in rows]


@pytest.fixture
def files(tmp_path):
    return {name: write(tmp_path / f"{name}.csv", columns) for name, columns in COLUMNS.items()}


@pytest.mark.parametrize("other", COLUMNS)
@pytest.mark.parametrize("fit", COLUMNS)
def test_calibrators(files, tmp_path, fit, other):
    cal, to, again = tmp_path / "cal.json", tmp_path / "to.csv", tmp_path / "again.csv"
    words = ["--method", "vector", "--out", cal, "--keep-worse", "--replicates", 0, "--quiet"]
    assert run("calibrate", files["both"], *words, "--apply", files["both"], "--to", tmp_path / "right.csv") == 0
    assert run("calibrate", files[fit], *words, "--apply", files[other], "--to", to) == 0
    assert run("apply", cal, files[other], "--to", again, "--quiet") == 0
    right = probability_of_yes(tmp_path / "right.csv")
    assert np.ptp(right) > 0.5
    np.testing.assert_allclose(probability_of_yes(to), right, atol=5e-3)  # 1 − p has few digits where p is near 1
    np.testing.assert_allclose(probability_of_yes(again), right, atol=5e-3)


@pytest.mark.parametrize("command", [("conformal", "--coverage", 0.8), ("select", "--risk", 0.2)])
@pytest.mark.parametrize(("fit", "other"), [("yes", "no"), ("no", "yes"), ("both", "no"), ("swapped", "yes")])
def test_sets_and_answers(files, tmp_path, capsys, command, fit, other):
    name, *option = command
    column = "set" if name == "conformal" else "answer"
    saved, results = tmp_path / "fit.json", []
    assert run(name, files["both"], *option, "--apply", files["both"], "--to", tmp_path / "0.csv") == 0
    assert run(name, files[fit], *option, "--out", saved, "--apply", files[other], "--to", tmp_path / "1.csv") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"read as the score of '{other}', by the name of its column" in printed
    assert run(name, saved, "--apply", files[other], "--to", tmp_path / "2.csv", "--quiet") == 0
    for number in range(3):
        rows = read(tmp_path / f"{number}.csv")
        results.append(["|".join(sorted(row[column].split("|"))) for row in rows])
    assert len(set(results[0])) >= 3
    for result in results[1:]:  # 1 − p is rounded, which may decide about a row exactly at the threshold
        assert sum(a != b for a, b in zip(results[0], result, strict=True)) <= 2


def test_a_number_without_a_name_is_that_of_the_second_class_and_a_note_says_so(files, tmp_path, capsys):
    plain = write(tmp_path / "plain.csv", {"prob": 1 - YES})
    words = ["--method", "vector", "--out", tmp_path / "cal.json", "--replicates", 0]
    assert run("calibrate", files["no"], *words, "--apply", plain, "--to", tmp_path / "to.csv") == 0
    assert "one number per row was read as the score of 'no'" in " ".join(capsys.readouterr().out.split())
    assert run("apply", tmp_path / "cal.json", plain, "--to", tmp_path / "again.csv") == 0
    assert "one number per row was read as the score of 'no'" in " ".join(capsys.readouterr().out.split())


def test_a_fit_without_class_names_says_how_the_number_is_read(files, tmp_path, capsys):
    fit = write(tmp_path / "fit.csv", {"prob": YES}, TRUE.tolist())
    assert run("conformal", fit, "--apply", files["no"], "--to", tmp_path / "to.csv") == 0
    assert "the number of 'no' was read as that of its second class" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("labels", [WORDS, TRUE], ids=["words", "numbers"])
@pytest.mark.parametrize(("name", "option"), [("conformal", "--coverage"), ("select", "--risk")])
def test_a_check_reads_the_number_as_the_fit_did(tmp_path, name, option, labels):
    """Fitted with --positive, a check without it read `prob` as the other class: false drift, or an error."""
    values = sorted(set(labels.tolist()))
    table = write(tmp_path / "fit.csv", {"prob": 1 - YES}, labels.tolist())
    saved, figures = tmp_path / "fit.json", []
    assert run(name, table, option, 0.3, "--positive", values[0], "--out", saved, "--quiet") == 0
    one_class = labels == values[0]
    flipped = np.where(one_class, values[1], values[0])  # as after a drift: nearly every answer is wrong
    new = [(1 - YES, labels), (YES, labels), (1 - YES, flipped), ((1 - YES)[one_class], labels[one_class])]
    for number, (scores, of_rows) in enumerate(new):
        path, out = write(tmp_path / f"{number}.csv", {"prob": scores}, of_rows.tolist()), tmp_path / "out.json"
        assert run(name, saved, "--check", path, "--json", out, "--quiet") == 0
        [check] = json.loads(out.read_text())["checks"]
        answers, errors = check.get("answered"), check.get("errors")
        figures.append(check["coverage"] if name == "conformal" else errors / answers)
    threshold = json.loads(saved.read_text())["learned"]
    if name == "conformal":
        [limit] = threshold["thresholds"]
        p_true = [np.where(y == values[0], p, 1 - p) for p, y in new]
        np.testing.assert_allclose(figures, [np.mean(1 - p <= limit + 1e-6) for p in p_true], atol=0.003)
    else:
        limit = abs(threshold["threshold"] or 0)  # None: every row is answered
        for (p, y), error in zip(new, figures, strict=True):
            answered = np.maximum(p, 1 - p) > limit
            assert error == pytest.approx(np.mean(((p > 0.5) != (y == values[0]))[answered]), abs=0.003)


def test_positive_is_not_ignored(files, tmp_path, capsys):
    """With --positive, the columns of all files stand for that class; a saved fit refuses it for --apply."""
    misnamed, right = write(tmp_path / "misnamed.csv", {"prob_no": YES}), tmp_path / "right.csv"
    words = ["--method", "vector", "--out", tmp_path / "cal.json", "--replicates", 0, "--quiet"]
    assert run("calibrate", files["yes"], *words, "--apply", files["yes"], "--to", right) == 0
    to = tmp_path / "to.csv"
    assert run("calibrate", misnamed, *words, "--positive", "yes", "--apply", misnamed, "--to", to) == 0
    assert [row["prob_no"] for row in read(to)] == [row["prob_yes"] for row in read(right)]
    assert run("conformal", files["yes"], "--out", tmp_path / "sets.json", "--quiet") == 0
    words = ["--apply", files["no"], "--to", tmp_path / "sets.csv", "--positive", "no"]
    assert run("conformal", tmp_path / "sets.json", *words) == 2
    assert "name the column of the numbers by their class: prob_no" in capsys.readouterr().err


@pytest.mark.parametrize("names", ["logits_{}", "class_{}", "z_a{}", "model a {}"])
def test_a_second_file_with_more_classes_is_refused(tmp_path, capsys, names):
    """Its further columns were left out: of four classes three were calibrated, or counted in the entropy."""
    labels = RNG.integers(0, 3, 300)
    scores = 3 * RNG.normal(size=(300, 4)) + 3 * np.eye(4)[labels]
    named = {names.format(k): scores[:, k] for k in range(4)}
    four = write(tmp_path / "four.csv", named, labels)
    three = write(tmp_path / "three.csv", dict(list(named.items())[:3]), labels)
    words = ["--method", "temperature", "--out", tmp_path / "cal.json", "--replicates", 0]
    assert run("calibrate", three, *words, "--apply", four, "--to", tmp_path / "to.csv") == 2
    assert "has 4 classes, but" in capsys.readouterr().err
    assert run("evaluate", three, "--ood", four, "--replicates", 0) == 2
    assert "has 4 classes, but" in capsys.readouterr().err


def test_a_second_file_with_more_named_classes_is_refused(tmp_path, capsys):
    labels = RNG.integers(0, 3, 300)
    scores = 3 * RNG.normal(size=(300, 4)) + 3 * np.eye(4)[labels]
    named = {f"z_{name}": scores[:, k] for k, name in enumerate(["cat", "cow", "dog", "fish"])}
    three = write(tmp_path / "three.csv", dict(list(named.items())[:3]), np.array(["cat", "cow", "dog"])[labels])
    four = write(tmp_path / "four.csv", named, labels)
    words = ["--method", "temperature", "--out", tmp_path / "cal.json", "--replicates", 0]
    assert run("calibrate", three, *words, "--apply", four, "--to", tmp_path / "to.csv") == 2
    assert "z_fish" in capsys.readouterr().err
