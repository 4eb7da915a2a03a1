"""Verdicts on studies in which nothing was learned, and on AvUC terms that were never used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from avuc.report.study.coverage import METHODS, coverage_alarms
from avuc.report.study.result_arrays import CLEAN, Coverage, MethodFacts, Results
from avuc.report.study.verdict import alarms, verdict

SETS = [CLEAN, ("fog", 5), ("snow", 5), ("ood:svhn", 0)]


def coverage_of(counts, values=None):
    """Coverage of two methods and three seeds; `counts` are the clean rows of each class."""
    clean = np.zeros((2, len(counts), 3))
    clean[:, :, 0] = counts
    shape = (2, 3, len(SETS))
    quantities = {"coverage": 0.9, "size": 1.0, "low": 0.87, "high": 0.93} | (values or {})
    filled = {
        (kind, name): np.broadcast_to(value, shape).copy() for kind in METHODS for name, value in quantities.items()
    }
    return Coverage(0.9, filled, dict.fromkeys(METHODS, clean), {}, tuple(map(str, range(len(counts)))))


def study(accuracy, *, auroc=(0.8, 0.81), counts=(100,) * 10, methods=None, values=None, nll=(0.2, 0.3)):
    seeds = np.arange(3)[None, :, None] * 1e-3
    spread_out = np.linspace(0, 0.01, len(SETS))[None, None] + seeds
    figures = {
        name: np.broadcast_to(np.array(pair)[:, None, None] + spread_out, (2, 3, 4))
        for name, pair in (("nll", nll), ("ece", (0.2, 0.3)), ("uce", (0.2, 0.3)))
    }
    figures["accuracy"] = np.broadcast_to(np.array(accuracy)[:, None, None], (2, 3, 4))
    figures["auroc"] = np.broadcast_to(np.array(auroc)[:, None, None] + seeds, (2, 3, 4))
    methods = methods or [MethodFacts(name, index, seeds=(0, 1, 2)) for index, name in enumerate(("A", "B"))]
    return Results(
        "t", "s", ("",), methods, SETS, figures, {}, {}, {}, rows=sum(counts), coverage=coverage_of(counts, values)
    )


def test_no_method_is_recommended_that_only_guesses():
    results = study([0.101, 0.104], nll=(2.3, 2.4))  # that of ten frequencies is 2.303
    told = verdict(results)
    assert told[0].startswith("No method can be recommended: A has the best NLL, but only guesses.")
    assert "10.1 %, is not better than that of the most frequent class, 10.0 %" in told[0]
    assert not any(line.startswith("Use ") for line in told)
    assert alarms(results)[0].startswith("Every method has an accuracy on clean images")


def test_a_method_that_guesses_is_named():
    results = study([0.6, 0.1], nll=(1.2, 2.31))
    assert verdict(results)[0].startswith("Use A:")
    assert alarms(results)[0].startswith("B has an accuracy on clean images")
    assert not any("most frequent class" in line for line in alarms(study([0.6, 0.5])))


def test_guessing_is_measured_by_the_most_frequent_class():
    assert verdict(study([0.9, 0.9], counts=(900, 100), nll=(0.33, 0.4)))[0].startswith("No method can be recommended")
    assert verdict(study([0.95, 0.9], counts=(900, 100)))[0].startswith("Use A:")
    without = replace(study([0.1, 0.1], nll=(2.3, 2.4)), coverage=None)  # as in files of older versions
    assert verdict(without)[0].startswith("Use A:")


def test_unbalanced_classes_are_no_guessing():
    """The best has the accuracy of the most frequent class, 95 %, and an NLL below that of the frequencies, 0.199."""
    results = study([0.95, 0.95], counts=(950, 50), nll=(0.15, 0.21))
    assert verdict(results)[0].startswith("Use A:")
    (line,) = [line for line in alarms(results) if "most frequent class" in line]
    assert line.startswith("B has an accuracy on clean images that the most frequent class alone would have (95.0 %)")


@pytest.mark.parametrize(("auroc", "says"), [((0.47, 0.4), False), ((0.5, 0.4995), False), ((0.7, 0.6), True)])
def test_detection_at_chance_is_not_the_best(auroc, says):
    told = " ".join(verdict(study([0.6, 0.5], auroc=auroc)))
    assert ("A detects svhn best" in told) is says
    assert ("No method clearly detects svhn" in told) is not says


def test_a_method_alone_detects_but_not_best():
    both = study([0.6, 0.5], nll=(1.0, 1.1))
    alone = replace(both, methods=both.methods[:1], values={key: found[:1] for key, found in both.values.items()})
    assert "A detects svhn with an AUROC of 0.801" in " ".join(verdict(alone))


def test_a_term_that_was_never_used_is_named():
    def facts(name, index, *terms):
        epochs = tuple({"epoch": number, "avuc": term} for number, term in enumerate(terms))
        return MethodFacts(name, index, seeds=(0, 1, 2), beta=3.0 if index else None, history=(epochs,) * 3)

    (line,) = [
        line
        for line in alarms(study([0.6, 0.5], methods=[facts("A", 0, 0.0), facts("B", 1, 0.0, 0.0)]))
        if "AvUC" in line
    ]
    assert line.startswith("The AvUC term of B was 0 in all 2 epochs")
    used = alarms(study([0.6, 0.5], methods=[facts("A", 0, 0.0), facts("B", 1, 0.0, 0.4)]))
    assert not any("AvUC term" in line for line in used)
    assert not any("AvUC term" in line for line in alarms(study([0.6, 0.5])))


def test_a_coverage_above_its_interval_breaks_no_guarantee():
    shifted = np.array([0.9, 0.99, 0.99, 0.99])
    assert coverage_alarms(study([0.6, 0.5], values={"coverage": shifted})) == []
    (line,) = coverage_alarms(study([0.6, 0.5], values={"coverage": np.array([0.9, 0.99, 0.8, 0.9])}))
    assert "under shift the coverage is below its 95 % interval in 6 of 12 cases" in line
    assert "lowest 0.800 (A, aps, snow at intensity 5)" in line
    (line,) = coverage_alarms(study([0.6, 0.5], values={"coverage": np.array([0.99, 0.9, 0.9, 0.9])}))
    assert "on clean test data the coverage leaves its 95 % interval in 6 of 6 cases" in line
