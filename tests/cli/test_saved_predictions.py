"""A file of Predictions.save is judged as the object is: draws, expected entropy and mutual information included."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from avuc import MultiLabelPredictions, Predictions, metrics
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
    assert "the mean of 7 posterior samples" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["p.npz", "p.pt", "p"])
def test_another_suffix_is_named(saved, tmp_path, capsys, name):
    saved[1].rename(tmp_path / name)  # `save` itself refuses these names
    assert main(["evaluate", str(tmp_path / name)]) == 2
    message = "is a .safetensors file, as Predictions.save writes it; rename it to p.safetensors\n"
    assert capsys.readouterr().err.endswith(message)


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


@pytest.mark.parametrize("words", [[], ["--fixed-memory"]])
def test_rows_that_are_left_out_have_no_expected_entropy(saved, words, tmp_path):
    predictions, path = saved
    options = ["--ignore-index", "2", *(words or ["--replicates", "0"]), "--json", str(tmp_path / "out.json")]
    assert main(["evaluate", str(path), *options]) == 0
    found, kept = json.loads((tmp_path / "out.json").read_text()), predictions.labels != 2
    for name in ("expected_entropy", "mutual_information"):
        assert found[name] == pytest.approx(float(getattr(predictions, name)[kept].double().mean()), rel=1e-5)


@pytest.fixture
def dense(tmp_path):
    """The pixels of one image are all alike; some have no label, and one image has none at all."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(60, 4, 1, generator=generator).expand(-1, -1, 20).contiguous()
    labels = torch.randint(0, 4, (60, 1), generator=generator).expand(-1, 20).clone()
    labels[torch.rand(60, 20, generator=generator) < 0.3] = -100
    labels[7] = -100
    predictions = Predictions.from_logits(logits, labels)
    predictions.save(tmp_path / "dense.safetensors")
    np.savez(tmp_path / "dense.npz", logits=logits.numpy(), labels=labels.numpy())
    np.savez(tmp_path / "less.npz", logits=logits.numpy(), labels=labels.where(labels != 2, -100).numpy())
    return tmp_path


def document(folder, *words):
    out = folder / "out.json"
    assert main([*map(str, words), "--json", str(out)]) == 0
    return json.loads(out.read_text())


def test_pixels_of_one_image_stay_together(dense):
    saved, arrays = dense / "dense.safetensors", dense / "dense.npz"
    replicates = ["--replicates", "100"]
    for words, other in (([], arrays), (["--ignore-index", "2"], dense / "less.npz")):
        first, second = (
            document(dense, "evaluate", saved, *replicates, *words),
            document(dense, "evaluate", other, *replicates),
        )
        assert first["bootstrap"] == second["bootstrap"] == "groups"
        for name, ends in second["intervals"].items():
            assert first["intervals"][name] == pytest.approx(ends, abs=1e-5), name
    calibrated = [
        document(dense, "calibrate", path, "--method", "temperature", "--out", dense / "c.json", *replicates)
        for path in (saved, arrays)
    ]
    assert calibrated[0]["groups"] == calibrated[1]["groups"] == 59
    assert calibrated[0]["change"]["nll"] == pytest.approx(calibrated[1]["change"]["nll"], abs=1e-5)
    for words in (["conformal"], ["select", "--risk", "0.5"]):
        first, second = (document(dense, *words, path, "--check", path)["checks"][0] for path in (saved, arrays))
        assert first.pop("file") != second.pop("file")
        assert first["images"] == second["images"] == 59
        assert first["rows"] == second["rows"]


def test_large_files_keep_pixels_together(dense, monkeypatch):
    monkeypatch.setattr("avuc.evaluation.files.read.needs_blocks", lambda *_: True)
    monkeypatch.setattr("avuc.metrics.blockwise.needs_blocks", lambda *_: True)
    for words, other in (([], "dense.npz"), (["--ignore-index", "2"], "less.npz")):
        found = [
            document(dense, "evaluate", path, "--replicates", "100", "--ood", path, *more)
            for path, more in ((dense / "dense.safetensors", words), (dense / other, []))
        ]
        assert [each["bootstrap"] for each in found] == ["groups"] * 2
        assert [each["detection_bootstrap"] for each in found] == ["groups"] * 2
        for name, ends in found[1]["intervals"].items():
            assert found[0]["intervals"][name] == pytest.approx(ends, abs=1e-5), name


@pytest.mark.parametrize(
    ("shape", "positions"),
    [("60,19", None), ("60,20,x", None), ("0,20", None), ("60,20", [0.5]), ("60,20", [1200]), ("60,20", [5, 4])],
)
def test_a_shape_that_does_not_fit_is_refused(dense, shape, positions, capsys):
    tensors, metadata = read_tensors(dense / "dense.safetensors")
    tensors = dict(tensors) | ({} if positions is None else {"positions": tensors["positions"].clone()})
    if positions is None:
        del tensors["positions"]
    else:
        changed = torch.tensor(positions)
        tensors["positions"] = tensors["positions"].to(changed.dtype)
        tensors["positions"][-len(positions) :] = changed
    write_tensors(dense / "bad.safetensors", tensors, metadata | {"shape": shape})
    assert main(["evaluate", str(dense / "bad.safetensors")]) == 2
    assert "write the file with Predictions.save" in capsys.readouterr().err


@pytest.fixture
def labels(tmp_path):
    """A multi-label model with draws: its predictions, and its logits as a file."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 2, (200, 3), generator=generator)
    draws = 2 * torch.randn(5, 200, 3, generator=generator) + 2 * (2 * targets - 1)
    targets[0, 1] = -100
    predictions = MultiLabelPredictions.from_samples(draws, targets, names=["cat", "dog", "bird"])
    predictions.save(tmp_path / "labels.safetensors")
    np.savez(tmp_path / "labels.npz", logits=draws.numpy(), labels=targets.numpy())
    return predictions, tmp_path


@pytest.mark.parametrize("name", ["labels.safetensors", "labels.npz"])
def test_draws_of_a_multilabel_model(labels, name):
    predictions, folder = labels
    decisions = predictions.flatten()
    found = document(folder, "evaluate", folder / name, "--task", "multilabel", "--replicates", "0")
    assert found["samples"] == 5
    for each in ("expected_entropy", "mutual_information"):
        assert found[each] == pytest.approx(float(getattr(decisions, each).mean()), rel=1e-5)
    if name == "labels.safetensors":
        assert found["labels"] == ["cat", "dog", "bird"]
    words = ["--task", "multilabel", "--method", "temperature", "--out", folder / "c.json", "--replicates", "0"]
    found = document(folder, "calibrate", folder / name, *words, "--keep-worse")
    # of the saved mean only one number is known for each decision
    assert (found["samples"], found["mutual_information"] > 0.01) == ((5, True) if name == "labels.npz" else (1, False))


def test_a_calibrated_multilabel_file_has_the_entropy_of_its_scores(labels):
    _, folder = labels
    path, cal, to = (folder / name for name in ("labels.safetensors", "c.json", "to.safetensors"))
    assert main(["calibrate", str(path), "--task", "multilabel", "--method", "temperature", "--out", str(cal)]) == 0
    assert main(["apply", str(cal), str(path), "--to", str(to)]) == 0
    found = MultiLabelPredictions.load(to)
    assert (found.samples, found.names) == (1, ("cat", "dog", "bird"))
    torch.testing.assert_close(found.flatten().expected_entropy, found.flatten().entropy)


@pytest.mark.parametrize("changed", [{"samples": "x"}, {"names": "[1, 2, 3]"}, {"names": "["}])
def test_damaged_multilabel_files_are_refused(labels, changed, capsys):
    _, folder = labels
    tensors, metadata = read_tensors(folder / "labels.safetensors")
    write_tensors(folder / "bad.safetensors", dict(tensors), metadata | changed)
    assert main(["evaluate", str(folder / "bad.safetensors"), "--task", "multilabel"]) == 2
    assert "write the file with MultiLabelPredictions.save" in capsys.readouterr().err
