"""What is kept of single images: entropies and correctness, the surest mistakes, calibration by temperature."""

from __future__ import annotations

import base64
import io
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from avuc import metrics
from avuc.calibration import TemperatureScaling
from avuc.data import Dataset
from avuc.predictions import Predictions
from avuc.study import Store
from avuc.study.evaluation.examples import MOST_MISTAKES, MOST_ROWS, SCALE, TEMPERATURES, examples_of, png, thumbnail


def made_up(rows: int, classes: int = 5, scale: float = 2.0, names: tuple[str, ...] = ()):
    generator = torch.Generator().manual_seed(rows)
    labels = torch.randint(classes, (rows,), generator=generator)
    logits = scale * torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), labels] += scale
    images = torch.randint(256, (rows, 6, 6, 3), dtype=torch.uint8, generator=generator)
    return logits, Predictions.from_logits(logits, labels), Dataset(images, labels, classes, "made up", names)


def unpacked(shown):
    words = np.frombuffer(base64.b64decode(shown["samples"]), "<u2")
    return (words >> 1) / SCALE * shown["top"], (words & 1).astype(bool)


def test_samples_come_back():
    _, found, data = made_up(300)
    entropy, right = unpacked(examples_of(found, data, 15))
    assert entropy == pytest.approx(found.entropy.numpy(), abs=math.log(5) / SCALE)
    assert right.tolist() == found.correct.tolist()


def test_many_rows_are_thinned_evenly():
    _, found, data = made_up(MOST_ROWS * 3)
    shown = examples_of(found, data, 15)
    _, right = unpacked(shown)
    assert shown["rows"] == MOST_ROWS * 3
    assert right.tolist() == found.correct[::3].tolist()


def test_mistakes_are_the_surest_wrong_answers():
    _, found, data = made_up(300, names=("a", "b", "<c>", "d", "e"))
    mistakes = examples_of(found, data, 15)["mistakes"]
    wrong = sorted((float(u), n) for n, (u, ok) in enumerate(zip(found.entropy, found.correct, strict=True)) if not ok)
    assert len(mistakes) == MOST_MISTAKES < len(wrong)
    for one, (entropy, row) in zip(mistakes, wrong, strict=False):
        assert one["entropy"] == pytest.approx(entropy, abs=1e-4)
        assert one["is"] == data.class_names[data.labels[row]]
        assert one["said"] == data.class_names[found.predicted[row]] != one["is"]
        picture = np.array(Image.open(io.BytesIO(base64.b64decode(one["png"]))))
        assert np.array_equal(picture, data.images[row].numpy())


@pytest.mark.parametrize("place", [0, 12, 20, len(TEMPERATURES) - 1])
def test_tempered_is_temperature_scaling(place):
    """For one draw, raising probabilities to 1/T is dividing logits by T."""
    logits, found, data = made_up(500)
    told = examples_of(found, data, 15)["tempered"]
    scaler = TemperatureScaling().fit(logits, data.labels)
    scaler.temperature_ = TEMPERATURES[place]
    scaled = Predictions.from_logits(logits, data.labels, calibrator=scaler)
    assert told["nll"][place] == pytest.approx(metrics.nll(scaled.probs, scaled.labels), abs=2e-5)
    counts, stated, observed = (np.array(told[key][place]) for key in ("count", "stated", "observed"))
    gap = (counts * np.abs(stated - observed)).sum() / counts.sum()
    assert gap == pytest.approx(metrics.ece(scaled.probs, scaled.labels, bins=15), abs=2e-4)
    assert counts.sum() == 500


@pytest.mark.parametrize("temperature", TEMPERATURES[::6])
def test_tempered_bins_are_those_of_a_reliability_curve(temperature):
    _, found, data = made_up(400, classes=7)
    told, place = examples_of(found, data, 10)["tempered"], TEMPERATURES.index(temperature)
    raised = found.probs.double() ** (1 / temperature)
    curve = metrics.reliability_curve(raised / raised.sum(1, keepdim=True), found.labels, bins=10)
    assert told["count"][place] == curve.rows.tolist()
    assert told["stated"][place] == pytest.approx(np.nan_to_num(curve.stated), abs=5.1e-5)
    assert told["observed"][place] == pytest.approx(np.nan_to_num(curve.observed), abs=5.1e-5)


@pytest.mark.parametrize(("rows", "classes"), [(1, 5), (3, 1), (2, 1000)])
def test_extremes_are_valid_json(rows, classes):
    _, found, data = made_up(rows, classes)
    json.loads(json.dumps(examples_of(found, data, 15), allow_nan=False))


def test_certain_to_the_last_digit():
    labels = torch.tensor([0, 1, 1])
    found = Predictions(torch.tensor([[1.0, 0.0]]).repeat(3, 1), labels)
    data = Dataset(torch.zeros(3, 2, 2, 1, dtype=torch.uint8), labels, 2, "x")
    shown = json.loads(json.dumps(examples_of(found, data, 15), allow_nan=False))
    entropy, right = unpacked(shown)
    assert entropy.tolist() == [0, 0, 0]
    assert right.tolist() == [True, False, False]
    assert all(math.isfinite(value) for value in shown["tempered"]["nll"])


@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_read_by_pillow(channels):
    pixels = np.random.default_rng(0).integers(256, size=(5, 7, channels), dtype=np.uint8)
    read = np.array(Image.open(io.BytesIO(png(pixels))))
    assert np.array_equal(read.reshape(pixels.shape), pixels)


def test_large_images_are_shrunk():
    assert Image.open(io.BytesIO(thumbnail(torch.zeros(224, 160, 3, dtype=torch.uint8)))).size == (32, 45)
    assert Image.open(io.BytesIO(thumbnail(torch.zeros(32, 32, 3, dtype=torch.uint8)))).size == (32, 32)


def test_a_study_keeps_them(undisturbed):
    """Clean images and the strongest severity of each shift; one picture of every set, the same for all methods."""
    store = Store(undisturbed)
    for method in ("Vanilla", "SVI-AvUTS"):
        shown = store.shown(method, 0, "clean", 0)
        entropy, _ = unpacked(shown)
        assert entropy == pytest.approx(store.clean_entropy(method, 0), abs=math.log(10) / SCALE)
        assert store.shown(method, 0, "contrast", 5)["rows"] == 120
        assert store.shown(method, 0, "contrast", 1) is None
        assert store.shown(method, 0, "ood:photographs", 0) is None
    pictures = store.gallery()
    sets = [("clean", 0), ("ood:photographs", 0)] + [(s, n) for s in ("gaussian_noise", "contrast") for n in (1, 5)]
    assert set(pictures) == set(sets)
    assert len(set(pictures.values())) == len(sets)
    store.close()
