"""`avuc apply`: the same result as `avuc calibrate --apply`, for every format."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from avuc.calibration import Calibrator, TemperatureScaling
from avuc.cli import main
from avuc.core.errors import InputError
from avuc.evaluation.files import read_scores

from .conftest import overconfident

NAMES = ["ant", "bee", "cat", "dog"]


def run(*words):
    return main([str(word) for word in words])


@pytest.fixture
def calibrator(validation, tmp_path):
    out = tmp_path / "cal.json"
    assert run("calibrate", validation, "--method", "vector", "--out", out, "--replicates", 0, "--quiet") == 0
    return out


def write(path, scores, labels):
    """Save scores in the format of the suffix."""
    if path.suffix == ".npz":
        np.savez(path, logits=scores, labels=labels, other=np.arange(3))
    elif path.suffix == ".npy":
        np.save(path, scores)
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({"logits": scores, "labels": labels}, path)
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        columns = {f"logits_{k}": scores[:, k] for k in range(4)}
        parquet.write_table(pyarrow.table(columns | {"label": labels}), path)
    else:
        comma = "\t" if path.suffix == ".tsv" else ","
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter=comma)
            writer.writerow(["label", *(f"logits_{k}" for k in range(4))])
            writer.writerows([[label, *map(float, row)] for label, row in zip(labels, scores, strict=True)])
    return path


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".parquet", ".csv", ".tsv"])
def test_every_format(calibrator, tmp_path, capsys, suffix):
    scores, labels = overconfident(120, 5)
    source, to = write(tmp_path / f"logits{suffix}", scores, labels), tmp_path / f"to{suffix}"
    assert run("apply", calibrator, source, "--to", to) == 0
    assert "calibrated by vector scaling" in capsys.readouterr().out
    options = {"kind": "logits"} if suffix == ".npy" else {}
    found = read_scores(to, needs_labels=False, **options).scores
    expected = Calibrator.load(calibrator).transform(torch.from_numpy(scores))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    if suffix != ".npy":
        assert read_scores(to).labels.tolist() == labels.tolist()
    if suffix == ".npz":
        assert np.load(to)["other"].tolist() == [0, 1, 2]


def test_draws_and_probabilities(calibrator, tmp_path):
    scores = np.stack([overconfident(50, seed)[0] for seed in (6, 7)])
    np.savez(tmp_path / "draws.npz", logits=scores)
    assert run("apply", calibrator, tmp_path / "draws.npz", "--to", tmp_path / "to.npz") == 0
    expected = Calibrator.load(calibrator).transform(scores)
    np.testing.assert_allclose(np.load(tmp_path / "to.npz")["logits"], expected, rtol=1e-5, atol=1e-5)
    np.savez(tmp_path / "probs.npz", probs=torch.from_numpy(scores[0]).softmax(1).numpy())
    assert run("apply", calibrator, tmp_path / "probs.npz", "--to", tmp_path / "to.npz") == 0
    expected = torch.from_numpy(expected[0]).softmax(1)
    np.testing.assert_allclose(np.load(tmp_path / "to.npz")["probs"], expected, rtol=1e-4, atol=1e-5)


def named(path, names, scores, labels=None):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"logits_{name}" for name in names), *([] if labels is None else ["Y_True"])])
        for index, row in enumerate(scores):
            writer.writerow([*map(float, row), *([] if labels is None else [NAMES[labels[index]]])])
    return path


def test_classes_are_checked_by_name(tmp_path, capsys):
    scores, labels = overconfident(200, 8)
    fit, order = named(tmp_path / "fit.csv", NAMES, scores, labels), [3, 1, 0, 2]
    cal, to = tmp_path / "cal.json", tmp_path / "to.csv"
    assert run("calibrate", fit, "--method", "vector", "--out", cal, "--replicates", 0) == 0
    other = named(tmp_path / "other.csv", [NAMES[k] for k in order], scores[:, order])
    assert run("apply", cal, other, "--to", to) == 0
    expected = Calibrator.load(cal).transform(scores)
    torch.testing.assert_close(read_scores(to).scores.numpy(), expected[:, order], rtol=1e-4, atol=1e-4)
    capsys.readouterr()
    to.unlink()
    wrong = named(tmp_path / "wrong.csv", [*NAMES[:3], "eel"], scores)
    assert run("apply", cal, wrong, "--to", to) == 2
    assert "the calibrator was fitted on 'ant', 'bee', 'cat', 'dog'" in capsys.readouterr().err
    np.savez(tmp_path / "plain.npz", logits=scores)
    assert run("apply", cal, tmp_path / "plain.npz", "--to", tmp_path / "to.npz") == 0
    assert "has class names, so classes are matched by position" in " ".join(capsys.readouterr().out.split())
    assert not to.exists()


def with_columns(path, columns, scores, labels=None):
    """Probabilities in these columns, with an id and, if given, a column of names that is not called labels."""
    probs = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["patient_id", *columns, *([] if labels is None else ["diagnosis"])])
        for index, row in enumerate(probs):
            writer.writerow([index, *map(float, row), *([] if labels is None else [NAMES[labels[index]]])])
    return path


@pytest.mark.parametrize("labelled", [False, True])
def test_a_common_beginning_of_the_columns_is_not_part_of_the_class_names(tmp_path, labelled):
    """`p_ant` is the class `ant` where labels say so; a file without labels, or without --label, has `p_ant`."""
    scores, labels = overconfident(300, 8)
    columns, order = [f"p_{name}" for name in NAMES], [3, 1, 0, 2]
    fit = with_columns(tmp_path / "fit.csv", columns, scores, labels)
    other = with_columns(
        tmp_path / "other.csv", [columns[k] for k in order], scores[:, order], labels if labelled else None
    )
    cal, to, then, sets = (tmp_path / name for name in ("cal.json", "to.csv", "then.csv", "sets.csv"))
    words = ["--label", "diagnosis"]
    assert (
        run("calibrate", fit, *words, "--method", "vector", "--out", cal, "--apply", other, "--to", to, "--keep-worse")
        == 0
    )
    assert run("apply", cal, other, "--to", then) == 0
    expected = torch.tensor(Calibrator.load(cal).transform(scores)).softmax(-1)[:, order]
    for written in (to, then):
        torch.testing.assert_close(read_scores(written).scores, expected.float(), rtol=1e-3, atol=1e-5)
    assert run("conformal", fit, *words, "--out", tmp_path / "sets.json") == 0
    assert run("conformal", tmp_path / "sets.json", "--apply", other, "--to", sets) == 0
    same = with_columns(tmp_path / "same.csv", NAMES, scores)
    assert run("conformal", tmp_path / "sets.json", "--apply", same, "--to", tmp_path / "same-sets.csv") == 0
    assert sets.read_text() == (tmp_path / "same-sets.csv").read_text()


def test_a_digit_is_no_common_beginning():
    from avuc.evaluation.files.match_classes import match_classes

    calibrator = TemperatureScaling.identity(2)
    calibrator.class_names_ = ("3", "5")
    for names in (("13", "15"), ("p_3", "q_5"), ("p_3", "p_7")):
        with pytest.raises(InputError, match="same class names"):
            match_classes(Path("a.csv"), names, calibrator)
    assert match_classes(Path("a.csv"), ("p_3", "p_5"), calibrator) is calibrator
    assert match_classes(Path("a.csv"), ("p_5", "p_3"), calibrator).order == [1, 0]
    calibrator.class_names_ = ("p_3", "p_5")
    assert match_classes(Path("a.csv"), ("5", "3"), calibrator).order == [1, 0]


def test_class_numbers_are_not_positions(tmp_path, capsys):
    scores, labels = overconfident(200, 8)
    np.savez(tmp_path / "fit.npz", logits=scores, labels=labels)
    cal = tmp_path / "cal.json"
    assert run("calibrate", tmp_path / "fit.npz", "--method", "vector", "--out", cal, "--replicates", 0) == 0
    content = json.loads(cal.read_text()) | {"class_names": ["3", "5", "7", "9"]}
    cal.write_text(json.dumps(content))
    other = named(tmp_path / "other.csv", ["1", "2", "3", "4"], scores)
    assert run("apply", cal, other, "--to", tmp_path / "to.csv") == 2
    assert "same class numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["apply", "missing.json", "{file}", "--to", "{to}"], "missing.json"),
        (["apply", "{cal}", "{file}", "--to", "{file}"], "would overwrite an input file"),
        (["apply", "{cal}", "{file}", "--to", "{to}.csv"], "must have the format of"),
        (["apply", "{cal}", "{three}", "--to", "{to}"], "has 3 classes"),
        (["apply", "{file}", "{file}", "--to", "{to}"], "validation.npz: this is no text; name a JSON file"),
        (
            ["apply", "{file}", "{cal}", "--to", "{to}"],
            "cal.json: these are no scores; name the calibrator first",
        ),
        (["apply", "{cal}", "{file}", "--to", "{to}", "--format", "npz"], "--format is for standard input"),
    ],
)
def test_bad_input_is_one_line(calibrator, validation, tmp_path, capsys, words, says):
    np.savez(tmp_path / "three.npz", logits=np.random.default_rng(0).normal(size=(9, 3)))
    names = {"cal": calibrator, "file": validation, "three": tmp_path / "three.npz", "to": tmp_path / "to.npz"}
    before = sorted(path.name for path in tmp_path.iterdir())
    capsys.readouterr()
    assert run(*(word.format(**names) for word in words)) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_calibrator_without_a_fit(tmp_path, validation, capsys):
    from avuc.calibration import TemperatureScaling

    (tmp_path / "cal.json").write_text(TemperatureScaling().to_json())
    assert run("apply", tmp_path / "cal.json", validation, "--to", tmp_path / "to.npz") == 2
    assert "not fitted" in capsys.readouterr().err


PERMUTED = [2, 0, 3, 1]


def fitted_with_classes(tmp_path, classes, labels_of):
    """Fit a calibrator that acts on each class differently, on an .npz with an array `classes`."""
    logits, labels = overconfident(800, 0)
    logits = logits + np.array([0, 2, -2, 1], np.float32)  # what vector scaling has to undo
    named = {} if classes is None else {"classes": np.array(classes)}
    np.savez(tmp_path / "fit.npz", logits=logits, labels=labels_of(labels), **named)
    words = ["calibrate", tmp_path / "fit.npz", "--method", "vector", "--out", tmp_path / "cal.json"]
    assert run(*words, "--replicates", 0, "--quiet") == 0
    return logits


def text(labels):
    return np.array(NAMES)[labels]


@pytest.mark.parametrize(
    ("classes", "labels_of"),
    [(NAMES, text), (NAMES, lambda labels: labels), ([3, 5, 7, 9], lambda labels: np.array([3, 5, 7, 9])[labels])],
    ids=["names", "names and numbers as labels", "numbers"],
)
def test_an_array_of_classes_says_the_order_of_a_file_without_labels(tmp_path, capsys, classes, labels_of):
    logits = fitted_with_classes(tmp_path, classes, labels_of)
    out = {}
    for name, order in (("same", [0, 1, 2, 3]), ("other", PERMUTED)):
        np.savez(tmp_path / f"{name}.npz", logits=logits[:, order], classes=np.array(classes)[order])
        assert run("apply", tmp_path / "cal.json", tmp_path / f"{name}.npz", "--to", tmp_path / f"to-{name}.npz") == 0
        assert "by position" not in capsys.readouterr().out
        out[name] = np.load(tmp_path / f"to-{name}.npz")["logits"]
    np.testing.assert_allclose(out["other"], out["same"][:, PERMUTED], rtol=1e-5, atol=1e-5)
    words = ["calibrate", tmp_path / "fit.npz", "--method", "vector", "--apply", tmp_path / "other.npz"]
    assert run(*words, "--out", tmp_path / "again.json", "--to", tmp_path / "to.npz", "--replicates", 0, "--quiet") == 0
    np.testing.assert_allclose(np.load(tmp_path / "to.npz")["logits"], out["other"], rtol=1e-5, atol=1e-5)
    np.savez(tmp_path / "unknown.npz", logits=logits, classes=np.array(["a", "b", "c", "d"]))
    assert run("apply", tmp_path / "cal.json", tmp_path / "unknown.npz", "--to", tmp_path / "to-unknown.npz") == 2
    assert "but the calibrator was fitted on" in capsys.readouterr().err


@pytest.mark.parametrize("first", [0, 1])
def test_classes_counted_in_another_order_than_those_of_a_fit_without_names_are_refused(tmp_path, capsys, first):
    classes = None if first == 0 else [1, 2, 3, 4]
    logits = fitted_with_classes(tmp_path, classes, lambda labels: labels + first)
    np.savez(tmp_path / "same.npz", logits=logits, classes=np.arange(4) + first)
    np.savez(tmp_path / "other.npz", logits=logits[:, PERMUTED], classes=np.array(PERMUTED) + first)
    fits = {"apply": ["apply", tmp_path / "cal.json"], "calibrate": ["calibrate", tmp_path / "fit.npz", "--apply"]}
    for command, words in fits.items():
        for name, code in (("same", 0), ("other", 2)):
            options = ["--method", "vector", "--out", tmp_path / "again.json"] if command == "calibrate" else []
            assert run(*words, tmp_path / f"{name}.npz", "--to", tmp_path / f"{command}-{name}.npz", *options) == code
        assert "save the scores in this order" in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / f"{command}-other.npz").exists()


def test_an_array_of_classes_says_the_order_of_multi_label_scores(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (900, 3))
    logits = (2 * labels - 1 + rng.normal(0, 1, labels.shape)) * np.array([1.0, 4.0, 9.0])
    np.savez(tmp_path / "fit.npz", logits=logits, labels=labels, classes=np.array(["ant", "bee", "cat"]))
    words = ["calibrate", tmp_path / "fit.npz", "--task", "multilabel", "--method", "temperature"]
    assert run(*words, "--out", tmp_path / "cal.json", "--replicates", 0, "--quiet") == 0
    out = {}
    for name, order in (("same", [0, 1, 2]), ("other", [2, 0, 1])):
        np.savez(tmp_path / f"{name}.npz", logits=logits[:, order], classes=np.array(["ant", "bee", "cat"])[order])
        assert run("apply", tmp_path / "cal.json", tmp_path / f"{name}.npz", "--to", tmp_path / f"to-{name}.npz") == 0
        out[name] = np.load(tmp_path / f"to-{name}.npz")["logits"]
    np.testing.assert_allclose(out["other"], out["same"][:, [2, 0, 1]], rtol=1e-6)


def test_conformal_sets_of_a_file_without_labels_have_the_order_of_its_classes(tmp_path):
    logits, labels = overconfident(800, 0)
    np.savez(tmp_path / "fit.npz", logits=logits, labels=text(labels), classes=np.array(NAMES))
    np.savez(tmp_path / "other.npz", logits=logits[:, PERMUTED], classes=np.array(NAMES)[PERMUTED])
    np.savez(tmp_path / "same.npz", logits=logits, classes=np.array(NAMES))
    sets = []
    for name in ("same", "other"):
        words = ["conformal", tmp_path / "fit.npz", "--class-conditional", "--apply", tmp_path / f"{name}.npz"]
        assert run(*words, "--to", tmp_path / f"sets-{name}.npz", "--quiet") == 0
        sets.append(np.load(tmp_path / f"sets-{name}.npz"))
    assert sets[0]["class_names"].tolist() == sets[1]["class_names"].tolist()
    assert np.array_equal(sets[0]["sets"], sets[1]["sets"])


@pytest.mark.parametrize("fill", [-100.0, np.nan])
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_padding_does_not_decide_what_scores_are(tmp_path, fill, suffix):
    """Probabilities of tokens that a program padded with −100 were taken for logits."""
    rng = np.random.default_rng(1)
    labels = rng.integers(4, size=(60, 12))
    probs = torch.from_numpy(rng.normal(size=(60, 12, 4)) + 3 * np.eye(4)[labels]).softmax(-1).numpy()
    padded = np.arange(12) >= rng.integers(3, 12, size=60)[:, None]
    labels[padded], probs[padded] = -100, fill
    file = tmp_path / f"predictions{suffix}"
    if suffix == ".npz":
        np.savez(file, predictions=probs, labels=labels)
    else:
        np.save(file, probs)
        np.save(tmp_path / "labels.npy", labels)
    words = ["--class-dim", -1, "--quiet"]
    cal, to = tmp_path / "cal.json", [tmp_path / f"to{k}{suffix}" for k in range(2)]
    fit = ["calibrate", file, *words, "--method", "temperature", "--replicates", 0]
    assert run(*fit, "--out", cal, "--apply", file, "--to", to[0]) == 0
    assert run("apply", cal, file, *words, "--to", to[1]) == 0
    logits = torch.from_numpy(probs[~padded]).clamp_min(1e-12).log()
    expected = (logits / Calibrator.load(cal).temperature_).softmax(-1).numpy()
    for path in to:
        found = np.load(path)["predictions"] if suffix == ".npz" else np.load(path)
        np.testing.assert_allclose(found[~padded], expected, atol=1e-6)
