"""Predictions of pixels in bounded memory: parts equal the whole, and the figures of maps equal the metrics' own."""

from __future__ import annotations

import base64
import io

import matplotlib.image
import numpy as np
import pytest
import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.data.tensors import TensorData
from avuc.methods import Dropout, Ensemble, Vanilla
from avuc.metrics import aurc, iou, pavpu
from avuc.prediction.predictor import Predictor, Reading
from avuc.predictions import Predictions
from avuc.report.study.page import study_page
from avuc.report.study.results import read_results
from avuc.study import Store, load_recipe, run
from avuc.study.data.shifted import shifted_data
from avuc.study.evaluation import dense
from avuc.study.evaluation.dense import image_aurc, read_dense, spread
from avuc.study.evaluation.maps import worst_maps
from avuc.train import TrainSettings

CLASSES, SIDE = 3, 12


def scenes(count, seed, *, void=True):
    """Noisy rectangles of three grey levels, one of which an image may lack; the upper rows of each are void."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    cuts = torch.randint(3, 10, (count, 2), generator=generator)
    labels = (rows > cuts[:, :1, None]).long() + (columns > cuts[:, 1:, None]).long()
    noise = torch.randint(-50, 50, (count, SIDE, SIDE, 3), generator=generator)
    images = (80 * labels[..., None] + 50 + noise).clamp(0, 255).to(torch.uint8)
    if void:
        labels[:, :2] = -100
        labels[-1] = -100  # an image without any label
    return images, labels


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.drop = nn.Conv2d(3, 24, 3, padding=1), nn.Dropout2d(0.0)
        self.last = nn.Conv2d(24, num_classes, 1)

    def forward(self, images):
        return self.last(self.drop(self.first(images).relu()))


class Halved:
    def transform(self, logits):
        return logits / 2


@pytest.fixture
def predictor():
    torch.manual_seed(0)
    net = Net(CLASSES)
    with torch.no_grad():
        net.last.weight.mul_(20)
    return Predictor(Dropout(0.3, own_layers=True).posterior([Dropout(0.3, own_layers=True).build(net)]), samples=3)


@pytest.mark.parametrize("void", [True, False])
@pytest.mark.parametrize("at_a_time", [1, 3, 100])
def test_parts_are_the_whole(predictor, monkeypatch, at_a_time, void):
    monkeypatch.setattr(dense, "MOST_NUMBERS", at_a_time * SIDE * SIDE * CLASSES)
    images, labels = scenes(7, 1, void=void)
    data = TensorData(images, labels, CLASSES)
    readings = [Reading(3, None), Reading(1, Halved())]
    found = read_dense(predictor, data, readings, [0.4, None], show=True)
    whole = predictor.read(images, labels, readings)
    for (kept, maps), expected in zip(found, whole, strict=True):
        assert kept.shape == expected.shape
        torch.testing.assert_close(kept.to_map(kept.probs), expected.to_map(expected.probs), equal_nan=True)
        torch.testing.assert_close(kept.expected_entropy, expected.expected_entropy)
        metrics = maps.metrics(kept)
        assert metrics["mean_iou"] == pytest.approx(iou(expected.probs, expected.labels).mean)
        assert [entry["is"] for entry in maps.mistakes] == [entry["is"] for entry in worst_maps(expected, data)]
        assert maps.mistakes == worst_maps(expected, data)
    probs = whole[0].to_map(whole[0].probs, fill=1 / CLASSES).movedim(-1, 1)
    assert found[0][1].metrics(found[0][0])["pavpu"] == pytest.approx(pavpu(probs, labels, threshold=0.4).pavpu)
    assert "pavpu" not in found[1][1].metrics(found[1][0])


def test_a_sample_of_the_positions(predictor, monkeypatch):
    monkeypatch.setattr(dense, "MOST_NUMBERS", 2 * SIDE * SIDE * CLASSES)
    images, labels = scenes(9, 2)
    data, readings = TensorData(images, labels, CLASSES), [Reading(2, None)]
    ((all_kept, all_maps),) = read_dense(predictor, data, readings, [0.4])
    ((kept, maps),) = read_dense(predictor, data, readings, [0.4], most_rows=200)
    assert 100 < len(kept) <= 200
    # the same probabilities at the same places
    places = torch.isin(all_kept.positions, kept.positions)
    assert torch.equal(all_kept.probs[places], kept.probs)
    assert torch.equal(all_kept.labels[places], kept.labels)
    # figures of whole maps do not depend on the sample
    np.testing.assert_array_equal(maps.counts, all_maps.counts)
    np.testing.assert_array_equal(maps.patches, all_maps.patches)


def test_the_number_of_samples_if_the_first_images_have_no_label(predictor, monkeypatch):
    monkeypatch.setattr(dense, "MOST_NUMBERS", SIDE * SIDE * CLASSES)
    images, labels = scenes(4, 2)
    data = TensorData(images.flip(0), labels.flip(0), CLASSES)
    ((kept, _),) = read_dense(predictor, data, [Reading(3, None)], [0.4])
    assert kept.samples == 3


def test_out_of_distribution_images_have_no_figures_of_maps(predictor):
    images, labels = scenes(3, 3)
    data = TensorData(images, torch.full_like(labels, -1), CLASSES)
    ((kept, maps),) = read_dense(predictor, data, [Reading(1, None)], [0.4], show=True)
    assert len(kept) == labels.numel()
    assert maps.metrics(kept) == {}
    assert maps.mistakes == []


def test_aurc_of_images_by_hand(predictor):
    images, labels = scenes(4, 4)
    whole = predictor(images, labels)
    expected = [
        aurc(part.probs, part.labels)
        for row in range(3)
        for part in [predictor(images[row : row + 1], labels[row : row + 1])]
    ]
    assert image_aurc(whole) == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("width", [96, 100, 200])  # 200: every third pixel, and 200 is no multiple of 3
def test_pictures_have_three_parts_of_one_width(width):
    """Image, wrong pixels and entropy, with a white line between them, also if only every n-th pixel is shown."""
    images, labels = torch.zeros(1, 8, width, 3, dtype=torch.uint8), torch.ones(1, 8, width, dtype=torch.long)
    found = Predictions.from_logits(torch.tensor([9.0, 0.0])[:, None, None].expand(1, 2, 8, width), labels)
    (entry,) = worst_maps(found, TensorData(images, labels, 2, "scenes"))
    pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(entry["png"])))[0, :, :3]
    part = -(-width // -(-width // 96))
    assert len(pixels) == 3 * part + 2
    white = (pixels == 1).all(1).nonzero()[0].tolist()
    assert white == [part, 2 * part + 1]


@pytest.mark.parametrize(("total", "most"), [(10, 0), (10, 10), (10, 11), (1000, 7), (97, 50), (1, 1)])
def test_spread(total, most):
    found = spread(total, most)
    assert len(found) == (total if most == 0 else min(total, most))
    assert found.tolist() == sorted(set(found.tolist()))
    assert 0 <= found[0] <= found[-1] < total
    assert torch.equal(found, spread(total, most))


def test_whole_study(tmp_path):
    """Pixels from training to the page: figures of maps are stored, and metrics use at most max_rows pixels."""
    data = {
        name: TensorData(*scenes(count, seed), CLASSES)
        for seed, (name, count) in enumerate({"train": 24, "validation": 6, "test": 8}.items())
    }
    store = run(
        methods={
            "Plain": Vanilla(),
            "TS": {"reuse_model": "Plain", "calibrator": "temperature"},
            "Dropout": Dropout(0.2, own_layers=True),
            "Ensemble": Ensemble(2),
        },
        data=data,
        net=Net,
        shifts=["elastic_transform", "contrast"],
        train=TrainSettings(epochs=6, batch_size=6, learning_rate=3e-2, milestones=(), factors=(), pad=1),
        out=tmp_path,
        device="cpu",
        progress=False,
        severities=[5],
        samples=2,
        max_rows=400,
    )
    rows = {row[:5]: row[5] for row in store.rows()}
    counts = {row[0] for row in store.select("SELECT rows FROM cells")}
    assert max(counts) <= 400
    for method in ("Plain", "TS", "Dropout", "Ensemble"):
        for place in (("clean", 0), ("contrast", 5), ("elastic_transform", 5)):
            found = {name: rows[method, 0, *place, name] for name in ("mean_iou", "pavpu", "image_aurc")}
            assert all(0 <= value <= 1 for value in found.values()), (method, place, found)
    # a temperature changes no predicted class
    assert rows["TS", 0, "clean", 0, "mean_iou"] == rows["Plain", 0, "clean", 0, "mean_iou"]
    assert rows["Plain", 0, "clean", 0, "mean_iou"] > 0.6
    assert ("Plain", 0, "validation", 0, "pavpu") not in rows  # its threshold is learned there
    page = study_page(read_results(Store(tmp_path, create=False)))
    assert "mIoU" in page
    assert "PAvPU" in page
    assert "Entropy on clean and on other pixels" in page
    store.close()


def test_settings():
    with pytest.raises(InputError, match="max_rows must not be negative"):
        load_recipe("demo", ["study.max_rows=-1"])
    assert "max_rows" not in load_recipe("demo").stored_text()


# shifts of the user's own that move pixels


def moved_right(images, labels, severity):
    """Move every image by `severity` pixels; nothing is known of the pixels that come in."""
    moved, known = torch.zeros_like(images), torch.full_like(labels, -100)
    moved[:, :, severity:], known[:, :, severity:] = images[:, :, :-severity], labels[:, :, :-severity]
    labels.zero_()  # a function may write into what it gets
    return moved, known


def turned(images, labels, generator):
    """Turn each image by a random number of quarters; images may also be floats (N, 3, H, W)."""
    first = 1 if images.dtype == torch.uint8 else 2
    quarters = torch.randint(4, (len(images),), generator=generator).tolist()
    pairs = [
        (torch.rot90(image, count, (first - 1, first)), torch.rot90(label, count, (0, 1)))
        for count, image, label in zip(quarters, images, labels, strict=True)
    ]
    return torch.stack([image for image, _ in pairs]), torch.stack([label for _, label in pairs])


def brighter(images):
    return images.clamp(max=245) + 10


def fewer_labels(images, labels):
    return images, labels[:, 1:]


def no_labels(images, labels):
    return images, None


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("at_a_time", [1, 3, 100])
def test_labels_move_with_the_pixels(monkeypatch, kind, at_a_time):
    """Each pixel has a value of its own, so the label that belongs to it is known wherever it goes."""
    monkeypatch.setattr("avuc.shifts._CPU_CHUNK", at_a_time * SIDE * SIDE * 3)
    monkeypatch.setattr("avuc.study.data.shifted.CHUNK", at_a_time)
    images, labels = scenes(5, 0)
    images = torch.arange(1, SIDE * SIDE + 1, dtype=torch.uint8).view(1, SIDE, SIDE, 1).repeat(5, 1, 1, 3)
    images[..., 1] = torch.arange(5, dtype=torch.uint8)[:, None, None]
    inputs = images if kind == "uint8" else images.permute(0, 3, 1, 2).float()
    clean = TensorData(inputs, labels, CLASSES, "scenes")
    for name in ("turned", *(("moved_right",) if kind == "uint8" else ())):
        found = shifted_data(clean, f"{__name__}:{name}", 2, 0, "cifar")
        pixels = found.inputs if kind == "uint8" else found.inputs.permute(0, 2, 3, 1).long()
        assert not torch.equal(pixels[..., 0].long(), images[..., 0].long())
        for row in range(5):
            for place in range(SIDE * SIDE):
                value, image, _ = pixels[row].reshape(-1, 3)[place].tolist()
                expected = int(labels[image].reshape(-1)[value - 1]) if value else -100
                assert int(found.labels[row].reshape(-1)[place]) == expected
                assert image == row or not value
    assert torch.equal(clean.labels, labels)
    plain = shifted_data(TensorData(images, labels, CLASSES, "scenes"), f"{__name__}:brighter", 2, 0, "cifar")
    assert torch.equal(plain.labels, labels)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("fewer_labels", r"returned labels \(4, 11, 12\), torch.int64; expected \(4, 12, 12\)"),
        ("no_labels", "NoneType"),
    ],
)
def test_labels_that_do_not_fit(name, problem):
    with pytest.raises(InputError, match=problem):
        shifted_data(TensorData(*scenes(4, 0), CLASSES, "scenes"), f"{__name__}:{name}", 1, 0, "cifar")


def test_one_label_for_each_image_stays():
    images = scenes(4, 0)[0]
    data = TensorData(images, torch.arange(4) % CLASSES, CLASSES, "images")
    with pytest.raises(InputError, match="needs 'labels', and avuc offers severity, generator"):
        shifted_data(data, f"{__name__}:turned", 1, 0, "cifar")
