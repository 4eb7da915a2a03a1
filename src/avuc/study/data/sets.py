"""The data of a study: training, validation and test images, shifts generated on the fly, out-of-distribution data."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.core.tasks import IGNORE_INDEX
from avuc.data import UNLABELLED, Dataset, Stream, list_folder, list_imagenet, load_dataset, split_dataset
from avuc.data.decode import EvalView, ImageFiles
from avuc.data.digest import DIGITS, digest_of, shapes_of
from avuc.data.load import DATASETS
from avuc.data.stream import in_memory
from avuc.data.tensors import MemoryData, TensorData
from avuc.shifts import Archive
from avuc.study.data.own import load_own
from avuc.study.data.photographs import photo_patches
from avuc.study.data.shifted import shifted_data
from avuc.study.data.shifted_text import word_labels
from avuc.study.grid import CLEAN, VALIDATION, TestSet
from avuc.study.own.code import is_path, search_recipe_folder, unknown
from avuc.study.own.digest import code_prints
from avuc.study.own.text_file import is_text_file, read_sentences
from avuc.study.recipe.config import Recipe
from avuc.study.recipe.sections import DataConfig

IMAGENET_SIZE = 224
MOST_OUTSIDE = 10_000  # patches of photographs at most


def outside_images(source: str) -> Tensor:
    """Return the images of an out-of-distribution set, from a known data set, a file or a folder."""
    try:
        return load_dataset(source, split="test" if source in DATASETS else "all").images
    except InputError as error:
        raise InputError(f"study.ood: {error}") from error


def check_outside_shape(source: str, images: Tensor, shape: tuple[int, int, int] | None) -> None:
    """Raise unless images have the shape of the test data; None: the test data are no images."""
    if shape is None:
        raise InputError(f"study.ood: {source}: images, and the test data are none; name a function of your own")
    if images.shape[1:] != shape:
        raise InputError(
            f"study.ood: {source}: images {tuple(images.shape[1:])} (height, width, channels), but the net takes "
            f"{shape}; resize them"
        )


class StudyData:
    """The data of a recipe, loaded when they are first needed. Shifts are generated on `device`."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        search_recipe_folder(recipe.code_folder)
        self.recipe: Recipe = recipe
        self.config: DataConfig = recipe.data
        self.device: torch.device = device
        self._streams: dict[tuple[int, int], Stream] = {}
        self._last_set: tuple[TestSet, MemoryData] | None = None
        self._prints: dict[str, str] = {}

    # training and validation

    def train(self, batch_size: int, seed: int) -> MemoryData | Stream:
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
    def validation(self) -> MemoryData:
        if not self.config.stream:
            return (self._halves[0] if self.config.evaluate_on_validation else self._split[1]).to(self.device)
        view = EvalView(self.config.size or IMAGENET_SIZE)
        held = in_memory(self._file_split[1], view, workers=self.config.workers, verify=self.config.verify)
        return held.to(self.device)

    @cached_property
    def _split(self) -> tuple[MemoryData, MemoryData]:
        whole = self._load("train")
        if self.config.stratified and whole.labels.ndim > 1:
            raise InputError("data.stratified: needs one label for each example, and these have several; leave it out")
        if self.config.validation_split:
            held = self._load(self.config.validation_split)
            return self._fewer(whole).to(self.device), held
        rest, held = self._hold_out(whole)
        return rest.to(self.device), held

    @cached_property
    def _halves(self) -> tuple[MemoryData, MemoryData]:
        """The two halves of the held-out data. Data sorted by class are assigned to the halves alternately."""
        held = self._split[1]
        count, labels = len(held), held.labels
        if labels.ndim == 1 and int(labels.diff().count_nonzero()) < len(labels.unique()):
            return held.subset(range(1, count, 2)), held.subset(range(0, count, 2))
        return held.subset(range(count // 2)), held.subset(range(count // 2, count))

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
        rest, held = self._hold_out(cast(Dataset, files))
        return cast(ImageFiles, rest), cast(ImageFiles, held)

    def _hold_out(self, data: MemoryData) -> tuple[MemoryData, MemoryData]:
        config = self.config
        # splitting looks at labels and takes subsets, which all kinds of data have
        whole = cast(Dataset, data)
        try:
            chosen = split_dataset(whole, config.validation, seed=config.split_seed, stratified=config.stratified)
        except InputError as error:
            raise InputError(f"{error}; set data.validation") from None
        rest, held = chosen.apply(whole)
        return self._fewer(rest), held

    def _fewer(self, rest: MemoryData) -> MemoryData:
        config = self.config
        if not 0 < config.train_images < len(rest):
            return rest
        whole = cast(Dataset, rest)
        chosen = split_dataset(whole, config.train_images, seed=config.split_seed, stratified=config.stratified)
        return chosen.apply(whole)[1]

    # digests that identify the data

    def training_prints(self) -> dict[str, str]:
        """Return digests of the training data, by name."""
        return self._training_prints

    @cached_property
    def _training_prints(self) -> dict[str, str]:
        if self.config.stream:
            pieces: dict[str, MemoryData | ImageFiles] = {
                "training": self._file_split[0],
                "validation": self.validation,
            }
        else:
            pieces = {"training": self._split[0], "validation": self.validation}
        prints = {name: digest_of(data) for name, data in pieces.items()}
        prints |= code_prints([self.recipe.net.name])
        weights = Path(self.recipe.net.weights) if self.recipe.net.weights else None
        if weights is not None and weights.is_file():
            with weights.open("rb") as file:
                prints["net.weights"] = hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
        return prints

    def prints(self, test_set: TestSet) -> dict[str, str]:
        """Return digests by name: of the images of a set, or of the clean images if the set is generated from them."""
        is_generated = not test_set.outside and not self.config.corruptions_dir and test_set != VALIDATION
        name = "clean" if is_generated else str(test_set)
        if name not in self._prints:
            self._prints[name] = digest_of(self.test if is_generated else self.images(test_set))
        result = {name: self._prints[name]} | code_prints([] if test_set.outside else [test_set.shift])
        if is_text_file(test_set.shift):
            result[test_set.shift] = hashlib.sha256(Path(test_set.shift).read_bytes()).hexdigest()[:DIGITS]
        return result

    # evaluation

    @cached_property
    def test(self) -> MemoryData:
        whole = self._halves[1] if self.config.evaluate_on_validation else self._load("test")
        if 0 < self.config.test_images < len(whole):
            some, one_label_each = cast(Dataset, whole), whole.labels.ndim == 1
            chosen = split_dataset(
                some, self.config.test_images, seed=self.config.split_seed, stratified=one_label_each
            )
            whole = chosen.apply(some)[1]
        return whole.to(self.device)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of images; None for other data."""
        images = self.validation.images
        return None if images is None else (images.shape[1], images.shape[2], images.shape[3])

    @property
    def any_inputs(self) -> bool:
        """Whether the data are anything other than uint8 images with one label each."""
        return isinstance(self.validation, TensorData)

    def images(self, test_set: TestSet) -> MemoryData:
        """Return the images of a set; the last set is kept for the next model."""
        if test_set == VALIDATION:
            return self.validation
        if test_set == CLEAN:
            return self.test
        if self._last_set is None or self._last_set[0] != test_set:
            self._last_set = None  # free the old one first: two may not fit in memory
            self._last_set = (test_set, self._outside(test_set) if test_set.outside else self._shifted(test_set))
        return self._last_set[1]

    def load_again(self, test_set: TestSet) -> MemoryData:
        """Return the images of a set, loaded or generated again."""
        self._last_set = None
        return self.images(test_set)

    def _shifted(self, test_set: TestSet) -> MemoryData:
        study, clean = self.recipe.study, self.test
        if self.config.corruptions_dir:
            return self._published(test_set)
        return shifted_data(
            clean,
            test_set.shift,
            test_set.severity,
            study.shift_seed,
            study.profile,
            study.shift_size,
            self.config.offered,
        )

    def _published(self, test_set: TestSet) -> Dataset:
        """Return published corrupted images: all of them, or `test_images` of ImageNet-C."""
        if self.config.source == "imagenet":
            options: dict[str, Any] = {"corruption": test_set.shift, "severity": test_set.severity}
            options |= {"workers": self.config.workers, "verify": self.config.verify}
            if self.config.test_images:
                options["limit"] = self.config.test_images
            return load_dataset("imagenet-c", self.config.corruptions_dir, **options).to(self.device)
        archive = Archive(self.config.corruptions_dir)
        images = torch.from_numpy(archive.images(test_set.shift, test_set.severity))
        labels = torch.from_numpy(archive.labels(test_set.severity))
        names = self.test.class_names
        return Dataset(images, labels, self.test.num_classes, str(test_set), names).to(self.device)

    def _outside(self, test_set: TestSet) -> MemoryData:
        other = next(candidate for candidate in self.recipe.study.others if f"ood:{candidate.name}" == test_set.shift)
        source = other.path or other.name
        shape = self.image_shape
        if is_path(source) or is_text_file(source):
            outside = self._own_outside(source, other.first, test_set.shift)
            # data are loaded again after other sets, and every method needs the same
            known = self._prints.get(str(test_set))
            if known is not None and digest_of(outside) != known:
                raise InputError(
                    f"study.ood: {source} returns other data if it is called again; give random numbers a fixed seed"
                )
            return outside
        if source == "photographs" and shape is not None:
            images = photo_patches(min(len(self.test), MOST_OUTSIDE), shape, self.recipe.study.shift_seed)
        else:
            images = outside_images(source)
        images = images[: other.first or None]
        check_outside_shape(source, images, shape)
        test, name = self.test, test_set.shift
        labels = torch.full((len(images), *test.labels.shape[1:]), UNLABELLED)
        if isinstance(test, TensorData):
            return TensorData(images, labels, test.num_classes, name).to(self.device)
        return Dataset(images, labels, test.num_classes, name).to(self.device)

    def _own_outside(self, source: str, first: int, name: str) -> MemoryData:
        """Return out-of-distribution data from the user's function, or sentences from a file."""
        test = self.test
        if is_path(source):
            outside = load_own(replace(self.config, source=source), "test", test.num_classes)
        elif isinstance(test, TensorData) and test.texts and test.encode is not None:
            texts, labels = read_sentences(source, test.num_classes, labelled=False)
            row_labels = word_labels(texts, test.labels) if test.labels.ndim == 2 else torch.tensor(labels)
            outside = replace(test, inputs=test.encode(texts), labels=row_labels, texts=tuple(texts))
        else:
            raise InputError(f"study.ood: {source}: a file of sentences, and {test.name} has none")
        outside = outside.subset(range(min(first or len(outside), len(outside))))
        if shapes_of(outside) != shapes_of(test) or (outside.images is None) != (test.images is None):
            raise InputError(f"study.ood: {source}: {shapes_of(outside)}, but the test data are {shapes_of(test)}")
        new_labels = torch.full((len(outside), *test.labels.shape[1:]), UNLABELLED)
        if outside.labels.shape == new_labels.shape:  # padding stays padding
            new_labels.masked_fill_(outside.labels.cpu() == IGNORE_INDEX, IGNORE_INDEX)
        if isinstance(test, Dataset):
            assert outside.images is not None
            return Dataset(outside.images, new_labels, test.num_classes, name).to(self.device)
        sentences = outside.texts if isinstance(outside, TensorData) else ()
        return TensorData(outside.inputs, new_labels, test.num_classes, name, texts=sentences).to(self.device)

    def _load(self, split: str) -> MemoryData:
        config = self.config
        if config.is_own:
            return load_own(config, split)
        if config.source not in DATASETS and not Path(config.source).expanduser().exists():
            raise InputError(f"data.source: {unknown('data set', config.source, DATASETS)}")
        options: dict[str, Any] = {"verify": config.verify}
        if config.source in ("imagenet", "folder"):
            options |= {"workers": config.workers} | ({"size": config.size} if config.size else {})
        if config.source == "imagenet" and config.test_images and split == "test":
            options["limit"] = config.test_images
        return load_dataset(config.source, config.root or None, split, **options)
