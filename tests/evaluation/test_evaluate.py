"""`metric_values`, which `avuc evaluate` and studies share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from avuc import metrics
from avuc.core.errors import InputError
from avuc.evaluation import EvaluationResult, evaluate, metric_values
from avuc.metrics.statistics import prediction_statistics
from avuc.predictions import Predictions


def predictions(*, labelled: bool = True, samples: int = 4) -> Predictions:
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(samples, 200, 5, generator=generator)
    labels = torch.randint(0, 5, (200,), generator=generator)
    return Predictions.from_samples(logits, labels if labelled else torch.full_like(labels, -1))


@pytest.mark.parametrize("threshold", ["auto", 1.2])
def test_metrics_of_labelled_rows(threshold):
    given = predictions()
    values = metric_values(given, threshold=threshold, bins=9)
    assert values.metrics == metrics.evaluate(given, threshold=threshold, bins=9)
    expected = metrics.auto_threshold(given.probs, given.labels) if threshold == "auto" else threshold
    assert values.threshold == expected
    assert values.mean_confidence == pytest.approx(float(given.probs.double().amax(1).mean()), rel=1e-12)
    rows = given.probs.double().numpy()
    entropy = -(rows * np.log(rows)).sum(1).mean()
    assert values.expected_entropy + values.mutual_information == pytest.approx(entropy, rel=1e-5)
    assert values == metric_values(
        given, prediction_statistics(given.probs, given.labels, bins=9), threshold=threshold, bins=9
    )


def test_rows_without_labels_have_the_figures_that_need_none():
    labelled, unlabelled = metric_values(predictions()), metric_values(predictions(labelled=False))
    assert set(unlabelled.metrics) == {"mean_entropy"}
    assert unlabelled.threshold is None
    assert unlabelled.metrics["mean_entropy"] == pytest.approx(labelled.metrics["mean_entropy"], rel=1e-6)
    assert unlabelled.mean_confidence == pytest.approx(labelled.mean_confidence, rel=1e-12)
    assert unlabelled.mutual_information == labelled.mutual_information


def test_evaluate_reports_these_values():
    given = predictions()
    result, values = evaluate(given, replicates=0), metric_values(given)
    assert isinstance(result, EvaluationResult)
    assert (result.metrics, result.threshold, result.confidence) == (
        values.metrics,
        values.threshold,
        values.mean_confidence,
    )
    assert result.mutual_information == values.mutual_information > 0


def test_a_file_in_place_of_arrays():
    with pytest.raises(InputError, match=r"test.csv: .* the command 'avuc evaluate test.csv' reads"):
        evaluate("test.csv")
