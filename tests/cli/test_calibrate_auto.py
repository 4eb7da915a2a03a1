"""`avuc calibrate --method auto`: what it writes, what it says, and when it changes nothing."""

from __future__ import annotations

import json

import numpy as np
import torch

from avuc.calibration import AutoCalibrator, Calibrator, TemperatureScaling
from avuc.cli import main
from avuc.evaluation import compare
from avuc.evaluation.files import read_scores


def test_it_writes_the_chosen_calibrator_and_says_why(validation, probs, tmp_path, capsys):
    out, figures, moved = tmp_path / "cal.json", tmp_path / "figures.json", tmp_path / "moved.npz"
    words = ["--json", str(figures), "--apply", str(probs), "--to", str(moved), "--replicates", "0"]
    assert main(["calibrate", str(validation), "--method", "auto", "--out", str(out), *words]) == 0
    file = read_scores(validation)
    expected = AutoCalibrator().fit(file.scores, file.labels)
    saved = Calibrator.load(out)
    assert saved.to_json() == expected.to_json()
    assert saved.name != "auto"
    found = json.loads(figures.read_text())
    assert found["method"] == "auto"
    assert [row["method"] for row in found["candidates"]] == [row.method for row in expected.table_]
    said = " ".join(capsys.readouterr().out.split())
    assert "tried by auto NLL change [95 % interval] Brier ECE" in said
    assert f"auto: {expected.reason_}" in said
    assert main(["apply", str(out), str(probs), "--to", str(tmp_path / "again.npz")]) == 0
    assert torch.equal(read_scores(tmp_path / "again.npz").scores, read_scores(moved).scores)


def test_the_metrics_come_from_a_choice_in_every_fold(validation):
    """The choice is part of what is held out, so the metrics are not optimistic."""
    file = read_scores(validation)
    _, result = compare(file, "auto", folds=3, replicates=0)
    order = torch.randperm(len(file.labels), generator=torch.Generator().manual_seed(0))
    total = 0.0
    for part in order.tensor_split(3):
        rest = torch.ones(len(file.labels), dtype=torch.bool)
        rest[part] = False
        fitted = AutoCalibrator(folds=3).fit(file.scores[rest], file.labels[rest])
        logs = torch.as_tensor(fitted.transform(file.scores[part])).double().log_softmax(-1)
        total -= float(logs.gather(1, file.labels[part][:, None]).sum())
    assert np.isclose(result.after.metrics["nll"], total / len(file.labels), rtol=1e-5)


def test_few_rows_change_nothing(tmp_path, capsys):
    np.savez(tmp_path / "few.npz", logits=np.tile([[9.0, 0.0], [0.0, 9.0]], (5, 1)), labels=[0, 1] * 5)
    out = tmp_path / "cal.json"
    assert main(["calibrate", str(tmp_path / "few.npz"), "--method", "auto", "--out", str(out)]) == 0
    saved = Calibrator.load(out)
    assert isinstance(saved, TemperatureScaling)
    assert saved.is_identity
    said = " ".join(capsys.readouterr().out.split())
    assert "10 rows are too few to choose a calibrator" in said
    assert "ECE stays at" in said
    assert "ECE rises" not in said


def test_multilabel_is_refused_in_one_line(validation, tmp_path, capsys):
    words = ["--method", "auto", "--task", "multilabel", "--out", str(tmp_path / "cal.json")]
    assert main(["calibrate", str(validation), *words]) == 2
    assert "--method auto is not for --task multilabel; choose one of temperature" in capsys.readouterr().err


def test_images_and_groups_are_held_out_as_a_whole(tmp_path, capsys):
    """Dense scores and a table with the names of the images give the same figures; pixels as rows do not."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (30, 12))
    logits = 4 * (rng.normal(size=(30, 12, 3)) + rng.normal(size=(30, 1, 3)) + np.eye(3)[labels]).astype(np.float32)
    np.savez(tmp_path / "dense.npz", logits=np.moveaxis(logits, -1, 1), labels=labels)
    lines = [
        ",".join([*map(repr, row.tolist()), str(label), f"image {number // 12:02}"])
        for number, (row, label) in enumerate(zip(logits.reshape(-1, 3), labels.reshape(-1), strict=True))
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["logits_0,logits_1,logits_2,label,picture", *lines]) + "\n")
    found = {}
    for name, words in (
        ("dense", ["dense.npz"]),
        ("named", ["rows.csv", "--group", "picture"]),
        ("rows", ["rows.csv"]),
    ):
        command = ["calibrate", str(tmp_path / words[0]), *words[1:], "--method", "auto", "--replicates", "40"]
        assert main([*command, "--out", str(tmp_path / "cal.json"), "--json", str(tmp_path / "j.json")]) == 0
        found[name] = json.loads((tmp_path / "j.json").read_text())
        assert not any("not independent" in note for note in found[name]["notes"])
    said = " ".join(capsys.readouterr().out.split())
    assert "5 parts of 30 whole images or groups" in said
    assert "40 bootstrap replicates of the images or groups" in said
    assert (found["dense"]["groups"], found["named"]["groups"], found["rows"].get("groups")) == (30, 30, None)
    for key in ("change", "candidates", "check"):
        assert json.dumps(found["dense"][key]) == json.dumps(found["named"][key])
    width = {name: each["change"]["nll"][2] - each["change"]["nll"][1] for name, each in found.items()}
    assert width["dense"] > 1.3 * width["rows"]
    assert (
        main(["calibrate", str(tmp_path / "rows.csv"), "--group", "none", "--method", "auto", "--out", "x.json"]) == 2
    )
    assert "has no column 'none'" in capsys.readouterr().err
