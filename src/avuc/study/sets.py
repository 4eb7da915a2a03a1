"""The data of a study: training, validation and test images, shifts generated on the fly, out-of-distribution data."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from avuc.core.errors import InputError
from avuc.data import UNLABELLED, Dataset, Stream, list_folder, list_imagenet, load_dataset, split_dataset
from avuc.data.decode import EvalView, ImageFiles
from avuc.data.load import DATASETS
from avuc.data.stream import in_memory
from avuc.shifts import Archive, corrupt
from avuc.study.config import Recipe
from avuc.study.grid import CLEAN, VALIDATION, TestSet
from avuc.study.own_code import is_path
from avuc.study.own_data import load_own
from avuc.study.own_digest import code_prints
from avuc.study.own_shift import own_shifted
from avuc.study.photographs import photo_patches

IMAGENET_SIZE = 224
DIGITS = 32  # of the SHA-256 that identifies data
MOST_OUTSIDE = 10_000  # patches of photographs at most


def digest_of(data: Dataset | ImageFiles) -> str:
    """Return a digest of images and labels; for streamed files, of file names and labels."""
    made = hashlib.sha256(torch.as_tensor(data.labels).cpu().numpy().tobytes())
    if isinstance(data, Dataset):
        made.update(repr(tuple(data.images.shape)).encode())
        made.update(data.images.cpu().numpy().data)
    else:
        made.update(b"\n".join(bytes(name) for name in data.names))
    return made.hexdigest()[:DIGITS]


class StudyData:
    """The images of a recipe, loaded when they are first needed. Shifts are generated on `device`."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.config, self.device = recipe, recipe.data, device
        self._streams: dict[tuple[int, int], Stream] = {}
        self._made: tuple[TestSet, Dataset] | None = None
        self._prints: dict[str, str] = {}

    # training and validation

    def train(self, batch_size: int, seed: int) -> Dataset | Stream:
        """Return the training images: in memory, the same object for all models; or a stream of files."""
        if not self.config.stream:
            return self._split[0]
        key = (batch_size, seed)
        if key not in self._streams:
            self._streams[key] = Stream(
                self._file_split[0],
                batch_size,
                train=True,
                size=self.config.size or IMAGENET_SIZE,
                seed=seed,
                workers=self.config.workers,
                device=self.device,
                verify=self.config.verify,
            )
        return self._streams[key]

    @cached_property
    def num_train(self) -> int:
        return len(self._file_split[0]) if self.config.stream else len(self._split[0])

    @cached_property
    def validation(self) -> Dataset:
        if not self.config.stream:
            held = self._split[1]
            return (held.subset(range(len(held) // 2)) if self.config.evaluate_on_validation else held).to(self.device)
        view = EvalView(self.config.size or IMAGENET_SIZE)
        held = in_memory(self._file_split[1], view, workers=self.config.workers, verify=self.config.verify)
        return held.to(self.device)

    @cached_property
    def _split(self) -> tuple[Dataset, Dataset]:
        whole = self._load("train")
        rest, held = self._apart(whole)
        return rest.to(self.device), held

    @cached_property
    def _file_split(self) -> tuple[ImageFiles, ImageFiles]:
        root = self.config.root or None
        if self.config.source == "imagenet":
            files = list_imagenet(root, "train", verify=self.config.verify)
        elif self.config.source == "folder":
            files = list_folder(root, "train")
        else:
            raise InputError(f"data.stream: files come from source imagenet or folder, found {self.config.source!r}")
        # a list of files has the names and labels that splitting looks at
        rest, held = self._apart(cast(Dataset, files))
        return cast(ImageFiles, rest), cast(ImageFiles, held)

    def _apart(self, data: Dataset) -> tuple[Dataset, Dataset]:
        config = self.config
        rest, held = split_dataset(data, config.validation, seed=config.split_seed, stratified=config.stratified).apply(
            data
        )
        if 0 < config.train_images < len(rest):
            chosen = split_dataset(rest, config.train_images, seed=config.split_seed, stratified=config.stratified)
            rest = chosen.apply(rest)[1]
        return rest, held

    # digests that identify the data

    def training_prints(self) -> dict[str, str]:
        """Return digests of the training data, by name."""
        return self._training_prints

    @cached_property
    def _training_prints(self) -> dict[str, str]:
        if self.config.stream:
            pieces: dict[str, Dataset | ImageFiles] = {"training": self._file_split[0], "validation": self.validation}
        else:
            pieces = {"training": self._split[0], "validation": self.validation}
        found = {name: digest_of(data) for name, data in pieces.items()}
        found |= code_prints([self.recipe.net.name])
        weights = Path(self.recipe.net.weights) if self.recipe.net.weights else None
        if weights is not None and weights.is_file():
            with weights.open("rb") as file:
                found["net.weights"] = hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
        return found

    def prints(self, test_set: TestSet) -> dict[str, str]:
        """Return the digest of the images of a set, by name; of the clean images, if the set is generated from them."""
        made = not test_set.outside and not self.config.corruptions_dir and test_set != VALIDATION
        name = "clean" if made else str(test_set)
        if name not in self._prints:
            self._prints[name] = digest_of(self.test if made else self.images(test_set))
        return {name: self._prints[name]} | code_prints([] if test_set.outside else [test_set.shift])

    # evaluation

    @cached_property
    def test(self) -> Dataset:
        held = self._split[1] if self.config.evaluate_on_validation else None
        whole = self._load("test") if held is None else held.subset(range(len(held) // 2, len(held)))
        if 0 < self.config.test_images < len(whole):
            chosen = split_dataset(whole, self.config.test_images, seed=self.config.split_seed, stratified=True)
            whole = chosen.apply(whole)[1]
        return whole.to(self.device)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.validation.images.shape[1:]
        return height, width, channels

    def images(self, test_set: TestSet) -> Dataset:
        """Return the images of a set; the last set is kept for the next model."""
        if test_set == VALIDATION:
            return self.validation
        if test_set == CLEAN:
            return self.test
        if self._made is None or self._made[0] != test_set:
            self._made = None  # free the old one first: two may not fit in memory
            self._made = (test_set, self._outside(test_set) if test_set.outside else self._shifted(test_set))
        return self._made[1]

    def _shifted(self, test_set: TestSet) -> Dataset:
        study, clean = self.recipe.study, self.test
        if self.config.corruptions_dir:
            return self._published(test_set)
        name, severity, seed = test_set.shift, test_set.severity, study.shift_seed
        if is_path(name):
            images = own_shifted(clean.images, name, severity, seed)
        else:
            images = corrupt(clean.images, name, severity, seed=seed, profile=study.profile)
        return Dataset(images, clean.labels, clean.num_classes, str(test_set))

    def _published(self, test_set: TestSet) -> Dataset:
        """Published corrupted images: all of them, or `test_images` of ImageNet-C."""
        if self.config.source == "imagenet":
            options: dict[str, Any] = {"corruption": test_set.shift, "severity": test_set.severity}
            options |= {"workers": self.config.workers, "verify": self.config.verify}
            if self.config.test_images:
                options["limit"] = self.config.test_images
            return load_dataset("imagenet-c", self.config.corruptions_dir, **options).to(self.device)
        archive = Archive(self.config.corruptions_dir)
        images = torch.from_numpy(archive.images(test_set.shift, test_set.severity))
        labels = torch.from_numpy(archive.labels(test_set.severity))
        return Dataset(images, labels, self.test.num_classes, str(test_set)).to(self.device)

    def _outside(self, test_set: TestSet) -> Dataset:
        other = next(one for one in self.recipe.study.others if f"ood:{one.name}" == test_set.shift)
        source = other.path or other.name
        if source == "photographs":
            images = photo_patches(min(len(self.test), MOST_OUTSIDE), self.image_shape, self.recipe.study.shift_seed)
        elif is_path(source):
            images = load_own(replace(self.config, source=source, options={}), "test").images
        else:
            images = load_dataset(source, split="test" if source in DATASETS else "all").images
        images = images[: other.first or None]
        if images.shape[1:] != self.image_shape:
            raise InputError(
                f"study.ood: {source}: images {tuple(images.shape[1:])} (height, width, channels), but the net takes "
                f"{self.image_shape}; resize them"
            )
        labels = torch.full((len(images),), UNLABELLED)
        return Dataset(images, labels, self.test.num_classes, test_set.shift).to(self.device)

    def _load(self, split: str) -> Dataset:
        config = self.config
        if config.is_own:
            return load_own(config, split)
        options: dict[str, Any] = {"verify": config.verify}
        if config.source in ("imagenet", "folder"):
            options |= {"workers": config.workers} | ({"size": config.size} if config.size else {})
        if config.source == "imagenet" and config.test_images and split == "test":
            options["limit"] = config.test_images
        return load_dataset(config.source, config.root or None, split, **options)
