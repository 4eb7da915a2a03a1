"""`avuc conformal` and `avuc select`: what they find, write and refuse."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
import torch

from avuc import Predictions
from avuc.cli import conformal, main, select
from avuc.conformal import ConformalClassifier, SelectiveClassifier
from avuc.conformal.scores import METHODS
from avuc.conformal.selective import SCORES

from .conftest import overconfident

NAMES = ["ant", "bee", "cat", "dog"]


def run(*words):
    return main([str(word) for word in words])


@pytest.fixture
def new(tmp_path):
    logits, labels = overconfident(300, 9)
    np.savez(tmp_path / "new.npz", logits=logits, labels=labels)
    return tmp_path / "new.npz"


@pytest.fixture
def moved(tmp_path):
    """Rows whose labels are wrong."""
    logits, labels = overconfident(300, 9)
    np.savez(tmp_path / "moved.npz", logits=logits, labels=(labels + 1) % 4)
    return tmp_path / "moved.npz"


def predictions(path):
    data = np.load(path)
    return Predictions.from_logits(torch.from_numpy(data["logits"]), data["labels"])


def test_names_are_those_of_the_library():
    assert conformal.METHODS == METHODS
    assert select.SCORES == SCORES


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".npz"])
def test_the_sets_are_those_of_the_library(validation, new, tmp_path, method, suffix, capsys):
    to, out, figures = tmp_path / f"sets{suffix}", tmp_path / "sets.json", tmp_path / "figures.json"
    words = ["conformal", validation, "--coverage", 0.8, "--method", method, "--seed", 3, "--json", figures]
    assert run(*words, "--apply", new, "--to", to, "--out", out, "--check", new) == 0
    text = capsys.readouterr().out
    assert "on a held-out half" in text
    assert "on new rows" in text
    fitted = ConformalClassifier(method, 0.8, seed=3).fit(predictions(validation))
    expected = fitted.predict_sets(predictions(new)).numpy()
    if suffix == ".npz":
        assert np.load(to)["sets"].tolist() == expected.tolist()
        assert np.load(to)["size"].tolist() == expected.sum(1).tolist()
    else:
        rows = list(csv.DictReader(to.read_text().splitlines(), delimiter="\t" if suffix == ".tsv" else ","))
        assert [row["set"] for row in rows] == ["|".join(map(str, np.flatnonzero(row))) for row in expected]
        assert [int(row["size"]) for row in rows] == expected.sum(1).tolist()
    document = json.loads(figures.read_text())
    assert document["thresholds"] == fitted.thresholds_.tolist()
    assert document["coverage_interval"] == list(fitted.coverage_interval())
    assert document["checks"][0]["coverage"] == fitted.check(predictions(new)).coverage
    assert document["held_out"]["rows"] == 200
    assert document["applied"]["mean_size"] == pytest.approx(expected.sum(1).mean())
    # the saved fit gives the same sets
    assert run("conformal", out, "--apply", new, "--to", tmp_path / "again.npz", "--quiet") == 0
    assert np.load(tmp_path / "again.npz")["sets"].tolist() == expected.tolist()


@pytest.mark.parametrize("score", SCORES)
def test_the_answers_are_those_of_the_library(validation, new, tmp_path, score, capsys):
    to, out = tmp_path / "answers.csv", tmp_path / "select.json"
    words = ["select", validation, "--risk", 0.2, "--level", 0.9, "--score", score, "--json", "-"]
    assert run(*words, "--apply", new, "--to", to, "--out", out, "--check", new) == 0
    document = json.loads(capsys.readouterr().out)
    fitted = SelectiveClassifier(0.2, 0.9, score=score).fit(predictions(validation))
    rows = predictions(new)
    answered = fitted.answers(rows).tolist()
    assert 0 < sum(answered) < len(answered)
    found = list(csv.DictReader(to.read_text().splitlines()))
    expected = [str(k) if yes else "" for k, yes in zip(rows.predicted.tolist(), answered, strict=True)]
    assert [row["answer"] for row in found] == expected
    assert [float(row[score]) for row in found] == pytest.approx(getattr(rows, score).tolist(), rel=1e-6)
    assert document["answered"] == fitted.answered_
    assert document["checks"][0]["errors"] == fitted.check(rows).errors
    assert run("select", out, "--apply", new, "--to", tmp_path / "again.npz", "--quiet") == 0
    assert np.load(tmp_path / "again.npz")["answered"].tolist() == answered


@pytest.mark.parametrize("words", [["conformal"], ["select", "--risk", 0.2]])
def test_drift_is_a_warning(validation, new, moved, tmp_path, words, capsys):
    out = tmp_path / "fit.json"
    assert run(words[0], validation, *words[1:], "--out", out, "--check", new, "--quiet") == 0
    assert capsys.readouterr().err == ""
    assert run(words[0], out, "--check", moved, "--json", tmp_path / "j.json", "--quiet") == 0
    assert "Drift" in capsys.readouterr().err
    assert json.loads((tmp_path / "j.json").read_text())["checks"][0]["drift"] is True


def test_classes_are_matched_by_name(tmp_path):
    logits, labels = overconfident(200, 3)

    def table(name, order):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["label", *(f"logit_{NAMES[k]}" for k in order)])
            writer.writerows([NAMES[y], *(float(row[k]) for k in order)] for row, y in zip(logits, labels, strict=True))
        return tmp_path / name

    fit, other = table("fit.csv", [0, 1, 2, 3]), table("other.csv", [2, 0, 3, 1])
    words = ["conformal", fit, "--method", "aps", "--class-conditional", "--quiet", "--json", tmp_path / "j.json"]
    found = []
    for apply in (fit, other):
        assert run(*words, "--apply", apply, "--to", tmp_path / "to.csv", "--check", apply) == 0
        check = json.loads((tmp_path / "j.json").read_text())["checks"][0]
        found.append(((tmp_path / "to.csv").read_text(), [each["coverage"] for each in check["classes"]]))
        assert [each["name"] for each in check["classes"]] == NAMES
    assert found[0] == found[1]
    assert "bee" in found[0][0]


def test_dense_binary_and_draws(tmp_path, capsys):
    rng = np.random.default_rng(0)
    probs = rng.random((40, 1, 3, 3))
    labels = (rng.random((40, 3, 3)) < probs[:, 0]).astype(int)
    np.savez(tmp_path / "dense.npz", probs=probs, labels=labels)
    for command, name in (("conformal", "sets"), ("select", "answered")):
        words = [command, tmp_path / "dense.npz", "--apply", tmp_path / "dense.npz", "--quiet"]
        assert run(*words, "--to", tmp_path / "to.npz", *(["--risk", 0.3] if command == "select" else [])) == 0
        shape = np.load(tmp_path / "to.npz")[name].shape
        assert shape == ((40, 3, 3, 2) if name == "sets" else (40, 3, 3))
        figures = tmp_path / "figures.json"
        words += ["--check", tmp_path / "dense.npz", "--json", figures]
        capsys.readouterr()
        assert run(*words, "--to", tmp_path / "to.npz", *(["--risk", 0.3] if command == "select" else [])) == 0
        found = json.loads(figures.read_text(encoding="utf-8"))
        # the halves have different images
        assert (found["held_out"]["images"], found["held_out"]["rows"], found["checks"][0]["images"]) == (20, 180, 40)
        assert "independent" not in str(found["notes"]) + capsys.readouterr().err
    draws = np.stack([overconfident(100, seed)[0] for seed in (1, 2)])
    np.savez(tmp_path / "draws.npz", logits=draws, labels=overconfident(100, 1)[1])
    words = ["conformal", tmp_path / "draws.npz", "--apply", tmp_path / "draws.npz", "--to", tmp_path / "to.npz"]
    assert run(*words, "--no-empty", "--quiet") == 0
    assert np.load(tmp_path / "to.npz")["size"].min() >= 1


@pytest.mark.parametrize("command", ["conformal", "select"])
def test_groups_of_rows_are_the_images_of_dense_scores(command, tmp_path, capsys):
    rng = np.random.default_rng(0)
    one = rng.random((60, 4))
    labels = (rng.random((60, 4)) < 0.02 + 0.96 * (one > 0.5)).astype(int)
    labels[3:9, 1:3] = -100
    labels[20] = -100
    scores = np.stack([1 - one, one], 1)
    np.savez(tmp_path / "dense.npz", probs=scores, labels=labels, patient=np.arange(60) // 2)
    kept = labels >= 0
    rows, numbers = scores.transpose(0, 2, 1)[kept], np.nonzero(kept)[0]
    lines = [f"{p[0]!r},{p[1]!r},{y},{n:02}" for p, y, n in zip(rows.tolist(), labels[kept], numbers, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["p_0,p_1,label,image", *lines]) + "\n")
    found, saved = {}, tmp_path / "saved.json"
    for name, words in (
        ("dense", ["dense.npz"]),
        ("rows", ["rows.csv", "--group", "image"]),
        ("patients", ["dense.npz", "--group", "patient"]),
    ):
        path, *others = words
        options = ["--risk", 0.2] if command == "select" else []
        file = tmp_path / path
        assert run(command, file, *others, *options, "--check", file, "--json", tmp_path / "j.json", "--quiet") == 0
        found[name] = json.loads((tmp_path / "j.json").read_text())
    held_out, check = (found["dense"]["held_out"], found["dense"]["checks"][0])
    assert (held_out["images"], check["images"], check["rows"]) == (29, 59, len(rows))
    for key in ("coverage", "drift", *(("low", "high") if command == "conformal" else ("error", "error_high"))):
        assert held_out[key] == pytest.approx(found["rows"]["held_out"][key])
        assert check[key] == pytest.approx(found["rows"]["checks"][0][key])
    assert found["patients"]["checks"][0]["images"] == 30
    if command == "conformal":
        assert "too few" not in capsys.readouterr().err
        assert run(command, tmp_path / "dense.npz", "--group", "patient", "--coverage", 0.97, "--quiet") == 0
        few = " ".join(capsys.readouterr().err.split())
        assert "FILE has too few images or groups for a coverage of 0.97" in few
        assert "give at least 33 images or groups with labels or ask for a lower coverage" in few
    # a fit on rows, and a file whose rows are of images
    capsys.readouterr()
    assert run(command, tmp_path / "rows.csv", "--out", saved, "--quiet") == 0
    assert "counted its rows as independent" not in capsys.readouterr().err
    assert run(command, saved, "--check", tmp_path / "dense.npz", "--quiet") == 0
    assert "counted its rows as independent" in " ".join(capsys.readouterr().err.split())
    assert run(command, tmp_path / "rows.csv", "--group", "nothing", "--quiet") == 2
    assert "has no column 'nothing'" in capsys.readouterr().err
    # rows without a group are not a group
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(tmp_path / "rows.csv", dtype={"image": str})
    table.loc[:4, "image"] = None
    table.to_csv(tmp_path / "gaps.csv", index=False)
    table.to_parquet(tmp_path / "gaps.parquet")
    for name in ("gaps.csv", "gaps.parquet"):
        assert run(command, tmp_path / name, "--group", "image", "--quiet") == 2
        assert "5 of 224 rows have no group in 'image'" in capsys.readouterr().err


def test_the_page_has_every_class_and_the_warning(validation, moved, tmp_path):
    page = tmp_path / "page.html"
    assert run("conformal", validation, "--check", moved, "--report", page, "--quiet") == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<table>") == 2
    assert text.count('<th scope="row"><div>') == 2 * (4 + 1)
    assert "Drift" in text
    assert "classes per set" in text
    assert run("select", validation, "--risk", 0.2, "--report", page, "--quiet") == 0
    assert "At most 20 %" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [["conformal"], ["select", "--risk", 0.2]])
def test_several_files_are_checked_together(validation, new, moved, tmp_path, words, capsys):
    page, figures = tmp_path / "page.html", tmp_path / "j.json"
    outputs = ["--report", page, "--json", figures]
    assert run(words[0], validation, *words[1:], "--check", new, moved, *outputs) == 0
    checks = json.loads(figures.read_text())["checks"]
    assert [check["file"] for check in checks] == [str(new), str(moved)]
    assert [check["drift"] for check in checks] == [False, True]
    assert "of each file" in capsys.readouterr().out
    # a table of the files; of sets also one for the held-out half and one for each file
    assert page.read_text(encoding="utf-8").count("<table>") == (4 if words == ["conformal"] else 1)


def test_the_table_says_which_interval_is_expected(validation, moved, capsys):
    """The interval of all rows need not contain their coverage, unlike that of each class."""
    assert run("conformal", validation, "--check", moved) == 0
    lines = capsys.readouterr().out.partition("on new rows")[2].splitlines()
    (total,) = [line for line in lines if line.startswith("all rows")]
    assert "expected" in total
    assert not any("expected" in line for line in lines if line.startswith(("0 ", "1 ", "2 ", "3 ")))


def test_few_rows_are_a_warning(tmp_path, capsys):
    np.savez(tmp_path / "few.npz", logits=overconfident(5, 0)[0], labels=overconfident(5, 0)[1])
    assert run("conformal", tmp_path / "few.npz") == 0
    assert "too few rows" in capsys.readouterr().out
    assert run("select", tmp_path / "few.npz") == 0
    assert "no row can be answered" in capsys.readouterr().out


def test_half_of_the_rows_may_be_too_few(tmp_path, capsys):
    """All rows allow answers and half of them none, which looked like a contradiction."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 40)
    np.savez(tmp_path / "a.npz", logits=rng.normal(size=(40, 4)) + 9 * np.eye(4)[labels], labels=labels)
    assert run("select", tmp_path / "a.npz", "--risk", 0.1) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "after a fit on the other half: no row is answered: half of the rows are too few for this limit." in text
    assert "Every row is answered" in text


def test_a_limit_that_is_too_low_names_one_that_is_possible(validation, capsys):
    assert run("select", validation, "--risk", 0.01) == 0
    text = " ".join(capsys.readouterr().out.split())
    rows = predictions(validation)
    limits = [SelectiveClassifier(risk).fit(rows) for risk in select.LIMITS]
    first = next(fitted for fitted in limits if fitted.answered_)
    assert first.risk > 0.02
    assert f"({first.risk:g} would answer {100 * first.answered_ / len(rows):.0f} % of these rows; if you" in text
    assert f"there are {len(rows)};" in text


def test_a_rare_class_with_low_coverage_is_a_warning(tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = (rng.random(1000) < 0.1).astype(int)
    probs = np.where(rng.random(1000) < np.where(labels, 0.5, 0.02), 0.9, 0.05)  # half of class 1 look like class 0
    np.savez(tmp_path / "rare.npz", probs=np.stack([1 - probs, probs], 1), labels=labels)
    for words, warned in (([], True), (["--class-conditional"], False)):
        assert run("conformal", tmp_path / "rare.npz", *words) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert ("1 of 2 classes are covered less than 90 %: 1 " in text) is warned


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["conformal", "{fit}", "--coverage", "1"], "between 0 and 1"),
        (["select", "{fit}", "--risk", "x"], "between 0 and 1"),
        (["conformal", "{fit}", "--apply", "{new}"], "need each other"),
        (["conformal", "{fit}", "--apply", "{new}", "--to", "to.txt"], "--to must end with"),
        (["conformal", "{fit}", "--apply", "{new}", "--to", "{new}"], "would overwrite"),
        (["conformal", "{fit}", "--seed", "-1"], "--seed"),
        (["conformal", "{fit}", "--task", "multilabel"], "multilabel"),
        (["conformal", "{saved}"], "is a saved fit"),
        (["conformal", "{saved}", "--check", "{new}", "--out", "o.json"], "leave --out out"),
        (["select", "{saved}", "--check", "{new}"], "not a selective"),
        (["conformal", "{saved}", "--check", "{three}"], "has 3 classes"),
        (["conformal", "{three}", "--check", "{outside}"], "no labels"),
        (["conformal", "missing.npz"], "missing.npz"),
        (["conformal", "missing.json", "--check", "{new}"], "missing.json"),
    ],
)
def test_bad_input_is_one_line(validation, new, outside, tmp_path, words, problem, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("three.npz", logits=overconfident(50, 0)[0][:, :3], labels=np.arange(50) % 3)
    assert run("conformal", validation, "--out", "saved.json", "--quiet") == 0
    names = {"fit": validation, "new": new, "saved": "saved.json", "three": "three.npz", "outside": outside}
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    try:
        code = run(*(word.format(**names) for word in words))
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2
    assert problem in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("conformal", ["--coverage", 0.99]),
        ("conformal", ["--method", "aps"]),
        ("conformal", ["--class-conditional"]),
        ("conformal", ["--no-empty"]),
        ("select", ["--risk", 0.01]),
        ("select", ["--level", 0.99]),
        ("select", ["--score", "entropy"]),
    ],
)
def test_a_saved_fit_is_not_changed_by_options(validation, new, tmp_path, command, option, capsys):
    """The coverage or risk of the file holds, so another one must not look as if it did."""
    saved = tmp_path / "saved.json"
    assert run(command, validation, "--out", saved, "--quiet") == 0
    assert run(command, saved, "--check", new, *option) == 2
    assert f"{option[0]}: {saved} is a saved fit, which has its own; leave {option[0]} out" in capsys.readouterr().err


def test_names_with_the_separator_of_sets(tmp_path, capsys):
    logits, labels = overconfident(60, 9)
    names = ["a|b", "a", "b", "c"]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "label"])
        writer.writerows([*row, names[label]] for row, label in zip(logits.tolist(), labels.tolist(), strict=True))
    words = ["conformal", tmp_path / "a.csv", "--apply", tmp_path / "a.csv", "--to"]
    assert run(*words, tmp_path / "sets.csv") == 2
    assert "the class 'a|b' has a '|'" in capsys.readouterr().err
    assert run(*words, tmp_path / "sets.npz") == 0


def padded_tokens(tmp_path):
    """Return a file of token logits (N, T, C) with padding, whose sets are large, and where it is."""
    rng = np.random.default_rng(1)
    labels = rng.integers(4, size=(60, 12))
    logits = rng.normal(size=(60, 12, 4)) + 4 * np.eye(4)[labels]
    padded = np.arange(12) >= rng.integers(3, 12, size=60)[:, None]
    logits[padded], labels[padded] = 0, -100
    path = tmp_path / "tokens.npz"
    np.savez(path, logits=logits, labels=labels)
    return path, padded


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_padding_counts_in_no_figure_of_apply(tmp_path, method, suffix, capsys):
    tokens, padded = padded_tokens(tmp_path)
    to, figures = tmp_path / f"sets{suffix}", tmp_path / "figures.json"
    words = ["conformal", tokens, "--class-dim", -1, "--method", method, "--apply", tokens, "--check", tokens]
    assert run(*words, "--to", to, "--json", figures) == 0
    document = json.loads(figures.read_text())
    check, applied = document["checks"][0], document["applied"]
    assert applied["rows"] == check["rows"] == (~padded).sum()
    assert applied["mean_size"] == check["mean_size"]
    assert applied["empty"] == check["sizes"][0]
    assert applied["padding"] == padded.sum()
    assert f"{padded.sum()} of 720 rows are padding" in " ".join(capsys.readouterr().out.split())
    if suffix == ".npz":
        found = np.load(to)
        assert found["padding"].tolist() == padded.tolist()
        assert found["size"].shape == padded.shape
        sizes = found["size"][~padded]
    else:
        rows = list(csv.DictReader(to.read_text().splitlines()))
        assert len(rows) == padded.size
        sizes = np.array([int(row["size"]) for row in rows if row["padding"] == "0"])
    assert sizes.mean() == pytest.approx(check["mean_size"])


def test_padding_is_not_answered_in_the_figures(tmp_path):
    tokens, padded = padded_tokens(tmp_path)
    words = ["select", tokens, "--class-dim", -1, "--risk", 0.3, "--apply", tokens, "--check", tokens, "--quiet"]
    assert run(*words, "--to", tmp_path / "to.npz", "--json", tmp_path / "j.json") == 0
    document = json.loads((tmp_path / "j.json").read_text())
    assert document["applied"]["rows"] == document["checks"][0]["rows"] == (~padded).sum()
    assert document["applied"]["answered"] == document["checks"][0]["answered"]
    assert np.load(tmp_path / "to.npz")["answered"][~padded].sum() == document["applied"]["answered"]


@pytest.mark.parametrize("fill", [-100.0, np.nan, 0.0])
def test_content_of_padding_does_not_matter(tmp_path, fill):
    """Probabilities that a program padded with −100 were read as logits."""
    tokens, padded = padded_tokens(tmp_path)
    data = dict(np.load(tokens))
    probs = torch.from_numpy(data["logits"]).softmax(-1).numpy()
    found = []
    for content in (0.25, fill):
        probs[padded] = content
        np.savez(tokens, predictions=probs, labels=data["labels"])
        words = ["conformal", tokens, "--class-dim", -1, "--apply", tokens, "--to", tmp_path / "to.npz", "--quiet"]
        assert run(*words, "--json", tmp_path / "j.json") == 0
        found.append((np.load(tmp_path / "to.npz")["sets"].tolist(), json.loads((tmp_path / "j.json").read_text())))
    assert found[0] == found[1]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_rows_of_ignore_index_are_padding(tmp_path, suffix):
    logits, labels = overconfident(200, 3)
    labels[::4] = -100
    logits[::4] = 0
    table = tmp_path / f"rows{suffix}"
    if suffix == ".npz":
        np.savez(table, logits=logits, labels=labels)
    else:
        frame = pd.DataFrame(logits, columns=[f"logits_{k}" for k in range(4)]).assign(label=labels)
        frame.to_csv(table, index=False) if suffix == ".csv" else frame.to_parquet(table)
    words = ["conformal", table, "--ignore-index", -100, "--apply", table, "--check", table, "--quiet"]
    assert run(*words, "--to", tmp_path / "to.csv", "--json", tmp_path / "j.json") == 0
    document = json.loads((tmp_path / "j.json").read_text())
    assert document["applied"]["rows"] == document["checks"][0]["rows"] == 150
    assert document["applied"]["mean_size"] == document["checks"][0]["mean_size"]
    # names as labels mark nothing, and no label at all neither
    other = tmp_path / "other.csv"
    pd.DataFrame(logits, columns=[f"logits_{k}" for k in range(4)]).assign(label="x").to_csv(other, index=False)
    assert run(*words[:4], "--apply", other, "--to", tmp_path / "to.csv", "--json", tmp_path / "j.json", "--quiet") == 0
    assert json.loads((tmp_path / "j.json").read_text())["applied"]["rows"] == 200
    assert (tmp_path / "to.csv").read_text().splitlines()[0] == "row,size,set"
