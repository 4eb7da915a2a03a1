"""A file of Predictions.save is judged as the object is: draws, expected entropy and mutual information included."""

from __future__ import annotations

import json

import pytest
import torch

from avuc import Predictions, metrics
from avuc.cli import main
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.evaluation.files import read_scores


@pytest.fixture
def saved(tmp_path):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (200,), generator=generator)
    draws = torch.randn(7, 200, 5, generator=generator) + 1.2 * torch.nn.functional.one_hot(labels, 5)
    predictions = Predictions.from_samples(draws, labels)
    predictions.save(tmp_path / "p.safetensors")
    return predictions, tmp_path / "p.safetensors"


def test_the_command_and_the_object_agree(saved, tmp_path, capsys):
    predictions, path = saved
    assert main(["evaluate", str(path), "--replicates", "0", "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["samples"] == 7
    assert found["expected_entropy"] == pytest.approx(float(predictions.expected_entropy.double().mean()), rel=1e-6)
    assert found["mutual_information"] == pytest.approx(float(predictions.mutual_information.double().mean()), rel=1e-5)
    assert found["mutual_information"] > 0.05
    expected = metrics.evaluate(predictions)
    assert {name: found["metrics"][name] for name in expected} == pytest.approx(expected, nan_ok=True)
    assert "the mean of 7 draws" in capsys.readouterr().out


def test_read_scores_gives_the_object_back(saved):
    predictions, path = saved
    again = read_scores(path).predictions()
    assert again.samples == predictions.samples
    torch.testing.assert_close(again.expected_entropy, predictions.expected_entropy)
    torch.testing.assert_close(again.probs, predictions.probs)
    torch.testing.assert_close(again.mutual_information, predictions.mutual_information)


def test_rows_without_labels_are_no_labels(saved, capsys):
    predictions, path = saved
    Predictions(predictions.probs, torch.full((200,), -1), predictions.expected_entropy, 7).save(path)
    assert read_scores(path).labels is None
    assert main(["evaluate", str(path), "--replicates", "0"]) == 2
    assert "no labels" in capsys.readouterr().err


@pytest.mark.parametrize("samples", ["0", "-3", "x", "9" * 12, "7.5"])
def test_draws_that_make_no_sense_are_refused(saved, samples, capsys):
    _, path = saved
    tensors, metadata = read_tensors(path)
    write_tensors(path, {name: tensor.clone() for name, tensor in tensors.items()}, metadata | {"samples": samples})
    assert main(["evaluate", str(path), "--replicates", "0"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "samples" in line


def test_expected_entropy_of_another_shape_is_refused(saved, capsys):
    _, path = saved
    tensors, metadata = read_tensors(path)
    held = {name: tensor.clone() for name, tensor in tensors.items()}
    for wrong in (torch.zeros(3), torch.full((200,), torch.nan), torch.full((200,), 9.0)):
        write_tensors(path, held | {"expected_entropy": wrong}, metadata)
        assert main(["evaluate", str(path), "--replicates", "0"]) == 2
        assert "expected_entropy" in capsys.readouterr().err


def test_a_calibrator_for_averaged_draws_is_said_to_act_on_the_mean(saved, tmp_path, capsys):
    _, path = saved
    words = [
        "calibrate",
        str(path),
        "--method",
        "temperature",
        "--out",
        str(tmp_path / "cal.json"),
        "--replicates",
        "0",
    ]
    assert main(words) == 0
    assert "a calibrator acts on this mean" in " ".join(capsys.readouterr().out.split())
