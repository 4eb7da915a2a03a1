"""scikit-learn's conventions and the JSON form, for every calibrator."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

import avuc.calibration
from avuc.calibration import CALIBRATORS, Calibrator, MultiLabelCalibrator, TemperatureScaling, VectorScaling
from avuc.calibration.scaled_logits import ScaledLogits
from avuc.core.errors import InputError

EVERY = pytest.mark.parametrize("name", CALIBRATORS)


@pytest.fixture(scope="module")
def fitted(make_logits):
    logits, labels = make_logits(rows=120)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: kind().fit(logits, labels) for name, kind in CALIBRATORS.items()}, logits


def test_every_calibrator_is_listed_under_its_name():
    found = {c for c in vars(avuc.calibration).values() if isinstance(c, type) and issubclass(c, Calibrator)}
    # multi-label models are not one class of many; the last two are made of the listed
    others = {Calibrator, MultiLabelCalibrator, avuc.calibration.AutoCalibrator, avuc.calibration.BlendedCalibrator}
    assert found - others == set(CALIBRATORS.values())
    assert all(kind.name == name for name, kind in CALIBRATORS.items())


@EVERY
def test_parameters_and_clone(name, fitted):
    calibrator = fitted[0][name]
    twin = clone(calibrator)
    assert twin.get_params() == calibrator.get_params()
    assert not hasattr(twin, "temperature_")
    assert repr(twin) == f"{type(calibrator).__name__}()"
    for key in {"ridge", "tolerance"} & set(twin.get_params()):
        other = clone(calibrator)
        assert other.set_params(**{key: 0.01}) is other
        assert other.get_params()[key] == 0.01
        assert repr(other) == f"{type(calibrator).__name__}({key}=0.01)"
    with pytest.raises(InputError, match="has no parameter 'speed'"):
        twin.set_params(speed=1)


@EVERY
def test_json_round_trip_is_exact(name, fitted, tmp_path):
    calibrator, logits = fitted[0][name], fitted[1]
    calibrator.save(tmp_path / "calibrator.json")
    assert [p.name for p in tmp_path.iterdir()] == ["calibrator.json"]
    for again in (Calibrator.load(tmp_path / "calibrator.json"), type(calibrator).from_json(calibrator.to_json())):
        assert type(again) is type(calibrator)
        assert again.get_params() == calibrator.get_params()
        np.testing.assert_array_equal(again.transform(logits), calibrator.transform(logits))
        assert again.to_json() == calibrator.to_json()
        np.testing.assert_array_equal(again.curve_, calibrator.curve_)


@EVERY
def test_fit_transform_is_fit_then_transform(name, fitted, make_logits):
    logits, labels = make_logits(rows=120)
    np.testing.assert_array_equal(CALIBRATORS[name]().fit_transform(logits, labels), fitted[0][name].transform(logits))


@EVERY
def test_unfitted_round_trip(name):
    again = Calibrator.from_json(CALIBRATORS[name]().to_json())
    with pytest.raises(InputError, match="is not fitted"):
        again.transform(np.zeros((2, 3)))


def test_a_subclass_reads_only_its_own(fitted):
    with pytest.raises(InputError, match=r"one of \['vector'\]; found 'temperature'"):
        VectorScaling.from_json(fitted[0]["temperature"].to_json())


def change(**changes):
    def apply(content):
        for path, value in changes.items():
            *parents, key = path.split("__")
            target = content
            for parent in parents:
                target = target[parent]
            target[key] = value

    return apply


def drop(parent, key):
    return lambda content: content[parent].pop(key) if parent else content.pop(key)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change(learned__temperature=0.0), "temperature must be above 0"),
        (change(learned__temperature=-1.5), "temperature must be above 0"),
        (change(learned__temperature="2"), "temperature must be a finite number; found '2'"),
        (change(learned__temperature=True), "temperature must be a finite number"),
        (change(learned__temperature=float("nan")), "finite number; found nan"),
        (change(learned__temperature=float("inf")), "finite number; found inf"),
        (change(learned__num_classes=0), "num_classes must be at least 1"),
        (change(learned__num_classes=2.5), "num_classes must be a whole number"),
        (change(learned__at_bound=1), "at_bound must be true or false"),
        (change(learned__curve=[[1.0]]), "curve must be two lists"),
        (change(learned__curve=[[1.0], [1.0, 2.0]]), "as many temperatures as losses"),
        (change(learned__curve=[[1.0], ["a"]]), "curve must be a finite number; found 'a'"),
        (change(learned__curve=[1.0, 2.0]), "list of numbers"),
        (change(learned__extra=1), r"unknown \['extra'\]"),
        (change(extra=1), r"unknown \['extra'\]"),
        (change(params__extra=1), r"unknown \['extra'\]"),
        (change(params__bounds=[3.0, 1.0]), "0 < low < high"),
        (change(params__bounds="wide"), "two temperatures"),
        (change(params__objective="x"), "objective must be one of"),
        (change(params=[1]), "params must be an object"),
        (change(version=2), "version 1 is needed; found 2"),
        (change(format="other"), "not a calibrator"),
        (change(calibrator="unknown"), "calibrator must be one of"),
        (change(calibrator=["temperature"]), "calibrator must be a name"),
        (drop("learned", "temperature"), r"missing \['temperature'\]"),
        (drop("params", "bounds"), r"missing \['bounds'\]"),
        (drop(None, "learned"), r"missing \['learned'\]"),
    ],
)
def test_spoiled_json_says_what_is_wrong(fitted, spoil, message, tmp_path):
    content = json.loads(fitted[0]["temperature"].to_json())
    spoil(content)
    with pytest.raises(InputError, match=message):
        Calibrator.from_json(json.dumps(content))
    path = tmp_path / "spoiled.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"spoiled\.json: "):
        Calibrator.load(path)


@pytest.mark.parametrize("key", ["scale", "bias"])
def test_vectors_must_have_one_entry_per_class(fitted, key):
    content = json.loads(fitted[0]["vector"].to_json())
    content["learned"][key] = [1.0, 2.0]
    with pytest.raises(InputError, match="one entry for each of 5 classes"):
        Calibrator.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"avuc"', "{}", "[" * 100_000])
def test_what_is_not_json_or_not_ours(text):
    with pytest.raises(InputError, match="calibrator JSON: not"):
        Calibrator.from_json(text)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.json: cannot read"):
        TemperatureScaling.load(tmp_path / "nothing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"bytes\.json"):
        TemperatureScaling.load(tmp_path / "bytes.json")


def test_saving_into_a_missing_folder_leaves_nothing(fitted, tmp_path):
    with pytest.raises(InputError, match="cannot write here"):
        fitted[0]["temperature"].save(tmp_path / "missing" / "calibrator.json")
    assert list(Path(tmp_path).iterdir()) == []


def test_small_fits_use_one_thread_and_restore_the_setting(monkeypatch) -> None:
    seen = []
    real = ScaledLogits.read.__func__
    monkeypatch.setattr(
        ScaledLogits, "read", classmethod(lambda cls, *a: seen.append(torch.get_num_threads()) or real(cls, *a))
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        labels = torch.arange(50) % 3
        # right more often than not: noise alone has its best temperature at the end of the range, which is warned about
        noise = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        logits = noise + torch.nn.functional.one_hot(labels, 3)
        for kind in CALIBRATORS.values():
            kind().fit(logits, labels)
            assert torch.get_num_threads() == 2
        assert set(seen) == {1}
        with pytest.raises(InputError):
            TemperatureScaling().fit(logits * torch.nan, labels)
        assert torch.get_num_threads() == 2
        seen.clear()
        monkeypatch.setattr("avuc.calibration.scaled_logits.ONE_THREAD_ELEMENTS", 10)
        TemperatureScaling().fit(logits, labels)
        assert set(seen) == {2}
    finally:
        torch.set_num_threads(before)


@EVERY
def test_blocks_of_rows_give_the_same_logits(name, fitted, monkeypatch):
    calibrator, logits = fitted[0][name], fitted[1]
    draws = np.stack([logits, logits + 0.5])
    whole, whole_draws = calibrator.transform(logits), calibrator.transform(draws)
    sizes, apply = [], calibrator._apply
    monkeypatch.setattr(calibrator, "_apply", lambda block: sizes.append(block.numel()) or apply(block))
    monkeypatch.setattr("avuc.calibration.inputs.BLOCK_ELEMENTS", 100)
    np.testing.assert_allclose(calibrator.transform(logits), whole, rtol=0, atol=1e-6)
    np.testing.assert_allclose(calibrator.transform(draws), whole_draws, rtol=0, atol=1e-6)
    assert max(sizes) <= 100
    tensor = torch.as_tensor(logits).requires_grad_()
    assert calibrator.transform(tensor).shape == tensor.shape


def test_multilabel_logits_are_calibrated_in_blocks(monkeypatch):
    logits = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    calibrator = MultiLabelCalibrator().fit(logits, logits > 0.2)
    images = np.stack([logits.reshape(6, 10, 3)] * 2).swapaxes(1, 3)  # (2, 3, 10, 6)
    whole, whole_images = calibrator.transform(logits), calibrator.transform(images, class_dim=1)
    monkeypatch.setattr("avuc.calibration.inputs.BLOCK_ELEMENTS", 20)
    np.testing.assert_allclose(calibrator.transform(logits), whole, rtol=0, atol=1e-6)
    np.testing.assert_allclose(calibrator.transform(images, class_dim=1), whole_images, rtol=0, atol=1e-6)


def test_probabilities_become_logits_in_blocks(monkeypatch):
    probs = np.random.default_rng(0).dirichlet(np.ones(4), (3, 50)).astype(np.float32)
    whole = avuc.calibration.logits_from_probs(probs)
    monkeypatch.setattr("avuc.calibration.inputs.BLOCK_ELEMENTS", 40)
    assert np.array_equal(avuc.calibration.logits_from_probs(probs), whole)
