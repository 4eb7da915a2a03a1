"""Coverage of pixels: thresholds and intervals from the independent images, against plain loops and simulations."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.conformal import ConformalClassifier
from avuc.conformal.distributions import clopper_pearson
from avuc.conformal.images import (
    Images,
    coverage_ends,
    hierarchical_quantile,
    images_of,
    share_interval,
    t_quantile,
)
from avuc.conformal.inputs import class_rows
from avuc.core.errors import InputError
from avuc.predictions import Predictions


def maps(rng, images, pixels=40, shift=0.0):
    """Images (N, 2, pixels) whose pixels share most of how hard they are, and labels."""
    hard = rng.normal(size=(images, 1)) + 0.1 * rng.normal(size=(images, pixels)) + shift
    labels = rng.integers(0, 2, (images, pixels))
    right = 1 / (1 + np.exp(hard - 1))
    one = np.where(labels == 1, right, 1 - right)
    return np.stack([1 - one, one], 1), labels


def test_spread_equals_plain_loops():
    rng = np.random.default_rng(0)
    numbers, hit = np.sort(rng.choice([3, 5, 6, 11], 50)), rng.random(50) < 0.7
    rows = [[bool(h) for h, n in zip(hit, numbers, strict=True) if n == i] for i in sorted(set(numbers.tolist()))]
    shares = [sum(each) / len(each) for each in rows]
    mean = sum(shares) / len(shares)
    expected = math.sqrt(sum((share - mean) ** 2 for share in shares) / (len(shares) - 1))
    assert images_of(hit, numbers) == (len(rows), pytest.approx(expected), pytest.approx(mean))
    assert images_of(hit[:1], numbers[:1]) == Images(1, 0.0, float(hit[0]))


def plain_quantile(scores, numbers, coverage):
    """The definition, with plain loops and fractions: weights 1/((n + 1) · rows of the image), the rest at infinity."""
    images = sorted(set(numbers))
    for candidate in sorted(scores):
        weight = Fraction(0)
        for image in images:
            own = [s for s, n in zip(scores, numbers, strict=True) if n == image]
            weight += Fraction(sum(s <= candidate for s in own), len(own) * (len(images) + 1))
        if weight >= Fraction(coverage):
            return candidate
    return math.inf


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=30),
    st.sampled_from(["0.1", "0.5", "0.6", "0.75", "0.8", "0.9"]),
)
def test_threshold_equals_plain_loops(rows, coverage):
    numbers, scores = [n for n, _ in rows], [s / 9 for _, s in rows]
    found = hierarchical_quantile(np.array(scores), np.array(numbers), Fraction(coverage))
    assert found == plain_quantile(scores, numbers, coverage)
    # one row per image: the threshold of rows, ⌈(n + 1) · coverage⌉
    place = math.ceil((len(scores) + 1) * Fraction(coverage)) - 1
    alone = hierarchical_quantile(np.array(scores), np.arange(len(scores)), Fraction(coverage))
    assert alone == (sorted(scores)[place] if place < len(scores) else math.inf)


@pytest.mark.parametrize(("method", "conditional"), [("threshold", False), ("aps", False), ("raps", True)])
@pytest.mark.parametrize("equal", [True, False])
def test_a_random_row_of_a_new_group_is_covered(method, conditional, equal):
    """Mean coverage over many fits: at least what was asked for; one threshold of all rows together has less."""
    rng, wanted, fits, images, pixels = np.random.default_rng(5), 0.9, 400, 12, 8
    probs, labels = maps(rng, fits * images, pixels)
    if not equal:  # hard images have fewer labels
        right = np.take_along_axis(probs, labels[:, None], 1)[:, 0, :1]
        hard = right < np.quantile(right, 0.3)
        labels = np.where(hard & (np.arange(pixels) > 1), -100, labels)
    conformal = ConformalClassifier(method, wanted, class_conditional=conditional)
    found, numbers = Predictions(probs, labels), np.nonzero(labels >= 0)[0]
    marks = found.labels.numpy()
    scores = conformal._score().of_labels(found.probs, marks, conformal._uniform(class_rows(found), (0, 0), marks))
    only = marks == 1 if conditional else np.ones(len(marks), bool)
    covered = {True: [], False: []}
    for fit in range(fits):
        mine = only & (numbers // images == fit)
        for grouped in (True, False):
            threshold = conformal._quantile(scores[mine], numbers[mine] if grouped else None)
            new = only & (numbers // images == (fit + 1) % fits)
            covered[grouped].append(images_of(scores[new] <= threshold, numbers[new]).share)
    means = {grouped: (np.mean(each), np.std(each) / math.sqrt(fits)) for grouped, each in covered.items()}
    assert means[True][0] > wanted - 2.5 * means[True][1]
    assert means[True][0] < wanted + 2 / (images + 1) + 2.5 * means[True][1]
    if method == "threshold" or not equal:  # U makes APS and RAPS scores of one image less alike
        assert means[False][0] < wanted - 2.5 * means[False][1]


def test_fit_uses_images_and_groups_alike():
    rng = np.random.default_rng(6)
    probs, labels = maps(rng, 30, pixels=7)
    labels[::3, 2:] = -100
    keep, rows = labels >= 0, probs.transpose(0, 2, 1)
    names = np.array([f"image {n}" for n in np.nonzero(keep)[0]])
    for conditional in (False, True):
        dense = ConformalClassifier("raps", class_conditional=conditional).fit(probs, labels)
        grouped = ConformalClassifier("raps", class_conditional=conditional).fit(rows[keep], labels[keep], groups=names)
        assert (dense.thresholds_.tolist(), dense.groups_.tolist()) == (
            grouped.thresholds_.tolist(),
            grouped.groups_.tolist(),
        )
        assert dense.images_ == pytest.approx(grouped.images_)
        assert dense.groups_.tolist() == [
            len(set(names[labels[keep] == k] if conditional else names)) for k in range(len(dense.thresholds_))
        ]
    few = ConformalClassifier().fit(probs[:8], labels[:8])
    assert (few.thresholds_.tolist(), few.least_groups) == ([math.inf], 9)
    assert few.predict_sets(probs).all()
    assert few.check(probs, labels).low == few.check(probs, labels).coverage == 1.0
    assert np.isfinite(ConformalClassifier().fit(probs[:9], labels[:9]).thresholds_).all()
    # groups that are rows change nothing
    alone = ConformalClassifier("aps").fit(rows[keep], labels[keep], groups=np.arange(keep.sum()))
    assert alone.to_json() == ConformalClassifier("aps").fit(rows[keep], labels[keep]).to_json()


@pytest.mark.parametrize(("level", "degrees", "expected"), [(0.95, 1, 12.7062), (0.99, 30, 2.75), (0.9, 1000, 1.6464)])
def test_quantiles_of_student(level, degrees, expected):
    assert t_quantile(level, degrees) == pytest.approx(expected, rel=1e-4)


def test_false_alarms_are_as_many_as_the_level_says():
    rng, alarms, narrow = np.random.default_rng(1), [], []
    for turn in range(120):
        fitted = ConformalClassifier("threshold", 0.8).fit(*maps(rng, 40))
        new = maps(rng, 60)
        alarms.append(fitted.check(*new).drift)
        if turn < 20:
            fitted.images_ = fitted.groups_ = None  # as if the pixels were independent rows
            rows = new[0].transpose(0, 2, 1).reshape(-1, 2), new[1].reshape(-1)
            narrow.append(fitted.check(*rows).drift)
    assert 0.005 <= np.mean(alarms) <= 0.1
    assert np.mean(narrow) > 0.4  # what this test can see
    fitted = ConformalClassifier("threshold", 0.8).fit(*maps(rng, 40))
    assert fitted.check(*maps(rng, 60, shift=1.0)).drift


def test_false_alarms_if_each_class_has_few_groups():
    """A threshold for each class comes from its own 5 groups, so new groups are covered less than those of the fit."""
    rng, classes, alarms, missed = np.random.default_rng(3), 20, [], []

    def groups_of_one_class(many):
        labels = np.repeat(np.arange(many) % classes, 3)
        right = np.repeat(rng.random(many), 3) + 1e-6 * rng.random(3 * many)  # rows of a group are alike
        probs = np.repeat(((1 - right) / (classes - 1))[:, None], classes, 1)
        probs[np.arange(len(labels)), labels] = right
        return probs / probs.sum(1, keepdims=True), labels, np.repeat(np.arange(many), 3)

    for _ in range(60):
        probs, labels, groups = groups_of_one_class(5 * classes)
        fitted = ConformalClassifier("threshold", 0.6, class_conditional=True).fit(probs, labels, groups=groups)
        probs, labels, groups = groups_of_one_class(20 * classes)
        check = fitted.check(probs, labels, groups=groups)
        low, high = fitted.coverage_interval()
        alarms.append(check.drift)
        missed.append(not low <= check.coverage <= high)
    assert np.mean(alarms) <= 0.1
    assert np.mean(missed) <= 0.15


@pytest.mark.parametrize("conditional", [False, True])
def test_figures_and_files(conditional, tmp_path):
    rng = np.random.default_rng(2)
    fitted = ConformalClassifier("aps", 0.8, class_conditional=conditional).fit(*maps(rng, 30))
    probs, labels = maps(rng, 20)
    labels[:, :5] = -100
    found = fitted.check(probs, labels)
    assert (found.rows, found.images) == (20 * 35, 20)
    assert found == fitted.check(Predictions(probs, labels))
    assert "of 20 images" in found.sentence
    sets = fitted.predict_sets(Predictions(probs, labels)).numpy()
    marks, numbers = labels[labels >= 0], np.nonzero(labels >= 0)[0]
    hit = sets[np.arange(len(marks)), marks]
    assert found.coverage == pytest.approx(hit.mean())  # images have equally many rows
    for one in found.classes:
        mine = marks == one.label
        assert (one.low, one.high) == share_interval(hit[mine], numbers[mine], 0.95)
        rows = clopper_pearson(int(hit[mine].sum()), int(mine.sum()))
        assert one.high - one.low > rows[1] - rows[0]
    low, high = fitted.coverage_interval()
    assert found.low < low < 0.81 < high < found.high  # of infinitely many new images
    fitted.save(tmp_path / "sets.json")
    again = ConformalClassifier.load(tmp_path / "sets.json")
    assert again.images_ == fitted.images_
    assert again.check(probs, labels) == found
    content = json.loads(fitted.to_json())
    # a file of before that had one threshold for all pixels together
    content["learned"] |= {"images": [30, 0.2], "rows": [30 * 40] * len(fitted.rows_)}
    del content["learned"]["groups"]
    before = ConformalClassifier.from_json(json.dumps(content))
    assert (before.images_, before.check(probs, labels).coverage) == (Images(30, 0.2), found.coverage)
    del content["learned"]["images"]  # a file of before: the images of the new data are all that is known
    old = ConformalClassifier.from_json(json.dumps(content)).check(probs, labels)
    assert (old.images, old.coverage) == (20, found.coverage)
    content["learned"]["images"] = [30]
    with pytest.raises(InputError, match="images must be their number, their spread"):
        ConformalClassifier.from_json(json.dumps(content))


def test_one_image_tells_nothing_and_rows_stay_as_they_were():
    rng = np.random.default_rng(3)
    one = ConformalClassifier(coverage=0.8).fit(*maps(rng, 1))
    assert (one.coverage_interval(), ConformalClassifier.from_json(one.to_json()).images_) == ((1.0, 1.0), (1, 0.0, 1))
    assert not one.check(*maps(rng, 50, shift=5.0)).drift
    assert coverage_ends(0.8, 0.95, Images(1, 0.0), None, rows=9, new_rows=5) == (0.0, 1.0)
    probs, labels = maps(rng, 400, pixels=1)  # an image of one pixel is a row
    rows = ConformalClassifier(coverage=0.8).fit(probs, labels)
    assert rows.images_ is None
    assert rows.check(probs[:50], labels[:50]).images is None
    assert "images" not in json.loads(rows.to_json())["learned"]
    # rows of the fit are independent, and the new ones are pixels of images
    low, high = coverage_ends(0.8, 0.95, None, Images(100, 0.2), rows=400, new_rows=4000)
    expected = t_quantile(0.95, 99) * math.sqrt(0.2**2 / 100 + 0.16 / 402)
    assert (low, high) == pytest.approx((0.8 - expected, 0.8 + expected))
    assert share_interval(np.ones(0, bool), np.ones(0, int), 0.95) == (0.0, 1.0)
    assert share_interval(np.ones(80, bool), np.arange(80) // 8, 0.95) == clopper_pearson(10, 10)


def test_few_images_keep_the_level():
    """The share of each class, and the coverage where few images lie outside the sets."""
    rng, outside = np.random.default_rng(4), 0
    for _ in range(200):
        numbers = np.repeat(np.arange(4), rng.integers(10, 40, 4))
        low, high = share_interval(rng.random(len(numbers)) < rng.beta(4, 1, 4)[numbers], numbers, 0.95)
        outside += not low <= 0.8 <= high
    assert outside <= 20
    for images, new in ((5, 60), (12, 12)):
        alarms = [
            ConformalClassifier(coverage=0.95).fit(*maps(rng, images)).check(*maps(rng, new)).drift for _ in range(100)
        ]
        assert np.mean(alarms) <= 0.1
    # the rows of the fit are independent; two new images are all covered, or one is not
    rows = ConformalClassifier(coverage=0.95).fit(*maps(rng, 2000, pixels=1))
    assert not rows.check([[[0.999] * 9, [0.001] * 9]] * 2, np.zeros((2, 9), int)).drift
    assert not rows.check([[[0.999] * 9, [0.001] * 9]] * 2, [[0] * 9, [1] * 9]).drift


def test_groups_that_can_be_of_rows_or_of_images_are_refused():
    """Three images, and three pixels with a label: values of the images and of the pixels are different groups."""
    labels = torch.tensor([[0, 1], [-100, -100], [-100, 2]])
    found = Predictions.from_logits(torch.zeros(3, 4, 2), labels)
    with pytest.raises(InputError, match=r"3 values can be of 3 labelled rows or of 3 images.*shape \(3, 2\)"):
        class_rows(found, groups=["a", "b", "b"])
    every = class_rows(found, groups=np.array([["a", "b"], ["c", "c"], ["c", "b"]]))
    np.testing.assert_array_equal(every.images, [0, 1, 1])
    same = Predictions.from_logits(torch.zeros(3, 4, 2), torch.tensor([[0, -100], [-100, 1], [2, -100]]))
    np.testing.assert_array_equal(class_rows(same, groups=["b", "a", "b"]).images, [1, 0, 1])
