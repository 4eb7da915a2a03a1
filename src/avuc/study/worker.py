"""What a process of a study does, whatever engine it runs under: train models, fit calibrators, judge cells."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from avuc.calibration import CalibrationWarning, Calibrator
from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.methods.batch_norm import PerDrawBatchNorm, evenly_spaced
from avuc.posterior import Posterior, seeded_generator
from avuc.prediction.predictor import Predictor
from avuc.predictions import Predictions
from avuc.study.examples import shown_of, thumbnail
from avuc.study.grid import CLEAN, VALIDATION, ModelKey, Plan, TestSet
from avuc.study.judge import Variant, judge, kept_logits, predict_all
from avuc.study.names import slugs
from avuc.study.net import make_net
from avuc.study.recipe import Recipe, Row
from avuc.study.sets import StudyData
from avuc.study.store import Cell, Store, Trained
from avuc.training.checkpoint import Checkpoint, latest, save
from avuc.training.fit import fit_many
from avuc.training.run import Fitted, Job

__all__ = ["Learned", "Predicted", "Work", "learned_of"]

# of a GPU's memory, for the draws of all models: they meet every set
DRAWS_SHARE = 0.25


@dataclass(frozen=True)
class Learned:
    """What a row has learned from validation data and clean images, for its other cells."""

    calibrator: str | None = None
    threshold: float | None = None
    clean_entropy: NDArray[np.float32] | None = None


def learned_of(store: Store, row: Row, seed: int) -> Learned:
    return Learned(
        store.calibrator(row.name, seed), store.threshold(row.name, seed), store.clean_entropy(row.name, seed)
    )


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions of a model's rows on a set, all in the host's memory: what is left to do needs no device."""

    key: ModelKey
    test_set: TestSet
    rows: Sequence[Row]
    learned: Mapping[str, Learned]
    found: Sequence[Predictions]
    calibrators: Mapping[str, Calibrator]
    first: Tensor  # of the images, for the gallery
    images: Dataset | None  # all of them, where single ones are shown
    seconds: float
    prints: Mapping[str, str]  # digests of the images


class Work:
    """A recipe at work on one device. Data and models are loaded when they are first needed, and kept.

    until: a value of `time.monotonic()`, after which training stops with `OutOfTime`.
    """

    def __init__(
        self,
        recipe: Recipe,
        directory: Path,
        device: torch.device | str,
        *,
        progress: bool = True,
        until: float | None = None,
    ) -> None:
        self.recipe, self.directory, self.progress, self.until = recipe, Path(directory), progress, until
        self.device = torch.device(device)
        self.data = StudyData(recipe, self.device)
        self._fitted: dict[ModelKey, Fitted] = {}
        self._predictors: dict[tuple[ModelKey, int], Predictor] = {}  # by the images of their own statistics
        self._fits: dict[tuple[str, int], Future[Calibrator]] = {}  # of calibrators that are being fitted
        self._on_host: tuple[TestSet, Dataset] | None = None

    # training

    def train(self, keys: Sequence[ModelKey]) -> list[Trained]:
        """Train models side by side; what was begun goes on, what was finished is read back."""
        missing = [key for key in keys if key not in self._fitted]
        given = [key for key in missing if self.recipe.row(key.method).as_given]
        self._fitted |= {key: self._as_given(key) for key in given}
        missing = [key for key in missing if key not in given]
        starts = [key for key in (self._start(key) for key in missing) if key is not None]
        if starts:
            self.train(list(dict.fromkeys(starts)))
        jobs = [self._job(key) for key in missing]
        found = fit_many(jobs, device=self.device, progress=self.progress, until=self.until)
        self._fitted |= dict(zip(missing, found, strict=True))
        for job in jobs:
            _slim(job)
        return [self._told(key) for key in keys]

    def _told(self, key: ModelKey) -> Trained:
        fitted = self._fitted[key]
        prints = self.data.training_prints()
        return Trained(key, fitted.history, fitted.epochs, fitted.seconds, fitted.threshold, prints)

    def _as_given(self, key: ModelKey) -> Fitted:
        """A model that is not trained here."""
        job = self._job(key)
        assert not isinstance(job.net, nn.Module)
        model = job.method.build(job.net(seeded_generator(key.seed)).to(self.device)).to(self.device).eval()
        return Fitted([model], job.method.posterior([model]), [], None, 0, 0.0)

    def _start(self, key: ModelKey) -> ModelKey | None:
        start = self.recipe.row(key.method).start
        return ModelKey(start, key.seed) if start else None

    def _job(self, key: ModelKey) -> Job:
        row = self.recipe.row(key.method)
        assert row.method is not None
        data = self.data.train(row.train.batch_size, key.seed)
        start = self._start(key)
        weights = None if start is None else self._fitted[start].models[0].state_dict()
        shape, classes = self.data.image_shape, self.data.validation.num_classes
        return Job(
            row.method,
            partial(make_net, self.recipe.net, classes, shape, weights),
            data,
            row.objective,
            row.train,
            self.data.validation,
            key.seed,
            self.directory / "models" / self.recipe.folder(key.method, key.seed),
        )

    def holds(self, key: ModelKey) -> bool:
        """Whether a model can be had without training it from the start."""
        saved = self.directory / "models" / self.recipe.folder(key.method, key.seed)
        return key in self._fitted or self.recipe.row(key.method).as_given or any(saved.glob("checkpoint-*"))

    def posterior(self, key: ModelKey) -> Posterior:
        if key not in self._fitted:
            self.train([key])
        return self._fitted[key].posterior

    def predictor(self, key: ModelKey, bn_images: int = 0) -> Predictor:
        """The model as one that has made its draws before; on a GPU they are kept, and run in the study's precision."""
        if (key, bn_images) not in self._predictors:
            memory, dtype = 0, None
            if self.device.type == "cuda":
                rows = {(row.of or row.name, row.bn_images): len(self.recipe.seeds(row)) for row in self.recipe.methods}
                memory = int(torch.cuda.mem_get_info(self.device)[1] * DRAWS_SHARE) // sum(rows.values())
                dtype = torch.bfloat16 if self.recipe.study.precision == "bfloat16" else None
            posterior = self._measured(key, bn_images) if bn_images else self.posterior(key)
            self._predictors[key, bn_images] = Predictor(posterior, seed=key.seed, dtype=dtype, memory=memory)
        return self._predictors[key, bn_images]

    def _measured(self, key: ModelKey, bn_images: int) -> Posterior:
        data = self.data.train(self.recipe.row(key.method).train.batch_size, key.seed)
        if not isinstance(data, Dataset):
            raise InputError(f"{key.method}: bn_images needs training images in memory, not a stream of files")
        return PerDrawBatchNorm(self.posterior(key), evenly_spaced(data.images, bn_images))

    # judging

    def judge(
        self, key: ModelKey, test_set: TestSet, rows: Sequence[Row], learned: Mapping[str, Learned]
    ) -> list[Cell]:
        """Rows of one model on one set. On validation data calibrators and thresholds are learned; nowhere else."""
        return self.cells(self.predict(key, test_set, rows, learned))

    def predict(
        self, key: ModelKey, test_set: TestSet, rows: Sequence[Row], learned: Mapping[str, Learned]
    ) -> Predicted:
        """The part of `judge` that needs the device."""
        began = time.perf_counter()
        data = self.data.images(test_set)
        calibrators = self._calibrators(key, test_set, rows, learned)
        by_row: dict[str, Predictions] = {}
        for bn_images in dict.fromkeys(row.bn_images for row in rows):
            alike = [row for row in rows if row.bn_images == bn_images]
            variants = [Variant(row.name, self.recipe.samples(row), calibrators.get(row.name)) for row in alike]
            told = predict_all(self.predictor(key, bn_images), data, variants, seed=key.seed)
            by_row |= dict(zip((row.name for row in alike), told, strict=True))
        found = [by_row[row.name] for row in rows]
        images = self._host(test_set, data) if self._is_shown(key, test_set) else None
        prints = self.data.prints(test_set)
        seconds = time.perf_counter() - began
        return Predicted(
            key, test_set, rows, learned, found, calibrators, data.images[0].cpu(), images, seconds, prints
        )

    def cells(self, predicted: Predicted) -> list[Cell]:
        """The rest of it: metrics, curves, pictures. Any thread may do it."""
        began = time.perf_counter() - predicted.seconds
        key, test_set, cells = predicted.key, predicted.test_set, []
        for row, found in zip(predicted.rows, predicted.found, strict=True):
            known = predicted.learned.get(row.name, Learned())
            told = judge(
                found,
                threshold=None if test_set == VALIDATION else _needed(known.threshold, row, "threshold"),
                bins=self.recipe.study.bins,
                clean_entropy=None if test_set in (VALIDATION, CLEAN) else known.clean_entropy,
            )
            calibrator = predicted.calibrators.get(row.name) if test_set == VALIDATION else None
            if calibrator is not None:
                told.metrics["temperature"] = float(calibrator.temperature_)
            self._keep(key, test_set, row, found)
            seconds = (time.perf_counter() - began) / len(predicted.rows)
            text = None if calibrator is None else calibrator.to_json()
            shown = None if predicted.images is None else shown_of(found, predicted.images, self.recipe.study.bins)
            picture = None if test_set == VALIDATION else thumbnail(predicted.first)
            kept = (text, test_set == CLEAN, shown, picture, predicted.prints)
            cells.append(Cell(row.name, key.seed, test_set, told, seconds, *kept))
        return cells

    def _is_shown(self, key: ModelKey, test_set: TestSet) -> bool:
        """Single images are shown of one seed: they fill most of a study's file."""
        strongest = test_set == CLEAN or 0 < test_set.severity == max(self.recipe.study.severities)
        return strongest and key.seed == min(self.recipe.seeds(self.recipe.row(key.method)))

    def _host(self, test_set: TestSet, data: Dataset) -> Dataset:
        """One copy for all models: pictures that were fetched one by one would each wait for the device."""
        if self._on_host is None or self._on_host[0] != test_set:
            self._on_host = (test_set, data.to("cpu"))
        return self._on_host[1]

    # calibrators

    def start_fits(self, key: ModelKey, rows: Sequence[Row], pool: Executor) -> None:
        """Fit the calibrators of a model in `pool`; `predict` on validation data waits for them."""
        kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for row in rows:
            if row.calibrator is not None:
                logits = self._kept(key, row, kept)
                self._fits[row.name, key.seed] = pool.submit(row.calibrator.make().fit, *logits)

    def _calibrators(
        self, key: ModelKey, test_set: TestSet, rows: Sequence[Row], learned: Mapping[str, Learned]
    ) -> dict[str, Calibrator]:
        scaled = [row for row in rows if row.calibrator is not None]
        if test_set != VALIDATION:
            texts = {row.name: _needed(learned[row.name].calibrator, row, "calibrator") for row in scaled}
            return {name: Calibrator.from_json(text) for name, text in texts.items()}
        made: dict[str, Calibrator] = {}
        kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for row in scaled:
            assert row.calibrator is not None
            started = self._fits.pop((row.name, key.seed), None)
            if started is not None:
                made[row.name] = started.result()
                continue
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", CalibrationWarning)
                made[row.name] = row.calibrator.make().fit(*self._kept(key, row, kept))
            for warning in said:
                print(f"{row.name} (seed {key.seed}): {warning.message}", file=sys.stderr)
        return made

    def _kept(
        self, key: ModelKey, row: Row, kept: dict[tuple[int, int], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        samples, predictor = self.recipe.samples(row), self.predictor(key, row.bn_images)
        which = (samples, row.bn_images)
        if which not in kept:
            kept[which] = kept_logits(predictor, self.data.validation, samples, seed=key.seed)
        return kept[which]

    def _keep(self, key: ModelKey, test_set: TestSet, row: Row, found: Predictions) -> None:
        if self.recipe.study.predictions:
            folder = self.directory / "predictions" / self.recipe.folder(row.name, key.seed)
            folder.mkdir(parents=True, exist_ok=True)
            files = slugs(str(one) for one in Plan(self.recipe).sets)
            found.save(folder / f"{files[str(test_set)]}.safetensors")


def _slim(job: Job) -> None:
    """A trained model is only read back: without the optimiser's state its file is a third, and one is enough."""
    assert job.directory is not None
    found = latest(job.directory, job.identity(), lambda line: print(line, file=sys.stderr))
    if found is None or not any(name.startswith("optimizer.") for name in found.tensors):
        return
    tensors = {name: tensor for name, tensor in found.tensors.items() if not name.startswith("optimizer.")}
    told = (found.epoch, found.history, found.identity, tensors, found.best, found.stopped, found.seconds)
    path = save(job.directory, Checkpoint(*told))
    for other in job.directory.glob("checkpoint-*.safetensors"):
        if other != path:
            other.unlink(missing_ok=True)


def _needed(value: Any, row: Row, what: str) -> Any:
    if value is None:
        raise InputError(f"{row.name}: its {what} is learned on validation data, which has not been judged yet")
    return value
