"""What a process of a study does, whatever engine it runs under: train models, fit calibrators, judge cells."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from avuc.calibration import CalibrationWarning, Calibrator
from avuc.draws import Posterior, seeded_generator
from avuc.errors import InputError
from avuc.nets import NETS
from avuc.predictions import Predictions
from avuc.study.grid import CLEAN, VALIDATION, ModelKey, TestSet
from avuc.study.judge import Variant, judge, kept_logits, predict_all
from avuc.study.recipe import NetPart, Recipe, Row, slug
from avuc.study.sets import StudyData
from avuc.study.shown import shown_of, thumbnail
from avuc.study.store import Cell, Store, Trained
from avuc.tensorfile import read_tensors
from avuc.training.fit import fit_many
from avuc.training.run import Fitted, Job

__all__ = ["Learned", "Work", "learned_of", "make_net"]


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


class Work:
    """A recipe at work on one device. Data and models are loaded when they are first needed, and kept."""

    def __init__(self, recipe: Recipe, directory: Path, device: torch.device | str, *, progress: bool = True) -> None:
        self.recipe, self.directory, self.progress = recipe, Path(directory), progress
        self.device = torch.device(device)
        self.data = StudyData(recipe, self.device)
        self._fitted: dict[ModelKey, Fitted] = {}

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
        found = fit_many([self._job(key) for key in missing], device=self.device, progress=self.progress)
        self._fitted |= dict(zip(missing, found, strict=True))
        return [self._told(key) for key in keys]

    def _told(self, key: ModelKey) -> Trained:
        fitted = self._fitted[key]
        return Trained(key, fitted.history, fitted.epochs, fitted.seconds, fitted.threshold)

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
            self.directory / "models" / key.folder,
        )

    def posterior(self, key: ModelKey) -> Posterior:
        if key not in self._fitted:
            self.train([key])
        return self._fitted[key].posterior

    # judging

    def judge(
        self, key: ModelKey, test_set: TestSet, rows: Sequence[Row], learned: Mapping[str, Learned]
    ) -> list[Cell]:
        """Rows of one model on one set. On validation data calibrators and thresholds are learned; nowhere else."""
        began = time.perf_counter()
        posterior, data = self.posterior(key), self.data.images(test_set)
        calibrators = self._calibrators(key, posterior, test_set, rows, learned)
        variants = [Variant(row.name, self.recipe.samples(row), calibrators.get(row.name)) for row in rows]
        cells = []
        for row, found in zip(rows, predict_all(posterior, data, variants, seed=key.seed), strict=True):
            known = learned.get(row.name, Learned())
            told = judge(
                found,
                threshold=None if test_set == VALIDATION else _needed(known.threshold, row, "threshold"),
                bins=self.recipe.study.bins,
                clean_entropy=None if test_set in (VALIDATION, CLEAN) else known.clean_entropy,
            )
            calibrator = calibrators.get(row.name) if test_set == VALIDATION else None
            if calibrator is not None:
                told.metrics["temperature"] = float(calibrator.temperature_)
            self._keep(key, test_set, row, found)
            seconds = (time.perf_counter() - began) / len(rows)
            text = None if calibrator is None else calibrator.to_json()
            details = shown_of(found, data, self.recipe.study.bins) if self._is_shown(test_set) else None
            picture = None if test_set == VALIDATION else thumbnail(data.images[0])
            clean = test_set == CLEAN
            cells.append(Cell(row.name, key.seed, test_set, told, seconds, text, clean, details, picture))
        return cells

    def _is_shown(self, test_set: TestSet) -> bool:
        return test_set == CLEAN or 0 < test_set.severity == max(self.recipe.study.severities)

    def _calibrators(
        self,
        key: ModelKey,
        posterior: Posterior,
        test_set: TestSet,
        rows: Sequence[Row],
        learned: Mapping[str, Learned],
    ) -> dict[str, Calibrator]:
        scaled = [row for row in rows if row.calibrator is not None]
        if test_set != VALIDATION:
            texts = {row.name: _needed(learned[row.name].calibrator, row, "calibrator") for row in scaled}
            return {name: Calibrator.from_json(text) for name, text in texts.items()}
        made: dict[str, Calibrator] = {}
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        for row in scaled:
            assert row.calibrator is not None
            samples = self.recipe.samples(row)
            if samples not in kept:
                kept[samples] = kept_logits(posterior, self.data.validation, samples, seed=key.seed)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", CalibrationWarning)
                made[row.name] = row.calibrator.make().fit(*kept[samples])
            for warning in said:
                print(f"{row.name} (seed {key.seed}): {warning.message}", file=sys.stderr)
        return made

    def _keep(self, key: ModelKey, test_set: TestSet, row: Row, found: Predictions) -> None:
        if self.recipe.study.predictions:
            folder = self.directory / "predictions" / f"{slug(row.name)}-{key.seed}"
            folder.mkdir(parents=True, exist_ok=True)
            found.save(folder / f"{slug(str(test_set))}.safetensors")


def _needed(value: Any, row: Row, what: str) -> Any:
    if value is None:
        raise InputError(f"{row.name}: its {what} is learned on validation data, which has not been judged yet")
    return value


def make_net(
    part: NetPart,
    num_classes: int,
    image_shape: tuple[int, int, int],
    weights: Mapping[str, Tensor] | None,
    generator: torch.Generator,
) -> nn.Module:
    """The recipe's network, from random weights, those of its file, or those given."""
    make: Callable[..., nn.Module] = NETS[part.name]
    try:
        net = make(num_classes, image_shape, generator=generator, **part.options)
    except TypeError as error:
        raise InputError(f"net: {part.name} does not take these options ({error})") from error
    given = _read_weights(Path(part.weights)) if weights is None and part.weights else weights
    if given is not None:
        try:
            net.load_state_dict(dict(given))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{part.weights or 'start'}: these weights do not fit {part.name}: {reason}") from error
    return net


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        return {name: tensor.clone() for name, tensor in read_tensors(path)[0].items()}
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{path}: net.weights cannot be read ({error.strerror})") from error
    except Exception as error:  # torch raises whatever its reader met
        raise InputError(f"{path}: net.weights is no file of weights ({' '.join(str(error).split())[:120]})") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"{path}: net.weights holds no state_dict (names to tensors)")
    return found
