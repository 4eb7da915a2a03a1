"""Coverage of pixels: intervals from the images, which are independent, against plain loops and simulated images."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from avuc.conformal import ConformalClassifier
from avuc.conformal.distributions import clopper_pearson
from avuc.conformal.images import Images, coverage_ends, images_of, share_interval, t_quantile
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
    rows = {i: [bool(h) for h, n in zip(hit, numbers, strict=True) if n == i] for i in sorted(set(numbers.tolist()))}
    share, mean = hit.mean(), 50 / len(rows)
    rest = [(sum(each) - share * len(each)) / mean for each in rows.values()]
    expected = math.sqrt(sum(r * r for r in rest) / (len(rest) - 1))  # their mean is 0
    assert images_of(hit, numbers) == (len(rows), pytest.approx(expected))
    assert images_of(hit[:1], numbers[:1]) == Images(1, 0.0)


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
            fitted.images_ = None  # as if the pixels were independent rows
            rows = new[0].transpose(0, 2, 1).reshape(-1, 2), new[1].reshape(-1)
            narrow.append(fitted.check(*rows).drift)
    assert 0.005 <= np.mean(alarms) <= 0.1
    assert np.mean(narrow) > 0.4  # what this test can see
    fitted = ConformalClassifier("threshold", 0.8).fit(*maps(rng, 40))
    assert fitted.check(*maps(rng, 60, shift=1.0)).drift


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
    assert found.coverage == hit.mean()
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
    del content["learned"]["images"]  # a file of before: the images of the new data are all that is known
    old = ConformalClassifier.from_json(json.dumps(content)).check(probs, labels)
    assert (old.images, old.coverage) == (20, found.coverage)
    content["learned"]["images"] = [30]
    with pytest.raises(InputError, match="images must be their number and their spread"):
        ConformalClassifier.from_json(json.dumps(content))


def test_one_image_tells_nothing_and_rows_stay_as_they_were():
    rng = np.random.default_rng(3)
    one = ConformalClassifier(coverage=0.8).fit(*maps(rng, 1))
    assert (one.coverage_interval(), ConformalClassifier.from_json(one.to_json()).images_) == ((0.0, 1.0), (1, 0.0))
    assert not one.check(*maps(rng, 50, shift=5.0)).drift
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
