"""`avuc evaluate --more` and `--group`."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from avuc import metrics
from avuc.cli import main, more
from avuc.evaluation.decomposition import decompose
from avuc.evaluation.files import read_scores
from avuc.metrics import MORE_METRICS

from .conftest import overconfident


def run(*words):
    return main([str(word) for word in words])


@pytest.fixture
def sites(tmp_path):
    logits, labels = overconfident(200, 0)
    np.savez(tmp_path / "sites.npz", logits=logits, labels=labels, site=np.array(["north", "south"])[labels % 2])
    return tmp_path / "sites.npz"


def test_figures_are_those_of_the_library_and_the_other_keys_stay(sites, tmp_path, capsys):
    plain, both = tmp_path / "plain.json", tmp_path / "both.json"
    assert run("evaluate", sites, "--replicates", 30, "--json", plain, "--quiet") == 0
    assert run("evaluate", sites, "--replicates", 30, "--json", both, "--more", "--group", "site") == 0
    out = capsys.readouterr().out
    for title in ("SmoothECE", "NLL, calibration", "predicted class", "north"):
        assert title in out
    before, after = json.loads(plain.read_text()), json.loads(both.read_text())
    few = "2 values of 'site' are too few to resample (at least 20), so intervals resample rows"
    assert few in " ".join(out.split())
    assert {key: after[key] for key in before} == before | {"notes": [*before["notes"], few]}
    assert set(after) - set(before) == {"more", "group", "groups"}
    predictions = read_scores(sites).predictions()
    for name in MORE_METRICS:
        value = MORE_METRICS[name](predictions.probs, predictions.labels)
        assert after["more"]["metrics"][name] == pytest.approx(value)
        assert len(after["more"]["intervals"][name]) == 2
    parts = decompose(predictions, replicates=0)
    assert after["more"]["metrics"]["nll_refinement"] == pytest.approx(parts["nll_refinement"].value)
    assert sum(each["rows"] for each in after["more"]["classes"]) == 200
    assert after["group"] == "site"
    for each in after["groups"]:
        rows = (predictions.labels % 2 == 0) == (each["name"] == "north")
        assert each["metrics"]["ece"] == pytest.approx(metrics.ece(predictions.probs[rows], predictions.labels[rows]))


def test_intervals_resample_many_groups(tmp_path):
    logits, labels = overconfident(40, 0)
    rows, patients = np.tile(np.arange(40), 4), np.tile([f"P{k}" for k in range(40)], 4)
    np.savez(tmp_path / "four.npz", logits=logits[rows], labels=labels[rows], patient=patients)
    np.savez(tmp_path / "one.npz", logits=logits, labels=labels, patient=patients[:40])
    some = np.where(rows < 20, patients, "")  # rows without a group are independent
    np.savez(tmp_path / "some.npz", logits=logits[rows], labels=labels[rows], patient=some)
    wide = {}
    for name in ("four", "one", "some"):
        words = ["evaluate", tmp_path / f"{name}.npz", "--group", "patient", "--more", "--quiet"]
        assert run(*words, "--replicates", 200, "--json", tmp_path / f"{name}.json") == 0
        found = json.loads((tmp_path / f"{name}.json").read_text())
        wide[name] = np.diff([found["intervals"]["nll"], found["more"]["intervals"]["augrc"]])[:, 0]
        assert found["bootstrap"] == ("rows" if name == "one" else "groups")
    np.testing.assert_allclose(wide["four"], wide["one"], rtol=0.25)  # copies of a patient add no information
    assert wide["some"][0] < 0.9 * wide["four"][0]


def test_detection_resamples_groups_of_both_files(tmp_path, capsys):
    logits, labels = overconfident(40, 0)
    rows, patients = np.tile(np.arange(40), 4), np.tile([f"P{k}" for k in range(40)], 4)
    np.savez(tmp_path / "four.npz", logits=logits[rows], labels=labels[rows], patient=patients)
    other = 0.5 * logits
    np.savez(tmp_path / "named.npz", logits=other[rows], patient=patients)
    np.savez(tmp_path / "other.npz", logits=other[rows])
    wide, words = {}, ["evaluate", tmp_path / "four.npz", "--group", "patient"]
    for name in ("named", "other"):
        out = tmp_path / "out.json"
        assert run(*words, "--ood", tmp_path / f"{name}.npz", "--replicates", 200, "--json", out) == 0
        found = json.loads(out.read_text())
        assert found["detection_bootstrap"] == "groups"
        wide[name] = np.ptp(found["detection_intervals"]["auroc"])
        note = "other.npz has no column 'patient', so detection takes its rows as independent"
        assert (note in found["notes"]) == (name == "other") == (note in " ".join(capsys.readouterr().out.split()))
    alone = np.ptp(metrics.detection_intervals(*(entropy(one) for one in (logits, other)))["auroc"][1:])
    assert wide["named"] == pytest.approx(alone, rel=0.25)
    assert wide["other"] < 0.9 * wide["named"]


def test_detection_resamples_groups_of_the_other_file_only(tmp_path):
    """One row for each patient of the first file, many for each of the other one."""
    logits, labels = overconfident(200, 0)
    np.savez(tmp_path / "single.npz", logits=logits, labels=labels, patient=np.arange(200))
    rows = np.repeat(np.arange(30), 20)
    np.savez(tmp_path / "many.npz", logits=0.5 * logits[rows], patient=rows)
    out, words = tmp_path / "out.json", ["--ood", tmp_path / "many.npz", "--group", "patient", "--replicates", 200]
    assert run("evaluate", tmp_path / "single.npz", *words, "--json", out) == 0
    found = json.loads(out.read_text())
    assert (found["bootstrap"], found["detection_bootstrap"], found["notes"]) == ("rows", "groups", [])
    once = metrics.detection_intervals(entropy(logits), entropy(0.5 * logits[:30]))["auroc"]
    assert np.ptp(found["detection_intervals"]["auroc"]) == pytest.approx(once.high - once.low, rel=0.25)


def test_detection_resamples_patients_of_dense_scores(tmp_path):
    """Three images of a patient are alike: the interval is that of one image of each."""
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(24), 3)
    first, other = (scale * rng.normal(size=(24, 4, 6)) for scale in (3.0, 2.0))
    labels = rng.integers(0, 4, (24, 6))
    wide = {}
    for name, of in (("three", patients), ("one", np.arange(24))):
        np.savez(tmp_path / f"{name}.npz", logits=first[of], labels=labels[of], patient=of)
        np.savez(tmp_path / f"{name}-other.npz", logits=other[of], patient=of)
        words = ["--ood", tmp_path / f"{name}-other.npz", "--group", "patient", "--replicates", 200]
        assert run("evaluate", tmp_path / f"{name}.npz", *words, "--json", tmp_path / "out.json") == 0
        wide[name] = np.ptp(json.loads((tmp_path / "out.json").read_text())["detection_intervals"]["auroc"])
    assert wide["three"] == pytest.approx(wide["one"], rel=0.15)


def test_rows_without_a_number_as_group_are_alone(tmp_path):
    logits, labels = overconfident(200, 0)
    patients = np.arange(200.0)
    np.savez(tmp_path / "all.npz", logits=logits, labels=labels, patient=np.append(patients[:-1], 0))
    patients[:150] = np.nan
    np.savez(tmp_path / "some.npz", logits=logits, labels=labels, patient=np.append(patients[:-1], 198))
    ends = []
    for name in ("all", "some"):
        out = tmp_path / "out.json"
        assert run("evaluate", tmp_path / f"{name}.npz", "--group", "patient", "--replicates", 200, "--json", out) == 0
        ends.append(np.ptp(json.loads(out.read_text())["intervals"]["accuracy"]))
    assert ends[1] == pytest.approx(ends[0], rel=0.2)


def entropy(logits):
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -(p * np.log(p)).sum(1)


def test_without_replicates_there_are_no_intervals(sites, tmp_path):
    assert run("evaluate", sites, "--replicates", 0, "--json", tmp_path / "j.json", "--more", "--quiet") == 0
    assert json.loads((tmp_path / "j.json").read_text())["more"]["intervals"] == {}


def test_the_page_has_the_tables(sites, tmp_path):
    page = tmp_path / "page.html"
    assert run("evaluate", sites, "--replicates", 20, "--more", "--group", "site", "--report", page, "--quiet") == 0
    text = page.read_text(encoding="utf-8")
    for heading in ("More metrics", "Calibration of each predicted class", "Calibration by site"):
        assert f"<h2>{heading}</h2>" in text


def test_one_row(tmp_path):
    np.savez(tmp_path / "one.npz", probs=[[0.7, 0.3]], labels=[0])
    assert run("evaluate", tmp_path / "one.npz", "--more", "--quiet", "--json", tmp_path / "j.json") == 0
    assert set(json.loads((tmp_path / "j.json").read_text())["more"]["metrics"]) == set(MORE_METRICS)


def test_every_figure_has_a_text():
    parts = {f"{loss}_{part}" for loss in ("nll", "brier") for part in ("refinement", "calibration")}
    assert set(more.TEXTS) == {*MORE_METRICS, *parts}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--group", "town"], "has no column 'town'"),
        (["--more", "--fixed-memory"], "--fixed-memory"),
        (["--group", "site", "--task", "multilabel"], "multilabel"),
    ],
)
def test_bad_input_is_one_line(sites, words, problem, capsys):
    assert run("evaluate", sites, *words) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ";"), (".csv", "\t"), (".tsv", "\t"), (".tsv", ",")])
def test_groups_of_tables_with_other_separators(tmp_path, suffix, separator):
    file = tmp_path / f"scores{suffix}"
    rows = [
        ("label", "probs_0", "probs_1", "site"),
        *[(k % 2, 0.7, 0.3, "south" if k % 3 else "north") for k in range(30)],
    ]
    file.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows))
    words = ["evaluate", file, "--group", "site", "--replicates", 0, "--quiet", "--json", tmp_path / "j.json"]
    assert run(*words) == 0
    groups = json.loads((tmp_path / "j.json").read_text())["groups"]
    assert [(group["name"], group["rows"]) for group in groups] == [("north", 10), ("south", 20)]


def segmentation(patients=20, images=3, size=6):
    """Dense logits (N, 3, H, W); images of one patient are about equally hard, and class 2 is never predicted."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(patients), images)
    labels = rng.choice([0, 1, 2], size=(len(patient), size, size), p=[0.6, 0.35, 0.05])
    right = rng.random(labels.shape) < 0.5 + 0.45 * rng.random(patients)[patient][:, None, None]
    said = np.where(right & (labels < 2), labels, 1 - np.minimum(labels, 1))
    logits = 2.0 * np.eye(3)[said].transpose(0, 3, 1, 2)
    labels[:, 0] = -100
    return logits.astype(np.float32), labels, patient


def test_groups_of_dense_scores_are_those_of_their_images(tmp_path, capsys):
    logits, labels, patient = segmentation()
    file, out, page = (tmp_path / name for name in ("a.npz", "a.json", "a.html"))
    np.savez(file, logits=logits, labels=labels, patient=[f"p{number:02d}" for number in patient])
    assert run("evaluate", file, "--more", "--group", "patient", "--json", out, "--report", page) == 0
    assert re.search(r"^2 +0 +– +–", capsys.readouterr().out, re.MULTILINE)  # the class that is never predicted
    found = json.loads(out.read_text())
    right = (logits.argmax(1) == labels)[:, 1:].reshape(20, 3, -1).mean(2)  # (patient, image)
    assert [group["name"] for group in found["groups"]] == [f"p{number:02d}" for number in range(20)]
    assert [group["metrics"]["accuracy"] for group in found["groups"]] == pytest.approx(right.mean(1).tolist())
    # intervals over all: patients are resampled
    assert found["bootstrap"] == "groups"
    low, high = found["intervals"]["accuracy"]
    spread = 1.96 * right.mean(1).std(ddof=1) / np.sqrt(20)
    assert (high - low) / 2 == pytest.approx(spread, rel=0.25)
    assert ">p07<" in page.read_text()


def test_intervals_of_a_group_resample_its_images(tmp_path):
    """Two images of a patient are all right, two are all wrong: pixels would give a narrow interval around 50 %."""
    logits = np.zeros((80, 2, 5, 5), np.float32)
    logits[:, 0] = 2.0
    labels = np.zeros((80, 5, 5), int)
    labels[1::2] = 1
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, patient=np.arange(80) // 4, image=np.arange(80))
    for name, width in (("patient", 0.6), ("image", None)):
        out = tmp_path / f"{name}.json"
        assert run("evaluate", tmp_path / "a.npz", "--group", name, "--json", out, "--quiet") == 0
        first = json.loads(out.read_text())["groups"][0]
        if width is None:
            assert "accuracy" not in first["intervals"]  # one image says nothing about others
        else:
            low, high = first["intervals"]["accuracy"]
            assert high - low > width


def test_few_groups_of_dense_scores_resample_images(tmp_path, capsys):
    logits, labels, patient = segmentation()
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, site=patient % 3)
    assert run("evaluate", tmp_path / "a.npz", "--group", "site", "--json", tmp_path / "a.json") == 0
    assert "so intervals resample images or sentences" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "a.json").read_text())["bootstrap"] == "groups"


def test_large_files_have_groups(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 120_000)
    logits = rng.normal(size=(120_000, 2)).astype(np.float32)
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, site=np.arange(120_000) % 2)
    words = ["--group", "site", "--json", tmp_path / "a.json", "--quiet", "--replicates", 20]
    assert run("evaluate", tmp_path / "a.npz", *words) == 0
    groups = json.loads((tmp_path / "a.json").read_text())["groups"]
    right = logits.argmax(1) == labels
    assert [each["metrics"]["accuracy"] for each in groups] == pytest.approx([right[::2].mean(), right[1::2].mean()])


@pytest.mark.parametrize(
    ("words", "separate"), [([], False), (["--fixed-memory"], False), (["--group", "patient"], False), ([], True)]
)
def test_padding_is_not_out_of_distribution(tmp_path, words, separate, monkeypatch):
    """Positions with the label −100 are left out of both files; one sentence of the other file has nothing else."""
    rng = np.random.default_rng(0)
    documents, entropies = [], []
    for name, scale in (("in", 3.0), ("out", 1.0)):
        labels = rng.integers(0, 4, (40, 10))
        logits = scale * rng.normal(size=(40, 4, 10))
        labels[rng.random((40, 10)) < 0.3] = -100
        labels[5] = -100
        logits[np.repeat((labels == -100)[:, None], 4, 1)] = 0.0
        np.savez(tmp_path / f"{name}.npz", logits=logits, labels=labels, patient=np.arange(40) // 2)
        np.save(tmp_path / f"{name}_logits.npy", logits)
        np.save(tmp_path / f"{name}_labels.npy", labels)
        entropies.append(entropy(np.moveaxis(logits, 1, -1)[labels != -100]))
    expected = metrics.detection(*entropies)["auroc"]
    for large in (False, True):
        if large and not words:
            monkeypatch.setattr("avuc.evaluation.files.read.needs_blocks", lambda *_: True)
        out = tmp_path / "out.json"
        replicates = [] if words == ["--fixed-memory"] else ["--replicates", 50]
        other = tmp_path / ("out_logits.npy" if separate else "out.npz")
        command = ["evaluate", tmp_path / "in.npz", "--ood", other, *words, *replicates]
        assert run(*command, "--json", out) == 0
        documents.append(json.loads(out.read_text()))
        assert documents[-1]["detection"]["auroc"] == pytest.approx(
            expected, abs=2e-3 if "--fixed-memory" in words else 1e-5
        )


def test_labels_of_other_data_are_not_read_otherwise(tmp_path):
    """No label at all, or labels of other classes: every position counts."""
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(30, 4, 5)), rng.integers(0, 4, (30, 5))
    np.savez(tmp_path / "in.npz", logits=3 * logits, labels=labels)
    found = []
    for other in (None, np.full((30, 5), -100), labels + 50):
        np.savez(tmp_path / "out.npz", logits=logits, **({} if other is None else {"labels": other}))
        words = ["evaluate", tmp_path / "in.npz", "--ood", tmp_path / "out.npz", "--replicates", 0]
        assert run(*words, "--json", tmp_path / "out.json") == 0
        found.append(json.loads((tmp_path / "out.json").read_text())["detection"])
    np.save(tmp_path / "out_logits.npy", logits)
    for other in (np.full((30, 5), -100), labels + 50, np.full(30, "zebra"), np.full(7, -100)):
        np.save(tmp_path / "out_labels.npy", other)
        words = ["evaluate", tmp_path / "in.npz", "--ood", tmp_path / "out_logits.npy", "--replicates", 0]
        assert run(*words, "--json", tmp_path / "out.json") == 0
        found.append(json.loads((tmp_path / "out.json").read_text())["detection"])
    assert all(each == found[0] for each in found)


def test_many_classes_that_are_never_predicted_are_counted(tmp_path, capsys):
    """They were all printed, below "The 20 classes with the highest ECE"."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 100))
    logits[:, 60:] -= 50
    np.savez(tmp_path / "a.npz", logits=logits, labels=np.arange(300) % 100)
    assert run("evaluate", tmp_path / "a.npz", "--more", "--replicates", 0) == 0
    out = capsys.readouterr().out
    predicted = set(logits.argmax(1).tolist())
    assert f"{100 - len(predicted)} classes are never predicted; 20 of them are shown." in out
    assert len(re.findall(r"^\d+ +0 +– +–", out, re.MULTILINE)) == 20
