"""The work of one process of a study, under any engine: train models, fit calibrators, evaluate."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from avuc.calibration import CalibrationWarning, Calibrator
from avuc.core.errors import InputError
from avuc.data import Stream
from avuc.data.tensors import MemoryData
from avuc.methods.batch_norm import PerDrawBatchNorm, evenly_spaced
from avuc.posterior import Posterior, seeded_generator
from avuc.prediction.backends.features import FeatureStore
from avuc.prediction.logits import kept_logits
from avuc.prediction.predictor import Predictor
from avuc.predictions import Predictions
from avuc.study.data.sets import StudyData
from avuc.study.evaluation.coverage import conformal_curve
from avuc.study.evaluation.dense import Maps, spread
from avuc.study.evaluation.examples import examples_of, sample_of
from avuc.study.evaluation.judge import Variant, judge, predict_all, predict_maps
from avuc.study.evaluation.predicted import Predicted as Predicted
from avuc.study.evaluation.validation_fit import ValidationFit
from avuc.study.grid import CLEAN, VALIDATION, ModelKey, Plan, TestSet
from avuc.study.net import make_net
from avuc.study.recipe.config import MethodConfig, Recipe
from avuc.study.recipe.names import slugs
from avuc.study.store.checkpoints import drop_optimizer_state
from avuc.study.store.records import Evaluation, Trained
from avuc.training.fit import fit_many
from avuc.training.run import Fitted, Job

# share of a GPU's memory for the samples of all models in all processes, which are reused for every set of images
SAMPLES_SHARE = 0.25


class StudyWorker:
    """Does the work of a recipe on one device. Data and models are loaded when they are first needed, and kept.

    Args:
        recipe: the study.
        directory: its folder.
        device: where networks run.
        progress: show progress on stderr.
        until: a value of `time.monotonic()`, after which training stops with `OutOfTime`.
        processes: how many processes share the device, and its memory.
    """

    def __init__(
        self,
        recipe: Recipe,
        directory: Path,
        device: torch.device | str,
        *,
        progress: bool = True,
        until: float | None = None,
        processes: int = 1,
    ) -> None:
        self.recipe: Recipe = recipe
        self.directory: Path = Path(directory)
        self.progress: bool = progress
        self.until: float | None = until
        self.processes: int = processes
        self.device: torch.device = torch.device(device)
        self.data: StudyData = StudyData(recipe, self.device)
        self._fitted: dict[ModelKey, Fitted] = {}
        self._predictors: dict[tuple[ModelKey, int], Predictor] = {}  # by model and bn_images
        self._features = FeatureStore()  # models with the same layers up to the last one share them
        self._fits: dict[tuple[str, int], Future[Calibrator]] = {}  # calibrators that are being fitted
        self._cpu_images: tuple[TestSet, MemoryData] | None = None

    # training

    def train(self, keys: Sequence[ModelKey]) -> list[Trained]:
        """Train models together. A training that was interrupted is resumed; a finished one is read back."""
        missing = [key for key in keys if key not in self._fitted]
        untrained = [key for key in missing if self.recipe.method(key.method).skip_training]
        self._fitted |= {key: self._untrained(key) for key in untrained}
        missing = [key for key in missing if key not in untrained]
        starts = [key for key in (self._init_from(key) for key in missing) if key is not None]
        if starts:
            self.train(list(dict.fromkeys(starts)))
        jobs = [self._job(key) for key in missing]
        fitted = fit_many(jobs, device=self.device, progress=self.progress, until=self.until)
        self._fitted |= dict(zip(missing, fitted, strict=True))
        for job in jobs:
            drop_optimizer_state(job)
        return [self._trained(key) for key in keys]

    def _trained(self, key: ModelKey) -> Trained:
        fitted = self._fitted[key]
        prints = self.data.training_prints()
        return Trained(key, fitted.history, fitted.epochs, fitted.seconds, fitted.threshold, prints)

    def _untrained(self, key: ModelKey) -> Fitted:
        """Return a model with the weights of `net.weights`, which is not trained."""
        job = self._job(key)
        assert not isinstance(job.net, nn.Module)
        model = job.method.build(job.net(seeded_generator(key.seed)).to(self.device)).to(self.device).eval()
        return Fitted([model], job.method.posterior([model]), [], None, 0, 0.0)

    def _init_from(self, key: ModelKey) -> ModelKey | None:
        name = self.recipe.method(key.method).init_from
        return ModelKey(name, key.seed) if name else None

    def _job(self, key: ModelKey) -> Job:
        config = self.recipe.method(key.method)
        assert config.method is not None
        data = self.data.train(config.train.batch_size, key.seed)
        start = self._init_from(key)
        weights = None if start is None else self._fitted[start].models[0].state_dict()
        shape, classes = self.data.image_shape, self.data.validation.num_classes
        return Job(
            config.method,
            partial(make_net, self.recipe.net, classes, shape, weights, any_inputs=self.data.any_inputs),
            data,
            config.objective,
            config.train,
            self.data.validation,
            key.seed,
            self.directory / "models" / self.recipe.folder(key.method, key.seed),
        )

    def holds(self, key: ModelKey) -> bool:
        """Return whether a model is available without training it from the beginning."""
        saved = self.directory / "models" / self.recipe.folder(key.method, key.seed)
        return key in self._fitted or self.recipe.method(key.method).skip_training or any(saved.glob("checkpoint-*"))

    def posterior(self, key: ModelKey) -> Posterior:
        if key not in self._fitted:
            self.train([key])
        return self._fitted[key].posterior

    def predictor(self, key: ModelKey, bn_images: int = 0) -> Predictor:
        """Return the model as a `Predictor`. On a GPU it keeps its samples, and runs in the study's precision."""
        if (key, bn_images) not in self._predictors:
            memory, dtype = 0, None
            if self.device.type == "cuda":
                counts = {
                    (method.reuse_model or method.name, method.bn_images): len(self.recipe.seeds(method))
                    for method in self.recipe.methods
                }
                room = int(torch.cuda.mem_get_info(self.device)[1] * SAMPLES_SHARE) // self.processes
                memory = room // sum(counts.values())
                dtype = torch.bfloat16 if self.recipe.study.precision == "bfloat16" else None
            posterior = self._with_own_statistics(key, bn_images) if bn_images else self.posterior(key)
            predictor = Predictor(posterior, seed=key.seed, dtype=dtype, memory=memory)
            predictor.share_features(self._features, plain=self.recipe.shares_trunk(key.method))
            self._predictors[key, bn_images] = predictor
        return self._predictors[key, bn_images]

    def _with_own_statistics(self, key: ModelKey, bn_images: int) -> Posterior:
        data = self.data.train(self.recipe.method(key.method).train.batch_size, key.seed)
        if isinstance(data, Stream) or not isinstance(data.inputs, Tensor):
            raise InputError(f"{key.method}: bn_images needs training images in memory, not a stream of files")
        return PerDrawBatchNorm(self.posterior(key), evenly_spaced(data.inputs, bn_images))

    # evaluating

    def evaluate(
        self, key: ModelKey, test_set: TestSet, methods: Sequence[MethodConfig], fits: Mapping[str, ValidationFit]
    ) -> list[Evaluation]:
        """Evaluate the methods of one model on one set. Calibrators and thresholds are learned on validation data only.

        Args:
            key: the model.
            test_set: the images.
            methods: methods that use the model.
            fits: calibrator, threshold and so on that each method learned on validation data, by its name.
        """
        return self.evaluations(self.predict(key, test_set, methods, fits))

    def predict(
        self, key: ModelKey, test_set: TestSet, methods: Sequence[MethodConfig], fits: Mapping[str, ValidationFit]
    ) -> Predicted:
        """The part of `evaluate` that needs the device; same arguments."""
        began = time.perf_counter()
        data = self.data.images(test_set)
        calibrators = self._calibrators(key, test_set, methods, fits)
        by_name: dict[str, tuple[Predictions, Maps | None]] = {}
        show = self._has_examples(key, test_set)
        known = [method.name for method in methods if method.name in fits and test_set != VALIDATION]
        levels = {name: fits[name].threshold for name in known}
        for bn_images in dict.fromkeys(method.bn_images for method in methods):
            alike = [method for method in methods if method.bn_images == bn_images]
            variants = [
                Variant(method.name, self.recipe.samples(method), calibrators.get(method.name)) for method in alike
            ]
            predictor, results = self.predictor(key, bn_images), list[tuple[Predictions, Maps | None]]()
            if data.labels.ndim > 1:
                most = self.recipe.study.max_rows
                results += predict_maps(predictor, data, variants, levels, seed=key.seed, most_rows=most, show=show)
            else:
                results += [(each, None) for each in predict_all(predictor, data, variants, seed=key.seed)]
            by_name |= dict(zip((method.name for method in alike), results, strict=True))
        prints = self.data.prints(test_set)
        return Predicted(
            key,
            test_set,
            methods,
            fits,
            [by_name[method.name][0] for method in methods],
            calibrators,
            sample_of(data),
            self._on_cpu(test_set, data) if show else None,
            time.perf_counter() - began,
            prints,
            [by_name[method.name][1] for method in methods],
        )

    def evaluations(self, predicted: Predicted) -> list[Evaluation]:
        """The rest of `evaluate`: metrics, curves, pictures. Any thread may call it."""
        began = time.perf_counter() - predicted.seconds
        key, test_set, bins = predicted.key, predicted.test_set, self.recipe.study.bins
        evaluations = []
        for method, predictions, maps in zip(predicted.methods, predicted.predictions, predicted.maps, strict=True):
            fit = predicted.fits.get(method.name, ValidationFit())
            result = judge(
                predictions,
                threshold=None if test_set == VALIDATION else fit.needed_threshold(method.name),
                bins=bins,
                clean_entropy=None if test_set in (VALIDATION, CLEAN) else fit.clean_entropy,
            )
            if maps is not None:
                result.metrics.update(maps.metrics(predictions))
            names = self.data.validation.class_names
            result.curves.update(conformal_curve(predictions, test_set, fit.conformal, names))
            calibrator = predicted.calibrators.get(method.name) if test_set == VALIDATION else None
            if calibrator is not None:
                result.metrics["temperature"] = float(calibrator.temperature_)
            self._save(key, test_set, method, predictions)
            evaluations.append(
                Evaluation(
                    method.name,
                    key.seed,
                    test_set,
                    result,
                    seconds=(time.perf_counter() - began) / len(predicted.methods),
                    calibrator=None if calibrator is None else calibrator.to_json(),
                    keep_entropy=test_set == CLEAN,
                    shown=None
                    if predicted.images is None
                    else examples_of(predictions, predicted.images, bins, None if maps is None else maps.mistakes),
                    picture=None if test_set == VALIDATION else predicted.sample,
                    prints=predicted.prints,
                )
            )
        return evaluations

    def _has_examples(self, key: ModelKey, test_set: TestSet) -> bool:
        """Whether single images are stored: for one seed only, because they take most of the space in the file."""
        strongest = test_set == CLEAN or 0 < test_set.severity == max(self.recipe.study.severities)
        return strongest and key.seed == min(self.recipe.seeds(self.recipe.method(key.method)))

    def _on_cpu(self, test_set: TestSet, data: MemoryData) -> MemoryData:
        """Return one copy for all models, because copying pictures one by one would wait for the device each time."""
        if self._cpu_images is None or self._cpu_images[0] != test_set:
            self._cpu_images = (test_set, data.to("cpu"))
        return self._cpu_images[1]

    # calibrators

    def start_fits(self, key: ModelKey, methods: Sequence[MethodConfig], pool: Executor) -> None:
        """Fit the calibrators of a model in `pool`; `predict` on validation data waits for them."""
        kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for method in methods:
            if method.calibrator is not None:
                logits = self._logits(key, method, kept)
                self._fits[method.name, key.seed] = pool.submit(method.calibrator.make().fit, *logits)

    def _calibrators(
        self, key: ModelKey, test_set: TestSet, methods: Sequence[MethodConfig], fits: Mapping[str, ValidationFit]
    ) -> dict[str, Calibrator]:
        calibrated = [method for method in methods if method.calibrator is not None]
        if test_set != VALIDATION:
            texts = {method.name: fits[method.name].needed_calibrator(method.name) for method in calibrated}
            return {name: Calibrator.from_json(text) for name, text in texts.items()}
        calibrators: dict[str, Calibrator] = {}
        kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for method in calibrated:
            assert method.calibrator is not None
            started = self._fits.pop((method.name, key.seed), None)
            if started is not None:
                calibrators[method.name] = started.result()
                continue
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", CalibrationWarning)
                calibrators[method.name] = method.calibrator.make().fit(*self._logits(key, method, kept))
            for warning in caught:
                print(f"{method.name} (seed {key.seed}): {warning.message}", file=sys.stderr)
        return calibrators

    def _logits(
        self, key: ModelKey, method: MethodConfig, kept: dict[tuple[int, int], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return validation logits and labels; `kept` caches them for methods with the same samples and bn_images."""
        samples, predictor = self.recipe.samples(method), self.predictor(key, method.bn_images)
        which = (samples, method.bn_images)
        if which not in kept:
            logits, labels = kept_logits(predictor, self.data.validation, samples, seed=key.seed)
            most = self.recipe.study.max_rows if self.data.validation.labels.ndim > 1 else 0
            rows = spread(len(labels), most)
            kept[which] = (logits, labels) if len(rows) == len(labels) else (logits[:, rows], labels[rows])
        return kept[which]

    def _save(self, key: ModelKey, test_set: TestSet, method: MethodConfig, predictions: Predictions) -> None:
        if self.recipe.study.predictions:
            folder = self.directory / "predictions" / self.recipe.folder(method.name, key.seed)
            folder.mkdir(parents=True, exist_ok=True)
            files = slugs(str(each_set) for each_set in Plan(self.recipe).sets)
            predictions.save(folder / f"{files[str(test_set)]}.safetensors")
