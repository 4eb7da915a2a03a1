"""Binary, dense and multi-label files in the command: evaluate, calibrate and apply, JSON and report."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from avuc.calibration import Calibrator, MultiLabelCalibrator
from avuc.cli import main
from avuc.evaluation import evaluate_large
from avuc.evaluation.files import ScoreStream, open_scores
from avuc.evaluation.files.row_groups import image_sizes
from avuc.evaluation.large import entropies

RNG = np.random.default_rng(3)
# binary
Y = RNG.integers(0, 2, 150)
Z = (2 * (RNG.normal(size=150) + 1.2 * (2 * Y - 1))).astype(np.float32)
P = 1 / (1 + np.exp(-Z.astype(np.float64)))
# dense
MAPS = RNG.integers(0, 3, (6, 5, 5))
DENSE = (2 * RNG.normal(size=(6, 3, 5, 5)) + 3 * np.moveaxis(np.eye(3)[MAPS], -1, 1)).astype(np.float32)
# multi-label
NAMES = ["cat", "dog", "ox"]
MANY = (RNG.random((120, 3)) < [0.5, 0.3, 0.2]).astype(np.int64)
SCORES = (2 * (RNG.normal(size=(120, 3)) + 1.2 * (2 * MANY - 1))).astype(np.float32)
PROBS = 1 / (1 + np.exp(-SCORES.astype(np.float64)))


def run(*words):
    return main([*map(str, words), "--quiet"])


def evaluated(tmp_path, *words):
    out = tmp_path / "out.json"
    out.unlink(missing_ok=True)
    assert run("evaluate", *words, "--replicates", 0, "--json", out) == 0
    return json.loads(out.read_text())


def nll(probs, labels):
    return -sum(math.log(p if label else 1 - p) for p, label in zip(probs, labels, strict=True)) / len(labels)


def brier(probs, labels):
    return sum(2 * (p - label) ** 2 for p, label in zip(probs, labels, strict=True)) / len(labels)


def ece(probs, labels):
    bins = [[0.0, 0.0, 0] for _ in range(15)]
    for p, label in zip(probs, labels, strict=True):
        confidence = max(p, 1 - p)
        one = bins[min(14, math.ceil(confidence * 15) - 1)]
        one[0], one[1], one[2] = one[0] + confidence, one[1] + ((p > 0.5) == bool(label)), one[2] + 1
    return sum(abs(a - b) for a, b, _ in bins) / len(labels)


# ---- binary


def test_binary_figures_and_calibration(tmp_path, capsys):
    path = tmp_path / "a.npz"
    np.savez(path, logits=Z, labels=Y)
    found = evaluated(tmp_path, path)
    for name, oracle in (("nll", nll), ("brier", brier), ("ece", ece)):
        assert found["metrics"][name] == pytest.approx(oracle(P, Y), rel=1e-4)
    assert (found["n"], found["num_classes"]) == (150, 2)
    streamed = evaluated(tmp_path, path, "--fixed-memory")["metrics"]
    assert streamed["nll"] == pytest.approx(found["metrics"]["nll"], rel=1e-6)
    np.savez(tmp_path / "b.npz", probs=P[:, None])
    cal, to = tmp_path / "cal.json", tmp_path / "to.npz"
    words = ["--method", "temperature", "--out", cal, "--replicates", 0, "--report", tmp_path / "page.html"]
    assert run("calibrate", path, *words, "--apply", tmp_path / "b.npz", "--to", to) == 0
    temperature = Calibrator.load(cal).temperature_
    expected = 1 / (1 + np.exp(-Z / temperature))
    np.testing.assert_allclose(np.load(to)["probs"][:, 0], expected, rtol=1e-4, atol=1e-6)
    assert "150 binary logits" in (tmp_path / "page.html").read_text()
    assert run("apply", cal, path, "--to", to) == 0
    np.testing.assert_allclose(np.load(to)["logits"], Z / temperature, rtol=1e-4)
    assert evaluated(tmp_path, path, "--ood", tmp_path / "b.npz")["detection"]["auroc"] == pytest.approx(0.5, abs=1e-3)


# ---- dense


def test_intervals_of_dense_detection_resample_images(tmp_path, capsys, monkeypatch):
    """Every pixel 10 times: as many images, so the intervals are as wide as before."""
    other = DENSE + RNG.normal(size=DENSE.shape).astype(np.float32)
    found = []
    for times in (1, 10):
        np.savez(tmp_path / "a.npz", logits=np.repeat(DENSE, times, 2), labels=np.repeat(MAPS, times, 1))
        np.savez(tmp_path / "b.npz", logits=np.repeat(other, times, 2))
        words = ["--ood", tmp_path / "b.npz", "--json", tmp_path / "out.json"]
        assert main(["evaluate", *map(str, [tmp_path / "a.npz", *words])]) == 0
        found.append(json.loads((tmp_path / "out.json").read_text()))
        assert "bootstrap replicates of the images or groups" in capsys.readouterr().out
    assert found[0]["detection_bootstrap"] == found[1]["detection_bootstrap"] == "groups"
    (low, high), wide = (one["detection_intervals"]["auroc"] for one in found)
    assert wide == pytest.approx([low, high], abs=0.02)
    assert evaluated(tmp_path, tmp_path / "a.npz", *words[:2])["detection"] == found[1]["detection"]
    # read in blocks
    np.save(tmp_path / "a.npy", np.load(tmp_path / "a.npz")["logits"])
    np.save(tmp_path / "labels.npy", np.load(tmp_path / "a.npz")["labels"])
    np.save(tmp_path / "b.npy", np.load(tmp_path / "b.npz")["logits"])
    monkeypatch.setattr("avuc.metrics.blockwise.LARGE_ROWS", 100)
    streams = [
        open_scores(tmp_path / "a.npy", labels=tmp_path / "labels.npy", most_scores=10),
        open_scores(tmp_path / "b.npy", class_dim=1, needs_labels=False, most_scores=10),
    ]
    assert {type(stream) for stream in streams} == {ScoreStream}
    sizes = image_sizes(streams[1])
    assert sizes.tolist() == [250] * 6
    blocks = evaluate_large(
        streams[0], outside_entropy=entropies(streams[1]), outside_groups=np.repeat(np.arange(6), sizes)
    )
    assert blocks.detection_bootstrap == "groups"
    assert blocks.detection_intervals["auroc"] == pytest.approx(wide, abs=0.01)
    np.savez(tmp_path / "b.npz", logits=other[:1])
    assert run("evaluate", tmp_path / "a.npz", *words) == 0
    one = json.loads((tmp_path / "out.json").read_text())
    assert one["detection_intervals"] == {}
    assert any(note.startswith("one image out of distribution") for note in one["notes"])


def test_dense_is_the_same_as_its_rows(tmp_path):
    labels = MAPS.copy()
    labels[0, :2] = -100
    rows, flat = np.moveaxis(DENSE, 1, -1).reshape(-1, 3), labels.ravel()
    np.savez(tmp_path / "rows.npz", logits=rows[flat >= 0], labels=flat[flat >= 0])
    expected = evaluated(tmp_path, tmp_path / "rows.npz")
    np.savez(tmp_path / "a.npz", logits=DENSE, labels=labels)
    found = evaluated(tmp_path, tmp_path / "a.npz")
    assert found["metrics"] == expected["metrics"]
    assert found["n"] == 140
    assert run("evaluate", tmp_path / "a.npz", "--replicates", 9, "--more", "--json", tmp_path / "j.json") == 0
    assert json.loads((tmp_path / "j.json").read_text())["bootstrap"] == "groups"
    assert not any("too narrow" in note for note in found["notes"])
    np.savez(tmp_path / "b.npz", logits=np.moveaxis(DENSE, 1, -1), labels=np.where(labels < 0, 9, labels))
    words = [tmp_path / "b.npz", "--class-dim", -1, "--ignore-index", 9]
    assert evaluated(tmp_path, *words)["metrics"] == expected["metrics"]
    streamed = evaluated(tmp_path, *words, "--fixed-memory")
    assert streamed["metrics"] == evaluated(tmp_path, tmp_path / "rows.npz", "--fixed-memory")["metrics"]
    cal, to = tmp_path / "cal.json", tmp_path / "to.npz"
    fit = ["calibrate", tmp_path / "a.npz", "--method", "vector", "--out", cal, "--replicates", 0, "--keep-worse"]
    assert run(*fit, "--apply", tmp_path / "a.npz", "--to", to) == 0
    calibrated = Calibrator.load(cal).transform(rows)
    np.testing.assert_allclose(np.moveaxis(np.load(to)["logits"], 1, -1).reshape(-1, 3), calibrated, atol=1e-5)
    assert run("apply", cal, tmp_path / "b.npz", "--class-dim", -1, "--to", to) == 0
    np.testing.assert_allclose(np.load(to)["logits"].reshape(-1, 3), calibrated, atol=1e-5)


def test_images_of_a_file_that_is_read_in_blocks_are_resampled(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, (25, 40))
    logits = np.eye(3)[labels] + rng.normal(size=(25, 40, 3)) + 2 * rng.normal(size=(25, 1, 3))
    labels[2, :30], labels[4] = -100, -100
    np.savez(tmp_path / "a.npz", logits=np.moveaxis(logits, -1, 1).astype(np.float32), labels=labels)
    found = []
    for large in (False, True):
        if large:
            monkeypatch.setattr("avuc.metrics.blockwise.LARGE_ROWS", 100)
            monkeypatch.setattr("avuc.evaluation.files.score_file.BLOCK", 400)
        assert run("evaluate", tmp_path / "a.npz", "--replicates", 60, "--json", tmp_path / "j.json", "--quiet") == 0
        found.append(json.loads((tmp_path / "j.json").read_text()))
        assert not any("too narrow" in note for note in found[-1]["notes"])
    whole, blocks = found
    assert whole["bootstrap"] == blocks["bootstrap"] == "groups"
    assert blocks["metrics"]["nll"] == pytest.approx(whole["metrics"]["nll"])
    for name, ends in whole["intervals"].items():
        assert blocks["intervals"][name] == pytest.approx(ends, abs=1e-6), name
    np.savez(tmp_path / "one.npz", logits=np.moveaxis(logits, -1, 1)[:1].repeat(5, 2), labels=labels[:1].repeat(5, 1))
    assert run("evaluate", tmp_path / "one.npz", "--json", tmp_path / "j.json", "--quiet") == 0
    one = json.loads((tmp_path / "j.json").read_text())
    assert one["intervals"] == {}
    assert "all rows belong to one image or group, so there are no intervals" in one["notes"][-1]


# ---- multi-label


def table(path, values, prefix="prob_", label="label_", names=NAMES, unknown=()):
    head = [*(f"{prefix}{name}" for name in names), *(f"{label}{name}" for name in NAMES)]
    lines = [",".join(head)]
    for index, row in enumerate(values):
        known = [-100 if (index, k) in unknown else int(MANY[index, k]) for k in range(3)]
        lines.append(",".join([*(f"{value:.9g}" for value in row), *map(str, known)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_of_labels_are_not_called_images(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", logits=SCORES, labels=MANY)
    words = ["--task", "multilabel", "--replicates", "20"]
    assert main(["evaluate", str(tmp_path / "a.npz"), *words]) == 0
    assert "20 bootstrap replicates of the rows or groups" in capsys.readouterr().out
    np.savez(tmp_path / "a.npz", logits=SCORES + 3, labels=MANY)  # class 1 gets too much, and "auto" is for one label
    assert main(["evaluate", str(tmp_path / "a.npz"), *words]) == 0
    assert "--method auto" not in capsys.readouterr().out
    words += ["--method", "isotonic", "--out", str(tmp_path / "c.json")]
    np.savez(tmp_path / "a.npz", logits=SCORES[:12], labels=MANY[:12])
    assert main(["calibrate", str(tmp_path / "a.npz"), *words]) == 0
    said = capsys.readouterr().out
    assert "was rejected and the scores stay" in " ".join(said.split())
    assert "--method auto" not in said


def test_multilabel_figures(tmp_path):
    np.savez(tmp_path / "a.npz", logits=SCORES, labels=MANY)
    found = evaluated(tmp_path, tmp_path / "a.npz", "--task", "multilabel")
    for name, oracle in (("nll", nll), ("brier", brier), ("ece", ece)):
        each = [oracle(PROBS[:, k], MANY[:, k]) for k in range(3)]
        assert [found["per_label"][str(k)][name] for k in range(3)] == pytest.approx(each, rel=1e-4)
        assert found["macro"][name] == pytest.approx(sum(each) / 3, rel=1e-4)
        assert found["metrics"][name] == pytest.approx(oracle(PROBS.ravel(), MANY.ravel()), rel=1e-4)
    assert (found["n"], found["rows"], found["task"]) == (360, 120, "multilabel")
    draws = np.stack([SCORES, SCORES])
    np.savez(tmp_path / "a.npz", logits=draws, labels=MANY.astype(bool))
    assert evaluated(tmp_path, tmp_path / "a.npz", "--task", "multilabel")["macro"] == pytest.approx(found["macro"])


@pytest.mark.parametrize(
    ("prefix", "label", "words"),
    [
        ("prob_", "label_", []),
        ("prob_", "", []),
        ("", "Y_", ["--columns", ",".join(NAMES)]),
        ("out.", "is ", ["--scores-key", "out.", "--label", "is", "--kind", "probs"]),
    ],
)
def test_multilabel_tables(tmp_path, prefix, label, words):
    path = table(tmp_path / "a.csv", PROBS, prefix, label, unknown={(0, 1), (5, 2)})
    found = evaluated(tmp_path, path, "--task", "multilabel", *words)
    assert found["labels"] == NAMES
    keep = np.arange(120) != 0
    assert found["per_label"]["dog"]["nll"] == pytest.approx(nll(PROBS[keep, 1], MANY[keep, 1]), rel=1e-4)
    assert found["n"] == 358
    assert "2 of 360 decisions have the label -100 and were left out" in found["notes"]


def test_multilabel_parquet_and_report(tmp_path, capsys):
    import pyarrow
    from pyarrow import parquet

    cells = {f"logit_{n}": SCORES[:, k] for k, n in enumerate(NAMES)} | {n: MANY[:, k] for k, n in enumerate(NAMES)}
    parquet.write_table(pyarrow.table(cells), tmp_path / "a.parquet")
    words = ["--task", "multilabel", "--replicates", "20", "--report", str(tmp_path / "page.html")]
    assert main(["evaluate", str(tmp_path / "a.parquet"), *words]) == 0
    page, out = (tmp_path / "page.html").read_text(), capsys.readouterr().out
    for text in ("dog", "mean of labels (macro)", "all decisions (micro)"):
        assert text in page
        assert text in out
    assert "Intervals resample rows with all their labels." in page


@pytest.mark.parametrize("shared", [False, True])
def test_multilabel_calibration(tmp_path, shared):
    path, cal, to = table(tmp_path / "a.csv", SCORES, "logits_"), tmp_path / "cal.json", tmp_path / "to.csv"
    words = ["--task", "multilabel", "--method", "temperature", "--out", cal, "--json", tmp_path / "o.json"]
    words += ["--replicates", 0, "--keep-worse", *(["--shared"] if shared else [])]
    assert run("calibrate", path, *words, "--apply", path, "--to", to) == 0
    found, calibrator = json.loads((tmp_path / "o.json").read_text()), Calibrator.load(cal)
    assert isinstance(calibrator, MultiLabelCalibrator)
    expected = MultiLabelCalibrator(shared=shared).fit(SCORES, MANY).temperature_
    np.testing.assert_allclose(calibrator.temperature_, expected, rtol=1e-4)
    assert (len(set(calibrator.temperature_)) == 1) == shared
    assert list(found["temperatures"]) == NAMES
    assert found["after"]["nll"] < found["before"]["nll"]
    assert found["per_label_before"]["cat"]["nll"] == pytest.approx(nll(PROBS[:, 0], MANY[:, 0]), rel=1e-4)
    again = np.genfromtxt(to, delimiter=",", skip_header=1)
    np.testing.assert_allclose(again[:, :3], SCORES / expected, rtol=1e-4)
    np.testing.assert_array_equal(again[:, 3:], MANY)
    # apply gives the same, also for other column orders and for probabilities
    other = tmp_path / "other.csv"
    order = [2, 0, 1]
    table(other, PROBS[:, order], "prob_", names=[NAMES[k] for k in order])
    assert run("apply", cal, other, "--to", to) == 0
    again = np.genfromtxt(to, delimiter=",", skip_header=1)[:, :3]
    np.testing.assert_allclose(again, (1 / (1 + np.exp(-SCORES / expected)))[:, order], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "words", "says"),
    [
        ({"logits": SCORES, "labels": MANY}, [], "--task multilabel"),
        ({"logits": SCORES, "labels": MANY[:, 0]}, ["--task", "multilabel"], "multi-label scores need"),
        ({"logits": SCORES, "labels": 2 * MANY}, ["--task", "multilabel"], "must be 0 or 1, found 2"),
        ({"logits": SCORES, "labels": MANY - 100}, ["--task", "multilabel"], "must be 0 or 1, found -99"),
        ({"logits": SCORES, "labels": 0 * MANY - 100}, ["--task", "multilabel"], "every label is -100"),
        ({"scores": SCORES, "labels": MANY}, ["--task", "multilabel"], "--kind logits"),
        ({"logits": SCORES}, ["--task", "multilabel"], "contains no labels"),
        ({"logits": SCORES[:, 0], "labels": MANY[:, 0]}, ["--task", "multilabel"], "expected (N, L)"),
        ({"logits": np.where(SCORES > 5, np.nan, SCORES), "labels": MANY}, ["--task", "multilabel"], "contains nan"),
        ({"logits": SCORES, "labels": MANY}, ["--task", "multilabel", "--fixed-memory"], "--fixed-memory is not for"),
        ({"logits": SCORES, "labels": MANY}, ["--task", "multilabel", "--positive", "1"], "--positive is not for"),
        ({"logits": SCORES, "labels": MANY}, ["--task", "multilabel", "--classes", "a,b"], "--classes names 2"),
    ],
)
def test_bad_multilabel_files_are_one_line(tmp_path, capsys, arrays, words, says):
    np.savez(tmp_path / "a.npz", **arrays)
    assert run("evaluate", tmp_path / "a.npz", *words) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_multilabel_tables_with_a_decimal_comma(tmp_path, capsys):
    path = table(tmp_path / "a.csv", PROBS)
    expected = evaluated(tmp_path, path, "--task", "multilabel")
    comma = tmp_path / "comma.csv"
    comma.write_text(path.read_text().replace(",", ";").replace(".", ","))
    found = evaluated(tmp_path, comma, "--task", "multilabel")
    assert found["metrics"] == expected["metrics"]
    assert found["notes"][0] == "numbers were read with a decimal comma: 0,25 is 0.25"
    (tmp_path / "b.csv").write_text(path.read_text().replace("label_cat", "label"))  # a label, and scores like tags
    assert run("evaluate", tmp_path / "b.csv", "--label", "label") == 2
    assert "pass --task multilabel if each is the probability of a label of its own" in capsys.readouterr().err


def test_bad_multilabel_tables_and_calibrators(tmp_path, capsys):
    path = table(tmp_path / "a.csv", PROBS, "prob_", "nothing_")
    assert run("evaluate", path, "--task", "multilabel") == 2
    assert "no label column for every score column" in capsys.readouterr().err
    assert run("evaluate", path, "--task", "multilabel", "--label", "nothing") == 0
    words = ["--method", "temperature", "--out", tmp_path / "cal.json", "--replicates", 0]
    assert run("calibrate", path, *words, "--shared") == 2
    assert "--shared is for --task multilabel" in capsys.readouterr().err
    named = ["--task", "multilabel", "--label", "nothing", "--keep-worse"]
    assert run("calibrate", path, "--method", "venn-abers", *words[2:], *named) == 0
    assert "Temperatures" not in capsys.readouterr().out
    assert run("apply", tmp_path / "cal.json", path, "--to", tmp_path / "to.csv") == 0
    assert (tmp_path / "to.csv").read_text().splitlines()[0] == path.read_text().splitlines()[0]
    assert run("calibrate", path, "--task", "multilabel", "--label", "nothing", *words, "--keep-worse") == 0
    np.savez(tmp_path / "two.npz", logits=SCORES[:, :2])
    assert run("apply", tmp_path / "cal.json", tmp_path / "two.npz", "--to", tmp_path / "to.npz") == 2
    assert "has 2 labels, but cal.json was fitted on 3" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--class-dim", "1"], ["--positive", "1"], ["--first-label", "0"]])
def test_options_without_effect_are_refused_in_calibrate(tmp_path, capsys, words):
    np.savez(tmp_path / "a.npz", logits=SCORES, labels=MANY)
    common = ["--task", "multilabel", "--method", "temperature", "--out", tmp_path / "cal.json"]
    assert run("calibrate", tmp_path / "a.npz", *common, *words) == 2
    assert f"{words[0]} is not for multi-label models" in capsys.readouterr().err
    assert not (tmp_path / "cal.json").exists()


def test_apply_with_a_calibrator_of_labels_says_what_is_wrong(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", logits=SCORES)
    cal, to = tmp_path / "cal.json", tmp_path / "to.npz"
    cal.write_text(MultiLabelCalibrator().to_json())
    assert run("apply", cal, tmp_path / "a.npz", "--to", to) == 2
    assert "the calibrator is not fitted" in capsys.readouterr().err
    cal.write_text(MultiLabelCalibrator().fit(SCORES, MANY).to_json())
    for words, says in ((["--class-dim", "1"], "--class-dim is not for"), (["--task", "binary"], "--task binary: ")):
        assert run("apply", cal, tmp_path / "a.npz", "--to", to, *words) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1
    assert not to.exists()


def test_names_of_labels_are_escaped_in_pages(tmp_path, capsys):
    """Names come from a file of somebody else: they are text in a page, and cannot command the terminal."""
    nasty = ["<script>alert(1)</script>", "a&b", "c\x1b[31m"]
    path = table(tmp_path / "a.csv", SCORES, "logits_")
    lines = path.read_text().split("\n", 1)
    path.write_text(",".join(f"{kind}_{name}" for kind in ("logits", "label") for name in nasty) + "\n" + lines[1])
    cal = ["--method", "temperature", "--out", tmp_path / "cal.json"]
    for number, words in enumerate((["evaluate", path], ["calibrate", path, *cal])):
        page = tmp_path / f"{number}.html"
        assert main([*map(str, words), "--task", "multilabel", "--replicates", "0", "--report", str(page)]) == 0
        assert "<script" not in page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in (tmp_path / "0.html").read_text(encoding="utf-8")
    assert "\x1b[31m" not in capsys.readouterr().out
