"""Picture files: listing, decoding, views, and the stream that workers fill."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from avuc.data import decode as decoding
from avuc.data.decode import AsIs, EvalView, TrainView, decode, decoder_name, scan
from avuc.data.folder import list_folder
from avuc.data.imagenet import list_imagenet, list_imagenet_c
from avuc.data.load import load_dataset
from avuc.data.stream import Stream

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)
# the loader forks its workers; newer Pythons remark on that where threads are running
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def pictures(tmp_path: Path, photo: np.ndarray) -> Path:
    """Two synsets of seven pictures of different sizes, as ImageNet has them."""
    for k in range(7):
        folder = tmp_path / "train" / ("n01440764" if k % 2 else "n01443537")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo[10 * k : 10 * k + 90 + 7 * k, 20 * k : 20 * k + 120 - 5 * k]).save(
            folder / f"{k}.JPEG", quality=95
        )
    return tmp_path


def batches(stream: Stream, epoch: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(stream.epoch(epoch))


def test_workers_change_nothing(pictures: Path) -> None:
    files = list_imagenet(pictures, "train", verify=False)
    runs = []
    state = torch.get_rng_state()
    for workers in (0, 1, 2):
        stream = Stream(files, 3, train=True, size=24, seed=5, workers=workers)
        runs.append([batches(stream, epoch) for epoch in (0, 1, 0)])
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left alone
    for run in runs:
        for epoch, other in zip(run, runs[0], strict=True):
            assert [len(images) for images, _ in epoch] == [3, 3, 1]
            for (images, labels), (expected, targets) in zip(epoch, other, strict=True):
                assert torch.equal(images, expected)
                assert torch.equal(labels, targets)
    first, second, again = runs[0]
    assert not torch.equal(torch.cat([x for x, _ in first]), torch.cat([x for x, _ in second]))
    assert torch.equal(torch.cat([x for x, _ in first]), torch.cat([x for x, _ in again]))
    other_seed = batches(Stream(files, 3, train=True, size=24, seed=6, workers=0))
    assert not torch.equal(torch.cat([x for x, _ in first]), torch.cat([x for x, _ in other_seed]))


def test_an_abandoned_epoch_does_not_leak_into_the_next(pictures: Path) -> None:
    files = list_imagenet(pictures, "train", verify=False)
    stream = Stream(files, 2, train=True, size=16, workers=2)
    next(stream.epoch(0))
    for (images, _), (expected, _) in zip(
        stream.epoch(1), Stream(files, 2, train=True, size=16, workers=0).epoch(1), strict=True
    ):
        assert torch.equal(images, expected)


def test_evaluation_keeps_the_order(pictures: Path) -> None:
    files = list_imagenet(pictures, "train", verify=False)
    assert files.class_names == ("n01440764", "n01443537")
    assert files.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    stream = Stream(files, 3, size=32, workers=0)
    assert len(stream) == 3
    got = torch.cat([labels for _, labels in batches(stream)])
    assert torch.equal(got, files.labels)
    images = torch.cat([x for x, _ in batches(stream)])
    assert images.shape == (7, 32, 32, 3)
    assert images.dtype == torch.uint8
    for k in range(7):
        np.testing.assert_array_equal(images[k], EvalView(32)(decode(files.path(k)), RNG))
    assert len(list(Stream(files, 3, size=8, workers=0, drop_last=True).epoch())) == 2
    assert len(list(Stream(files, 3, size=8, workers=0, drop_last=True, train=True).epoch())) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_picture_is_one_line_also_from_a_worker(
    pictures: Path, workers: int, refused: Callable[..., str]
) -> None:
    victim = pictures / "train" / "n01443537" / "2.JPEG"
    victim.write_bytes(victim.read_bytes()[:300])
    stream = Stream(list_imagenet(pictures, "train", verify=False), 3, size=16, workers=workers)
    line = refused(batches, stream)
    assert str(victim) in line
    assert "cannot be decoded" in line
    assert "Traceback" not in line


def test_listed_digests_are_checked_while_streaming(pictures: Path, refused: Callable[..., str]) -> None:
    (pictures / "train" / "n01443537" / "SHA256SUMS").write_text(f"{'0' * 64}  2.JPEG\n")
    files = list_imagenet(pictures, "train", verify=False)
    assert "SHA256SUMS lists" in refused(batches, Stream(files, 3, size=16, workers=0))
    assert len(batches(Stream(files, 3, size=16, workers=0, verify=False))) == 3


@pytest.mark.gpu
def test_a_stream_onto_the_gpu(pictures: Path) -> None:
    files = list_imagenet(pictures, "train", verify=False)
    for (images, labels), (expected, _) in zip(
        Stream(files, 3, size=16, workers=1, device="cuda").epoch(),
        Stream(files, 3, size=16, workers=0).epoch(),
        strict=True,
    ):
        assert images.device.type == labels.device.type == "cuda"
        assert torch.equal(images.cpu(), expected)


@pytest.mark.parametrize("shape", [(300, 400), (400, 300), (256, 256), (100, 90), (600, 257)])
def test_the_evaluation_view(photo: np.ndarray, shape: tuple[int, int]) -> None:
    """Against OpenCV's area of the same pixels: the centre 224 of the picture scaled to 256."""
    height, width = shape
    image = Image.fromarray(photo).resize((width, height))
    view = EvalView(224)(image, RNG)
    assert view.shape == (224, 224, 3)
    short = min(height, width)
    scale = 256 / short
    scaled = np.asarray(image.resize((int(256 * width / short), int(256 * height / short)), Image.Resampling.BILINEAR))
    top, left = round((scaled.shape[0] - 224) / 2), round((scaled.shape[1] - 224) / 2)
    np.testing.assert_array_equal(view, scaled[top : top + 224, left : left + 224])
    assert abs(top + 112 - height * scale / 2) <= 1
    assert abs(left + 112 - width * scale / 2) <= 1


def test_the_training_view_is_inside_uniform_and_varied() -> None:
    rng = np.random.default_rng(0)
    parts = np.array([TrainView.part(400, 300, rng) for _ in range(4000)])
    left, top, width, height = parts.T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (left + width <= 400).all()
    assert (top + height <= 300).all()
    share, ratio = width * height / 120_000, width / height
    assert 0.075 < share.min() < 0.1
    assert share.max() > 0.9
    assert ratio.min() > 0.73
    assert ratio.max() < 1.36
    assert abs(np.log(ratio[share < 0.3]).mean()) < 0.02  # small parts always fit: wide as often as tall
    assert TrainView.part(1000, 10, rng)[2:] == (13, 10)  # too long for any try: the largest allowed centre
    assert TrainView.part(10, 1000, rng)[2:] == (10, 13)


def test_flips_happen_half_of_the_time(photo: np.ndarray) -> None:
    ramp = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8)[None, :, None], (200, 1, 3)))
    flipped = 0
    for k in range(400):
        view = TrainView(8)(ramp, np.random.default_rng([0, 0, k]))
        flipped += int(view[0, 0, 0] > view[0, -1, 0])
    assert abs(flipped - 200) < 50


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "I;16", "LA"])
def test_every_mode_becomes_rgb_or_grey(tmp_path: Path, photo: np.ndarray, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    image = Image.fromarray(photo[:40, :50])
    wide = Image.fromarray(photo[:40, :50, 0].astype(np.uint16) * 257)
    image = wide if mode == "I;16" else image.convert(mode)
    image.save(path)
    for decoder in ("pillow", "auto"):
        assert AsIs()(decode(path, decoder=decoder_name(decoder)), RNG).shape == (40, 50, 3)
    assert AsIs("L")(decode(path, mode="L"), RNG).shape == (40, 50, 1)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_16_bits_of_grey_are_scaled_not_clipped(
    tmp_path: Path, photo: np.ndarray, name: str, refused: Callable[..., str]
) -> None:
    levels = photo[:40, :50, 0].astype(np.uint16) * 256 + photo[:40, :50, 1]
    Image.fromarray(levels).save(tmp_path / name)
    for mode in ("RGB", "L"):
        got = AsIs(mode)(decode(tmp_path / name, mode=mode), RNG)
        np.testing.assert_array_equal(got, np.broadcast_to(levels[..., None] >> 8, got.shape))
    # 8-bit levels in 16 bits, and numbers without a known white, are not guessed
    Image.fromarray(photo[:40, :50, 0].astype(np.uint16)).save(tmp_path / name)
    assert "would be black; save the picture with 8 bits" in refused(decode, tmp_path / name)
    Image.fromarray(levels.astype(np.float32) / 65535).save(tmp_path / "f.tif")
    assert "black and white are not known" in refused(decode, tmp_path / "f.tif")


def test_16_bits_from_torchvision_are_scaled(
    tmp_path: Path, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = photo[:40, :50, 0].astype(np.uint16) * 256
    Image.fromarray(levels).save(tmp_path / "a.png")
    module = fake_torchvision(False)
    wide = torch.from_numpy(levels).expand(3, -1, -1)
    module.decode_image = lambda data, mode: wide if mode == "RGB" else wide[:1]  # type: ignore[attr-defined]
    monkeypatch.setattr(decoding, "_torchvision", lambda: module)
    for mode in ("RGB", "L"):
        got = AsIs(mode)(decode(tmp_path / "a.png", decoder="torchvision", mode=mode), RNG)
        np.testing.assert_array_equal(got[..., 0], photo[:40, :50, 0])


def fake_torchvision(fails: bool) -> ModuleType:
    """The three names of torchvision.io that are used, by way of Pillow."""
    module = ModuleType("torchvision.io")

    class Mode:
        RGB, GRAY = "RGB", "L"

    def decode_image(data: torch.Tensor, mode: str) -> torch.Tensor:
        import io

        if fails:
            raise RuntimeError("unsupported")
        image = np.asarray(Image.open(io.BytesIO(bytes(data.numpy()))).convert(mode))
        return torch.from_numpy(image.copy()).view(*image.shape[:2], -1).permute(2, 0, 1)

    module.ImageReadMode = Mode  # type: ignore[attr-defined]
    module.read_file = lambda path: torch.from_numpy(np.fromfile(path, np.uint8))  # type: ignore[attr-defined]
    module.decode_image = decode_image  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("fails", [False, True])
def test_torchvision_is_used_where_it_is_installed(
    pictures: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_torchvision", lambda: fake_torchvision(fails))
    assert decoder_name("auto") == "torchvision"
    files = list_imagenet(pictures, "train", verify=False)
    for mode in ("RGB", "L"):
        for k in range(len(files)):
            got = decode(files.path(k), decoder="torchvision", mode=mode)
            np.testing.assert_array_equal(np.asarray(got), np.asarray(decode(files.path(k), mode=mode)))


def test_the_real_torchvision(pictures: Path) -> None:
    if decoding._torchvision() is None:
        pytest.skip("torchvision is not installed or does not fit this torch; its calls are tested with a stand-in")
    files = list_imagenet(pictures, "train", verify=False)
    for k in range(len(files)):
        got, want = (np.asarray(decode(files.path(k), decoder=name)).astype(int) for name in ("torchvision", "pillow"))
        assert np.abs(got - want).mean() < 2


def test_a_torchvision_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    decoding._torchvision.cache_clear()
    try:
        assert decoder_name("auto") == "pillow"
        with pytest.raises(ImportError, match="torchvision"):
            decoder_name("torchvision")
    finally:
        decoding._torchvision.cache_clear()


def test_arguments(pictures: Path, refused: Callable[..., str]) -> None:
    files = list_imagenet(pictures, "train", verify=False)
    assert 1 <= Stream(files, 2)._loader.num_workers <= 8
    assert "decoder must be one of" in refused(Stream, files, 2, decoder="opencv")
    assert "batch_size must be at least 1" in refused(Stream, files, 0)
    assert "seed must not be negative" in refused(Stream, files, 2, seed=-1)


def test_imagenet_is_checked(pictures: Path, refused: Callable[..., str]) -> None:
    line = refused(list_imagenet, pictures, "train")
    assert "2 synsets with 7 pictures (fewest in n01440764), expected 1000 with 1,281,167" in line
    assert "no val/ here (train)" in refused(list_imagenet, pictures, "test")
    assert "no split 'dev'" in refused(list_imagenet, pictures, "dev")
    (pictures / "train" / "cats").mkdir()
    assert "expected one folder for each synset" in refused(list_imagenet, pictures, "train", verify=False)
    (pictures / "val").mkdir()
    (pictures / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"x")
    assert "found ILSVRC2012_val_00000001.JPEG" in refused(list_imagenet, pictures, "test", verify=False)


def test_a_part_of_imagenet_keeps_its_labels(pictures: Path, refused: Callable[..., str]) -> None:
    order = ["n01443537", "n01440764", "n02084071"]
    files = list_imagenet(pictures, "train", verify=False, classes=order)
    assert files.num_classes == 3
    assert files.labels.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert "is not one of the 1 classes" in refused(list_imagenet, pictures, "train", verify=False, classes=order[:1])
    three = load_dataset("imagenet", pictures, "train", verify=False, limit=3, size=16)
    assert three.labels.tolist() == [0, 0, 1]
    assert "limit must be at least 1" in refused(load_dataset, "imagenet", pictures, "train", verify=False, limit=0)
    line = refused(load_dataset, "imagenet", pictures, "train", verify=False, max_gb=1e-6)
    assert "more than max_gb=1e-06" in line


def test_imagenet_without_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Callable[..., str]
) -> None:
    monkeypatch.setenv("AVUC_DATA", str(tmp_path))
    assert f"into {tmp_path / 'imagenet'}" in refused(load_dataset, "imagenet")
    line = refused(load_dataset, "imagenet-c", corruption="fog", severity=1)
    assert "https://zenodo.org/records/2235448" in line
    (tmp_path / "imagenet-c").mkdir()
    assert "no fog/1/ here (an empty folder)" in refused(load_dataset, "imagenet-c", corruption="fog", severity=1)
    assert "severity must be 1…5" in refused(list_imagenet_c, corruption="fog", severity=0)


def test_folders_of_the_users(tmp_path: Path, photo: np.ndarray, refused: Callable[..., str]) -> None:
    for split, n in (("train", 3), ("val", 2)):
        for name in ("ants", "bees"):
            for k in range(n):
                folder = tmp_path / split / name / ("deeper" if k else "")
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(photo[:40, : 50 + k]).save(folder / f"{k}.png")
    (tmp_path / "train" / "ants" / "notes.txt").write_text("not a picture")
    assert len(list_folder(tmp_path, "train")) == 6
    assert len(list_folder(tmp_path, "test")) == len(list_folder(tmp_path, "val")) == 4
    assert "no split 'all' (train, val)" in refused(list_folder, tmp_path)
    assert "pass size= to bring all to one size" in refused(load_dataset, "folder", tmp_path, "train")
    data = load_dataset("folder", tmp_path, "train", size=20)
    assert data.images.shape == (6, 20, 20, 3)
    assert data.class_names == ("ants", "bees")
    assert "pillow" in data.origin or "torchvision" in data.origin
    assert load_dataset("folder", tmp_path, "train", size=20, grey=True).images.shape == (6, 20, 20, 1)
    (tmp_path / "train" / "cows").mkdir()
    assert "no pictures in this class" in refused(list_folder, tmp_path, "train")
    assert "name it" in refused(load_dataset, "folder")


def test_labels_of_all_splits_follow_the_training_classes(
    tmp_path: Path, photo: np.ndarray, refused: Callable[..., str]
) -> None:
    for name in ("train/ants", "train/bees", "train/cows", "test/ants", "test/cows"):
        (tmp_path / name).mkdir(parents=True)
        Image.fromarray(photo[:4, :4]).save(tmp_path / name / "1.png")
    files = list_folder(tmp_path, "test")  # no bees here, and cows stay class 2
    assert files.labels.tolist() == [0, 2]
    assert files.class_names == ("ants", "bees", "cows")
    assert load_dataset("folder", tmp_path, "test").num_classes == 3
    (tmp_path / "test" / "ants" / "1.png").unlink()
    assert "ants: no pictures in this class" in refused(list_folder, tmp_path, "test")
    (tmp_path / "test" / "images").mkdir()
    assert "folder 'images' is not one of the 3 classes in train/" in refused(list_folder, tmp_path, "test")


@pytest.mark.parametrize("names", [("test", "val"), ("Train", "Test"), ("val",)])
def test_folders_of_splits_are_not_classes(
    tmp_path: Path, photo: np.ndarray, names: tuple[str, ...], refused: Callable[..., str]
) -> None:
    for name in names:
        (tmp_path / name / "ants").mkdir(parents=True)
        Image.fromarray(photo[:4, :4]).save(tmp_path / name / "ants" / "1.png")
    assert "splits, not classes" in refused(load_dataset, str(tmp_path))
    (tmp_path / "control").mkdir()  # test and control are classes
    Image.fromarray(photo[:4, :4]).save(tmp_path / "control" / "1.png")
    assert list_folder(tmp_path).class_names == tuple(sorted([*names, "control"]))


def test_hidden_files_are_no_pictures(tmp_path: Path, photo: np.ndarray) -> None:
    for name in ("ants/.ipynb_checkpoints", "ants/young", "bees"):
        (tmp_path / name).mkdir(parents=True)
        Image.fromarray(photo[:4, :4]).save(tmp_path / name / "1.png")
    (tmp_path / "bees" / "._1.png").write_bytes(b"written by macOS")
    assert list_folder(tmp_path).names.tolist() == [b"ants/young/1.png", b"bees/1.png"]


def test_a_folder_without_classes_is_unlabelled(tmp_path: Path, photo: np.ndarray, refused: Callable[..., str]) -> None:
    assert "no pictures here (an empty folder)" in refused(load_dataset, "folder", tmp_path)
    for k in range(70):  # more than one batch
        Image.fromarray(photo[:8, k : k + 9]).save(tmp_path / f"{k:02}.bmp")
    data = load_dataset(str(tmp_path))
    assert (data.labels == -1).all()
    np.testing.assert_array_equal(data.images[69], photo[:8, 69:78])
    Image.fromarray(photo[:8, :10]).save(tmp_path / "69.bmp")
    line = refused(load_dataset, "folder", tmp_path)
    assert "69.bmp: 10×8 pixels" in line


def test_odd_names(tmp_path: Path, photo: np.ndarray) -> None:
    for name in ("ä ö", "日本", "it's"):
        (tmp_path / name).mkdir()
        Image.fromarray(photo[:4, :4]).save(tmp_path / name / "ß 1.png")
    names, labels, classes = scan(tmp_path)
    assert len(names) == 3
    assert labels.tolist() == [0, 1, 2]
    assert classes == tuple(sorted(classes))
    assert len(load_dataset("folder", tmp_path)) == 3
