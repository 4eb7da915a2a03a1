"""The CamVid study: its data from small generated files, its network, and its recipe from data to rows."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import run_study
import studies_differences
import studies_tables
import study_maps
import torch
from PIL import Image

from avuc.core.errors import InputError
from avuc.study.recipe.load import load_recipe
from avuc.study.store.store import Store

HOME = Path(__file__).parents[1] / "studies" / "camvid"


def module(name):
    spec = importlib.util.spec_from_file_location(f"camvid_{name}", HOME / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


data, nets = module("data"), module("nets")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The layout of CamVid with few, small, generated scenes: the class is seen from the colour."""
    folder = tmp_path_factory.mktemp("camvid")
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3), ("test", 4)):
        for name in (split, f"{split}annot"):
            (folder / name).mkdir()
        for number in range(count):
            marks = rng.integers(0, 12, (3, 4)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
            pixels = np.stack([20 * marks, 255 - 20 * marks, 10 * marks], -1).astype(np.uint8)
            Image.fromarray(pixels).save(folder / split / f"{number}.png")
            Image.fromarray(marks).save(folder / f"{split}annot" / f"{number}.png")
    return folder


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(data, "COUNTS", {"train": 6, "val": 3, "test": 4})
    monkeypatch.setattr(data, "SIZE", (24, 32))


def test_loading(root, small):
    found = data.load("val", root, scale=1)
    assert found.inputs.shape == (3, 24, 32, 3)
    with Image.open(root / "valannot" / "1.png") as marks:
        expected = torch.from_numpy(np.array(marks)).long()
    assert torch.equal(found.labels[1], torch.where(expected == 11, -100, expected))
    assert found.num_classes == 11
    half = data.load("val", root, scale=2, count=2)
    assert half.inputs.shape == (2, 12, 16, 3)
    assert torch.equal(half.labels, found.labels[:2, ::2, ::2])
    mean = found.inputs[:2].float().unfold(1, 2, 2).unfold(2, 2, 2).mean((-1, -2))
    assert (half.inputs.float() - mean).abs().max() <= 0.5


def test_a_small_copy_is_the_same(root, small, tmp_path):
    assert len(list(data.small_copy(root, tmp_path))) == 13
    for split in ("train", "val", "test"):
        one, other = data.load(split, root), data.load(split, tmp_path)
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)


def test_wrong_folders(root, small, monkeypatch):
    monkeypatch.setitem(data.COUNTS, "val", 101)
    with pytest.raises(InputError, match="3 images; CamVid has 101 there"):
        data.load("val", root)
    monkeypatch.setattr(data, "SIZE", (48, 64))
    with pytest.raises(InputError, match=r"\(24, 32\) pixels; expected \(48, 64\), or \(16, 21\) for scale 3"):
        data.load("test", root, scale=3)


def test_network():
    net = nets.make_net(11, width=4).eval()
    for size in ((24, 32), (45, 60), (16, 16)):
        assert net(torch.rand(2, 3, *size)).shape == (2, 11, *size)
    layers = [name for name, layer in net.named_modules() if hasattr(layer, "weight")]
    assert layers[-1] == "classify"  # LL-SVI takes the last layer


def test_recipe_asks_for_what_the_page_shows():
    recipe = load_recipe(HOME / "recipe.toml", ["data.root=somewhere"])
    assert len(recipe.study.shifts) == 16
    assert recipe.study.severities == (1, 3, 5)
    assert recipe.study.seeds == (0, 1, 2, 3, 4)
    assert {one.objective.kind for one in recipe.trained} == {"plain", "avuc", "segmentation_avu"}
    assert {one.method.name for one in recipe.trained} == {"vanilla", "dropout", "ll_svi", "ensemble"}
    assert {one.calibrator.kind for one in recipe.methods if one.calibrator} == {"temperature", "avuts"}


def test_from_files_to_rows(root, tmp_path, monkeypatch):
    """The recipe with fewer and smaller images: every method, a shift that moves pixels and one that does not."""
    folder = tmp_path / "camvid"
    folder.mkdir()
    for name in ("recipe.toml", "nets.py"):
        (folder / name).write_text((HOME / name).read_text(encoding="utf-8"), encoding="utf-8")
    text = (HOME / "data.py").read_text(encoding="utf-8")
    text = text.replace('{"train": 367, "val": 101, "test": 233}', '{"train": 6, "val": 3, "test": 4}')
    (folder / "data.py").write_text(text.replace("SIZE = (360, 480)", "SIZE = (24, 32)"), encoding="utf-8")
    short = {
        "data.options.scale": 1,
        "net.options.width": 2,
        "study.seeds": [0],
        "study.samples": 2,
        "study.shifts": '["elastic_transform", "contrast"]',
        "study.severities": [5],
        "study.max_rows": 500,
        "train.epochs": 1,
        "train.pad": 2,
        "methods.LL-SVI.train.epochs": 1,
    } | {f"{table}train.{key}": "[]" for table in ("", "methods.LL-SVI.") for key in ("milestones", "factors")}
    changes = [part for key, value in short.items() for part in ("--set", f"{key}={value}")]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert run_study.run(folder, root, tmp_path / "out", None, ["--device", "cpu", "--no-report", *changes]) == 0
    run_study.publish(tmp_path / "out", tmp_path / "published")
    store = Store(tmp_path / "out", create=False)
    assert len(store.done()) == 11 * 4
    found = {row[:5]: row[5] for row in store.rows()}
    store.close()
    names = {key[0] for key in found}
    assert len(names) == 11
    for name in names:
        for metric in ("mean_iou", "nll", "brier", "ece", "uce", "avu_auc", "pavpu", "aurc", "image_aurc"):
            assert np.isfinite(found[name, 0, "elastic_transform", 5, metric]), (name, metric)
    head = (tmp_path / "published" / "rows.csv").read_text().splitlines()[0]
    assert "mean_iou" in head
    names = ["Cross-entropy", "LL-SVI"]
    assert study_maps.main([str(tmp_path / "out"), str(tmp_path / "maps.png"), *names]) == 0
    with Image.open(tmp_path / "maps.png") as made:
        pixels = np.asarray(made)[::2, ::2]
    assert pixels.shape == (2 * 24 + 4, 3 * (2 * 32 + 1) + 2 * 4, 3)
    assert set(map(tuple, pixels[:24, :32].reshape(-1, 3))) <= {(200, 60, 40), (225, 235, 225), (255, 255, 255)}
    grey = pixels[:24, 33:65]
    assert (grey == grey[..., :1]).all()
    with pytest.raises(InputError, match="Nothing on clean: the store shows no examples"):
        study_maps.main([str(tmp_path / "out"), str(tmp_path / "maps.png"), "Nothing"])


def test_a_method_without_mistakes_is_white():
    wrong, entropy = np.zeros((2, 3, 3), np.uint8), np.ones((2, 3, 3), np.uint8)
    pixels = study_maps.picture([{}, {"example 1": (wrong, entropy)}], ["example 1"])[::2, ::2]
    assert pixels.shape == (2 + 4 + 2, 3 + 1 + 3, 3)
    assert (pixels[:6] == 255).all()
    assert not pixels[6:, :3].any()


# what the page says


AVUC = ("AvUC monotone", "AvUC", "AvU of segmentation")
UP, DOWN = 1, -1
# on clean test data, compared with cross-entropy: what all seeds agree on
AGREED = {
    "AvUC monotone": {"ece": DOWN, "uce": UP, "avu_auc": DOWN, "pavpu": DOWN, "mean_iou": DOWN, "nll": UP},
    "AvUC": {"ece": UP, "uce": UP, "nll": UP, "accuracy": DOWN, "mean_iou": DOWN, "pavpu": UP},
    "AvU of segmentation": {"avu_auc": UP, "pavpu": UP, "ece": UP, "nll": UP, "uce": UP, "accuracy": DOWN}
    | {"mean_iou": DOWN},
    "Cross-entropy, TS": {"ece": UP, "nll": UP, "uce": DOWN, "avu_auc": UP},
    "Cross-entropy, AvUTS": {"ece": UP, "nll": UP, "uce": DOWN, "avu_auc": UP},
    "Ensemble": {"accuracy": UP, "nll": DOWN, "brier": DOWN, "ece": DOWN, "aurc": DOWN, "uce": UP},
    "LL-SVI": {"mean_iou": UP, "aurc": DOWN},
}
AGREED_UNDER_SHIFT = {
    "Ensemble": {"accuracy": UP, "nll": DOWN, "brier": DOWN, "ece": DOWN, "aurc": DOWN},
    "Cross-entropy, TS": {"ece": UP, "uce": UP, "nll": UP},
    "Cross-entropy, AvUTS": {"ece": UP, "uce": UP, "nll": UP},
}


@pytest.fixture(scope="module")
def published():
    return studies_tables.read_published(HOME.parents[1] / "results" / "studies" / "camvid", HOME / "recipe.toml")


def _differences(published, method, metric, where):
    return studies_differences.by_seed(published.results, (method, "Cross-entropy"), metric, where)


def test_what_is_published_is_whole(published):
    """Every method with every seed on every test set, and no figure is missing."""
    results = published.results
    assert published.changes == ("study.seeds = [0, 1, 2]",)
    assert published.facts["missing"] == 0
    assert {len(run["revision"]) for run in published.facts["runs"]} == {40}  # no changes that were not committed
    assert (len(results.names), results.seeds, len(results.test_sets)) == (11, 3, 1 + 16 * 3)
    assert published.facts["evaluations"] == 11 * 3 * (1 + 1 + 16 * 3)
    for metric in ("mean_iou", "accuracy", "nll", "brier", "ece", "uce", "avu_auc", "pavpu", "aurc", "image_aurc"):
        assert np.isfinite(results.values[metric]).all(), metric


@pytest.mark.parametrize(("where", "agreed"), [("clean", AGREED), ("shifted", AGREED_UNDER_SHIFT)])
def test_what_the_page_says_all_seeds_agree_on(published, where, agreed):
    for method, signs in agreed.items():
        for metric, sign in signs.items():
            values = _differences(published, method, metric, where)
            assert len(values) == 3
            assert all(value * sign > 0 for value in values), (method, metric, values)


def test_what_else_the_page_says(published):
    results = published.results
    for method in AVUC:
        for metric in ("ece", "uce", "nll", "accuracy"):
            values = _differences(published, method, metric, "shifted")
            assert min(values) < 0 < max(values), (method, metric)
    for metric, better in (("accuracy", max), ("nll", min), ("brier", min), ("ece", min), ("aurc", min)):
        for seed in range(3):
            clean = dict(zip(results.names, results.values[metric][:, seed, 0].tolist(), strict=True))
            best = better(value for name, value in clean.items() if name != "Ensemble, TS")
            assert clean["Ensemble"] == best, (metric, seed)
    for metric, sign in (("uce", DOWN), ("ece", UP)):
        values = studies_differences.by_seed(results, ("Ensemble, TS", "Ensemble"), metric, "clean")
        assert all(value * sign > 0 for value in values)
    noise = [results.test_sets.index((f"{kind}_noise", 5)) for kind in ("gaussian", "impulse", "shot", "speckle")]
    assert results.values["accuracy"][:, :, noise].mean((1, 2)).max() < 0.15
    held = published.validation.values["accuracy"].mean() - results.values["accuracy"][:, :, 0].mean()
    assert held == pytest.approx(0.05, abs=0.005)


def test_temperatures_sharpen_a_network_that_is_too_confident_on_test_data():
    with open(HOME.parents[1] / "results" / "studies" / "camvid" / "rows.csv", newline="", encoding="utf-8") as file:
        rows = {(row["method"], row["seed"], row["shift"]): row for row in csv.DictReader(file)}
    for seed in "012":
        for calibrator in ("TS", "AvUTS"):
            assert float(rows[f"Cross-entropy, {calibrator}", seed, "validation"]["temperature"]) < 1
        for name, sign in (("validation", DOWN), ("clean", UP)):
            row = rows["Cross-entropy", seed, name]
            assert sign * (float(row["mean_confidence"]) - float(row["accuracy"])) > 0


def test_ranges_in_the_text(published):
    text = " ".join((HOME.parents[2] / "docs" / "studies" / "camvid.md").read_text(encoding="utf-8").split())
    for method, metric, where, words in (
        ("AvUC monotone", "ece", "clean", "ECE is lower by {} to {} points, but UCE"),
        ("AvUC monotone", "uce", "clean", "UCE is higher by {} to {} points"),
        ("AvUC monotone", "mean_iou", "clean", "mIoU is lower by {} to {} points"),
        ("AvUC", "pavpu", "clean", "PAvPU is higher by {} to {} points"),
        ("AvU of segmentation", "avu_auc", "clean", "AvU-AUC is higher by {} to {} points"),
        ("AvU of segmentation", "pavpu", "clean", "PAvPU by {} to {}."),
        ("AvU of segmentation", "ece", "clean", "The price: ECE is higher by {} to {} points"),
        ("Ensemble", "ece", "shifted", "on the ensemble: ECE is lower by {} to {} points"),
    ):
        values = sorted(abs(value) for value in _differences(published, method, metric, where))
        assert words.format(f"{100 * values[0]:.1f}", f"{100 * values[-1]:.1f}") in text, (method, metric, values)
