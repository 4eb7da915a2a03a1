"""judge: variants from one pass, with or without a Predictor; metrics and curves as their own functions have them."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from avuc import metrics
from avuc.bayes import to_bayesian
from avuc.calibration import TemperatureScaling, VectorScaling
from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import small_cnn
from avuc.prediction import predict
from avuc.prediction.logits import kept_logits
from avuc.prediction.predictor import Predictor
from avuc.predictions import Predictions
from avuc.study.evaluation.judge import Variant, judge, predict_all


def dataset(rows: int, seed: int) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (rows, 12, 12, 1), dtype=torch.uint8, generator=generator)
    return Dataset(images, torch.randint(4, (rows,), generator=generator), num_classes=4)


def posterior(layers: str = "all"):
    net = small_cnn(4, (12, 12, 1), width=4, generator=torch.Generator().manual_seed(0))
    return to_bayesian(net, layers=layers, initial_std=0.2)


def fitted(kind: type) -> object:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(80, 4, generator=generator)
    return kind().fit(logits, torch.where(torch.arange(80) < 60, logits.argmax(1), 0))


def found(rows: int = 200, classes: int = 4, seed: int = 0, labelled: bool = True) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(3, rows, classes, generator=generator)
    labels = torch.randint(classes, (rows,), generator=generator)
    logits[:, torch.arange(rows), labels] += 2
    return Predictions.from_samples(logits, labels if labelled else None)


@pytest.mark.parametrize("layers", ["all", "last"])
@pytest.mark.parametrize("kept", [True, False])
def test_each_variant_equals_its_own_pass(layers: str, kept: bool) -> None:
    model = posterior(layers)
    variants = [
        Variant("plain", 6),
        Variant("few", 2),
        Variant("scaled", 6, fitted(TemperatureScaling)),
        Variant("few, scaled", 3, fitted(VectorScaling)),
        Variant("the same", 6),
    ]
    source = Predictor(model, samples=6, seed=5) if kept else model
    for seed, rows in ((0, 30), (1, 11)):
        data = dataset(rows, seed)
        several = predict_all(source, data, variants, seed=5)
        assert several[0] is several[4]  # summed once
        for variant, one in zip(variants, several, strict=True):
            own = predict(
                model, data.images, data.labels, samples=variant.samples, calibrator=variant.calibrator, seed=5
            )
            torch.testing.assert_close(one.probs, own.probs, rtol=0, atol=1e-6)
            torch.testing.assert_close(one.expected_entropy, own.expected_entropy, rtol=0, atol=1e-6)
            assert one.samples == variant.samples
            assert torch.equal(one.labels, data.labels)


def test_more_draws_than_a_posterior_has() -> None:
    net = small_cnn(4, (12, 12, 1), width=4, generator=torch.Generator().manual_seed(0))
    (one,) = predict_all(DeterministicPosterior(net), dataset(9, 0), [Variant("net", 128)], seed=0)
    assert (one.samples, one.monte_carlo_error) == (1, 0.0)


def test_a_predictor_of_another_seed_is_refused() -> None:
    predictor = Predictor(posterior(), samples=2, seed=1)
    for call in (
        lambda: predict_all(predictor, dataset(3, 0), [Variant("a", 2)], seed=2),
        lambda: kept_logits(predictor, dataset(3, 0), 2, seed=2),
    ):
        with pytest.raises(InputError, match="has seed 1, expected seed 2"):
            call()


@pytest.mark.parametrize("layers", ["all", "last"])
def test_kept_logits_are_those_of_the_draws(layers: str) -> None:
    model, data = posterior(layers), dataset(20, 0)
    for source in (model, Predictor(model, samples=2, seed=7)):
        logits, labels = kept_logits(source, data, 5, seed=7)
        assert logits.shape == (5, 20, 4)
        expected = predict(model, data.images, data.labels, samples=5, seed=7)
        mean = Predictions.from_samples(logits, labels)
        torch.testing.assert_close(mean.probs, expected.probs, rtol=0, atol=1e-6)
        assert torch.equal(labels, data.labels)


def lists(curve: tuple[Tensor, ...]) -> dict[str, list[float | None]]:
    named = curve._asdict()
    return {name: [float(f"{v:.6g}") if math.isfinite(v) else None for v in values] for name, values in named.items()}


@pytest.mark.parametrize("threshold", [None, 0.4])
def test_metrics_and_curves_are_those_of_their_own_functions(threshold: float | None) -> None:
    one, clean = found(), found(150, seed=1).entropy.numpy()
    told = judge(one, threshold=threshold, bins=7, clean_entropy=clean)
    used = metrics.auto_threshold(one.probs, one.labels) if threshold is None else threshold
    expected = metrics.evaluate(one, threshold=used, bins=7) | metrics.detection(clean, one.entropy.numpy())
    expected |= {} if threshold is not None else {"threshold": used}
    expected["mean_confidence"] = float(one.confidence.double().mean())
    expected["mutual_information"] = float(one.mutual_information.double().mean())
    assert told.metrics == expected
    assert told.curves["reliability"] == lists(metrics.reliability_curve(one.probs, one.labels, bins=7))
    assert told.curves["uncertainty"] == lists(metrics.uncertainty_reliability_curve(one.probs, one.labels, bins=7))
    assert told.curves["avu"] == lists(metrics.avu_curves(one.probs, one.labels))
    assert sum(told.curves["confidence"]["right"]) == int(one.correct.sum())
    assert sum(told.curves["entropy"]["wrong"]) == 200 - int(one.correct.sum())
    assert (told.rows, told.samples) == (200, 3)
    assert np.array_equal(told.entropy, one.entropy.numpy())


def test_images_from_outside() -> None:
    one = found(labelled=False)
    told = judge(one, threshold=0.4, bins=7, clean_entropy=found(seed=1).entropy.numpy())
    assert set(told.curves) == {"entropy", "confidence"}
    assert sum(told.curves["entropy"]["outside"]) == 200
    assert told.metrics["mean_entropy"] == pytest.approx(float(one.entropy.double().mean()))
    assert "accuracy" not in told.metrics
    assert 0 <= told.metrics["auroc"] <= 1


def test_threads_find_the_same() -> None:
    sets = [found(3000, seed=seed) for seed in range(12)]
    clean = found(seed=99).entropy.numpy()

    def told(one: Predictions) -> object:
        result = judge(one, threshold=0.5, bins=15, clean_entropy=clean)
        return result.metrics, result.curves

    expected = [told(one) for one in sets]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(told, sets)) == expected
