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
