"""Real images for the data tests, written in the official formats; the real CIFAR-10 where it is at hand."""

from __future__ import annotations

import gzip
import hashlib
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avuc.core.errors import InputError
from avuc.data import cifar, cifar_c, mnist, svhn
from avuc.data.arrays import Dataset
from avuc.data.load import load_dataset
from avuc.data.obtain import PublishedForm

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
COUNT = 20  # images in a small set


@pytest.fixture(scope="session")
def real_cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the official data_batch_1 and test_batch."""
    if not (SHARED / "unpack.py").is_file():
        pytest.skip(
            "the real CIFAR-10 is not beside this checkout (../shared/data); the same code runs on package images"
        )
    folder = tmp_path_factory.mktemp("cifar10")
    command = [sys.executable, str(SHARED / "unpack.py"), str(folder), "data_batch_1", "test_batch"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def photo() -> np.ndarray:
    """A real photograph, uint8 (427, 640, 3)."""
    from sklearn.datasets import load_sample_image

    return np.array(load_sample_image("china.jpg"))


@pytest.fixture(scope="session")
def crops(photo: np.ndarray) -> Callable[..., np.ndarray]:
    """`crops(n, side, seed)`: crops of the photograph, uint8 (n, side, side, 3)."""

    def cut(n: int, side: int = 32, seed: int = 0) -> np.ndarray:
        corners = np.random.default_rng(seed).integers(0, [photo.shape[0] - side, photo.shape[1] - side], size=(n, 2))
        return np.stack([photo[y : y + side, x : x + side] for y, x in corners])

    return cut


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """5,000 real MNIST digits."""
    return load_dataset("mnist5k", split="all")


@pytest.fixture
def refused() -> Callable[..., str]:
    """Call something that must fail with one clear line; return that line."""

    def call(function: Callable[..., Any], *args: Any, **options: Any) -> str:
        with pytest.raises(InputError) as caught:
            function(*args, **options)
        line = str(caught.value)
        assert line
        assert "\n" not in line
        assert len(line) < 600
        return line

    return call


def relabelled(form: PublishedForm, folder: Path) -> PublishedForm:
    """The form with the sizes and digests of the small files in `folder`, so that they count as the published ones."""

    def known(file: Any) -> Any:
        path = folder / file.name
        if not path.is_file():
            return file
        algorithm = file.digest.partition(":")[0]
        data = path.read_bytes()
        return replace(file, size=len(data), digest=f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}")

    return replace(form, files=tuple(map(known, form.files)), members=tuple(map(known, form.members)))


def python2_batch(pixels: np.ndarray, key: str, labels: np.ndarray) -> bytes:
    """What Python 2's cPickle wrote for CIFAR: {'labels': […], 'data': array}, protocol 2, opcode for opcode."""
    raw = pixels.tobytes()
    return b"".join(
        [
            b"\x80\x02}q\x01(U", bytes([len(key)]), key.encode(), b"q\x02](",
            *(b"K" + bytes([int(label)]) for label in labels),
            b"eU\x04dataq\x03cnumpy.core.multiarray\n_reconstruct\nq\x04cnumpy\nndarray\nq\x05K\x00\x85U\x01b\x87Rq\x06(K\x01",
            b"M", struct.pack("<H", len(pixels)), b"M", struct.pack("<H", pixels.shape[1]),
            b"\x86cnumpy\ndtype\nq\x07U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T",
            struct.pack("<i", len(raw)), raw, b"tbu.",
        ]
    )  # fmt: skip


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


@dataclass
class Small:
    """A small set on disk in an official format, and what loading it must give."""

    name: str
    root: Path
    files: list[Path]
    images: np.ndarray
    labels: np.ndarray
    options: dict[str, Any] = field(default_factory=dict)

    def load(self, **options: Any) -> Dataset:
        return load_dataset(self.name, self.root, **(self.options | options))


def cifar10_python(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    return _cifar(
        root,
        crops,
        patch,
        "cifar10",
        0,
        ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"],
    )


def cifar10_binary(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    return _cifar(root, crops, patch, "cifar10", 1, [f"data_batch_{k}.bin" for k in range(1, 6)])


def cifar100_python(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    return _cifar(root, crops, patch, "cifar100", 0, ["train"])


def cifar100_binary(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    return _cifar(root, crops, patch, "cifar100", 1, ["train.bin"])


def _cifar(root: Path, crops: Any, patch: pytest.MonkeyPatch, name: str, which: int, names: list[str]) -> Small:
    forms = getattr(cifar, name.upper())
    folder = root / forms[which]["train"].folders[0]
    folder.mkdir(parents=True)
    classes = 100 if name == "cifar100" else 10
    labels = np.random.default_rng(1).integers(0, classes, COUNT * len(names))
    images = crops(COUNT * len(names))
    for k, file in enumerate(names):
        part = slice(k * COUNT, (k + 1) * COUNT)
        pixels, targets = planes(images[part]), labels[part]
        if which == 0:
            key = "fine_labels" if name == "cifar100" else "labels"
            (folder / file).write_bytes(python2_batch(pixels, key, targets))
        else:
            columns = [targets // 5, targets] if name == "cifar100" else [targets]
            rows = np.concatenate([*(c[:, None].astype(np.uint8) for c in columns), pixels], 1)
            (folder / file).write_bytes(rows.tobytes())
    patch.setattr(cifar, name.upper(), [{s: relabelled(f, folder) for s, f in form.items()} for form in forms])
    return Small(name, root, [folder / file for file in names], images, labels, {"split": "train"})


def svhn_mat(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    from scipy.io import savemat

    images, labels = crops(COUNT), np.arange(COUNT) % 10
    stored = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    savemat(root / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": stored}, do_compression=True)
    patch.setattr(svhn, "SVHN", {split: relabelled(form, root) for split, form in svhn.SVHN.items()})
    return Small("svhn", root, [root / "test_32x32.mat"], images, labels, {"split": "test"})


def _idx(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def _mnist(root: Path, digits: Dataset, patch: pytest.MonkeyPatch, name: str, forms: str, packed: bool) -> Small:
    part = digits.subset(range(0, 5000, 5000 // COUNT))
    images, labels = part.images.numpy(), part.labels.numpy()
    files = []
    for file, array in zip(mnist.NAMES["test"], (images[..., 0], labels), strict=True):
        data = _idx(array)
        files.append(root / (f"{file}.gz" if packed else file))
        files[-1].write_bytes(gzip.compress(data, mtime=0) if packed else data)
    all_forms = getattr(mnist, forms)
    patch.setattr(mnist, forms, {s: [relabelled(f, root) for f in both] for s, both in all_forms.items()})
    return Small(name, root, files, images, labels, {"split": "test"})


def mnist_gz(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    return _mnist(root, digits, patch, "mnist", "MNIST", True)


def mnist_idx(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    return _mnist(root, digits, patch, "mnist", "MNIST", False)


def fashion_gz(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    return _mnist(root, digits, patch, "fashion-mnist", "FASHION", True)


def cifar10_c(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    folder = root / "CIFAR-10-C"
    folder.mkdir()
    images, labels = crops(5 * COUNT), np.tile(np.arange(COUNT) % 10, 5).astype(np.uint8)
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", labels)
    patch.setattr(cifar_c, "CIFAR10C", relabelled(cifar_c.CIFAR10C, folder))
    files = [folder / "fog.npy", folder / "labels.npy"]
    third = slice(2 * COUNT, 3 * COUNT)
    return Small("cifar10-c", root, files, images[third], labels[third], {"corruption": "fog", "severity": 3})


def _sums(folder: Path) -> None:
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines))


def user_npz(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    images, labels = crops(COUNT), np.arange(COUNT) % 3
    np.savez_compressed(root / "mine.npz", images=images, labels=labels)
    return Small("npz", root / "mine.npz", [root / "mine.npz"], images, labels)


def user_npy(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    images, labels = crops(COUNT), np.arange(COUNT) % 3
    np.save(root / "mine.npy", images)
    np.save(root / "mine-labels.npy", labels)
    _sums(root)
    return Small("npy", root / "mine.npy", [root / "mine.npy", root / "mine-labels.npy"], images, labels)


def folder_png(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    from PIL import Image

    images, labels = crops(6), np.array([0, 0, 0, 1, 1, 1])
    files = []
    for k, image in enumerate(images):
        folder = root / ("ants" if labels[k] == 0 else "bees")
        folder.mkdir(exist_ok=True)
        files.append(folder / f"{k}.png")
        Image.fromarray(image).save(files[-1])
    return Small("folder", root, files, images, labels)


def imagenet_jpeg(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    small = _jpegs(root, root / "val", crops(4, 256), "imagenet", {"split": "test"})
    small.images = small.images[:, 16:240, 16:240]  # the shorter side is 256 already: the view is the centre
    return small


def imagenet_c_jpeg(root: Path, crops: Any, digits: Dataset, patch: pytest.MonkeyPatch) -> Small:
    options = {"corruption": "fog", "severity": 3}
    return _jpegs(root, root / "weather" / "fog" / "3", crops(4, 224), "imagenet-c", options)


def _jpegs(root: Path, base: Path, images: np.ndarray, name: str, options: dict[str, Any]) -> Small:
    """Two synsets of two pictures; `verify` would ask for all 1,000."""
    from PIL import Image

    files = []
    for k, image in enumerate(images):
        folder = base / ("n01440764" if k < 2 else "n01443537")
        folder.mkdir(parents=True, exist_ok=True)
        files.append(folder / f"picture_{k}.JPEG")
        Image.fromarray(image).save(files[-1], quality=95)
    labels = np.array([0, 0, 1, 1])
    return Small(name, root, files, images, labels, options | {"verify": False})


SOURCES = {
    maker.__name__: maker
    for maker in (
        cifar10_python, cifar10_binary, cifar100_python, cifar100_binary, svhn_mat, mnist_gz, mnist_idx, fashion_gz,
        cifar10_c, user_npz, user_npy, folder_png, imagenet_jpeg, imagenet_c_jpeg,
    )
}  # fmt: skip


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path, crops: Any, digits: Dataset, monkeypatch: Any) -> Small:
    """`@pytest.mark.parametrize("small", [...], indirect=True)` with names from SOURCES."""
    root = tmp_path / "data"
    root.mkdir()
    return SOURCES[request.param](root, crops, digits, monkeypatch)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `small` and names no source runs on all of them."""
    if "small" in metafunc.fixturenames and not any(
        m.args[0] == "small" for m in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("small", list(SOURCES), indirect=True)
