"""Answers to pixels and other rows of groups: the guarantee on simulated images, plain loops, extremes, files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from avuc import InputError, Predictions
from avuc.conformal import SelectiveClassifier
from avuc.conformal.betting import (
    ABOVE,
    BELOW,
    Answers,
    answers_of,
    choose_threshold,
    error_interval,
    evidence_above,
    evidence_below,
    least_images,
)


def maps(rng, images, pixels=30, spread=1.5):
    """Images (N, 2, pixels) whose pixels share most of how often they are wrong, and labels."""
    ease = rng.normal(size=(images, pixels))
    confidence = 0.5 + 0.5 / (1 + np.exp(-2 - ease))
    wrong = rng.random((images, pixels)) < 1 / (1 + np.exp(3.5 + 1.5 * ease - spread * rng.normal(size=(images, 1))))
    return np.stack([confidence, 1 - confidence], 1), wrong.astype(int)


def as_rows(probs, labels):
    return probs.transpose(0, 2, 1).reshape(-1, 2), labels.reshape(-1)


def test_the_limit_holds_in_95_percent_of_fits():
    rng, selective = np.random.default_rng(0), SelectiveClassifier(0.1)
    many = maps(rng, 20_000)
    wrong, confidence = many[1].reshape(-1) == 1, many[0][:, 0].reshape(-1)
    broken, coverage = 0, []
    for _ in range(120):
        new = maps(rng, 160)
        answered = confidence > selective.fit(*new).threshold_
        broken += bool(answered.any() and wrong[answered].mean() > 0.1)
        coverage.append(answered.mean())
    assert broken <= 11  # the 97 % point of Binomial(120, 0.05)
    assert np.mean(coverage) > 0.75  # not vacuous


def test_the_level_is_kept_where_it_is_hardest_and_pixels_as_rows_break_it():
    """Whole images are wrong, slightly more often than the limit: any answer breaks the promise."""
    rng, failed, outside, broken = np.random.default_rng(1), 0, 0, 0
    for turn in range(400):
        labels = np.repeat(rng.random((90, 1)) < 0.101, 20, 1).astype(int)
        confidence = rng.uniform(0.6, 1, (90, 20))
        images = np.stack([confidence, 1 - confidence], 1), labels
        failed += SelectiveClassifier(0.1, 0.9).fit(*images).answered_ > 0
        if turn < 150:
            broken += SelectiveClassifier(0.1, 0.9).fit(*as_rows(*images)).answered_ > 0
            low, high = error_interval(Answers(np.ones(90), labels[:, 0].astype(float)), 0.9)
            outside += not low <= 0.101 <= high
    assert 0 < failed <= 57  # the 99.9 % point of Binomial(400, 0.1)
    assert outside <= 27  # of Binomial(150, 0.1)
    assert broken > 50  # instead of 15


def slow_gain(found, risk, bets, side):
    """Winnings of each bet by plain loops."""
    most = 1 - risk if side > 0 else risk
    return [
        math.prod(1 + bet / most * side * (risk * a - e) for a, e in zip(*found, strict=True)) for bet in bets.tolist()
    ]


def test_evidence_and_intervals_equal_plain_loops():
    rng = np.random.default_rng(2)
    answered = rng.random(30)
    found = Answers(answered, answered * rng.random(30) * 0.4)
    for risk in (0.05, 0.2, 0.6):
        assert np.exp(evidence_below(found, risk)) == pytest.approx(slow_gain(found, risk, BELOW, 1), rel=1e-9)
        expected = np.mean(slow_gain(found, risk, ABOVE, -1))
        assert math.exp(evidence_above(found, risk)) == pytest.approx(expected, rel=1e-9)
    weights = BELOW / BELOW.sum()
    kept = [
        risk
        for risk in np.arange(0.001, 1, 0.001)
        if np.mean(slow_gain(found, risk, ABOVE, -1)) < 40 and np.dot(weights, slow_gain(found, risk, BELOW, 1)) < 40
    ]
    low, high = error_interval(found, 0.95)
    assert (low, high) == pytest.approx((kept[0], kept[-1]), abs=0.002)
    assert low < found.error < high


@pytest.mark.parametrize(("images", "risk"), [(60, 0.3), (200, 0.1), (200, 0.03), (3, 0.9)])
def test_the_threshold_equals_that_of_plain_loops(images, risk):
    rng = np.random.default_rng(3)
    rows = [rng.integers(1, 9) for _ in range(images)]
    numbers = np.repeat(np.arange(images), rows)
    scores = rng.random(len(numbers)).round(2)  # with ties
    wrong = rng.random(len(numbers)) < 0.3 * (1 - scores) ** 2
    order = np.random.default_rng(0).permutation(images).tolist()
    chosen = set(order[: images // 4])
    own = sorted((s for s, n in zip(scores, numbers, strict=True) if n in chosen), reverse=True)
    limits = sorted({-math.inf, *(own[len(own) * step // 50] for step in range(1, 50))}) if own else []

    def shares(limit, choosing):
        pairs = []
        for image in order:
            if (image in chosen) == choosing:
                mine = [(s > limit, bool(w)) for s, w, n in zip(scores, wrong, numbers, strict=True) if n == image]
                pairs.append((sum(a for a, _ in mine) / len(mine), sum(a and w for a, w in mine) / len(mine)))
        return list(zip(*pairs, strict=True))

    before = [np.multiply(slow_gain(shares(t, True), risk, BELOW, 1), BELOW / BELOW.sum()) for t in limits]
    place, best = (int(np.argmax([each.sum() for each in before])) if before else -1), math.inf
    while place >= 0:
        tested = [*zip(*shares(limits[place], False), strict=True)]
        ways = [slow_gain([*zip(*tested[:some], strict=True)], risk, BELOW, 1) for some in range(1, len(tested) + 1)]
        if max(before[place] @ way / before[place].sum() for way in ways) < 20:  # at any time
            break
        best, place = limits[place], place - 1
    assert choose_threshold(scores, wrong, numbers, risk=risk, level=0.95) == best
    answers = answers_of(scores, wrong, numbers, np.array([-math.inf, 0.5]))
    assert answers.wrong[0, 1] == pytest.approx(np.mean((wrong & (scores > 0.5))[numbers == 0]))


def dense(images, wrong, confidence=0.9):
    """Images of 4 pixels with the same confidence; `wrong` (4,) says which are wrong."""
    probs = np.broadcast_to(np.array([confidence, 1 - confidence])[:, None], (images, 2, 4))
    return probs, np.tile(np.array(wrong, int), (images, 1))


def test_extremes():
    least = least_images(0.1, 0.95)
    for images, answered in ((1, 0), (3, 0), (least - 1, 0), (least, 4 * least)):  # all right
        fitted = SelectiveClassifier(0.1).fit(*dense(images, [0, 0, 0, 0]))
        assert (fitted.images_, fitted.answered_, fitted.least_rows) == (images, answered, least)
    assert fitted.threshold_ == -math.inf
    one = fitted.check(*dense(1, [0, 1, 0, 0]))
    assert (one.images, one.error, one.error_all, one.drift) == (1, 0.25, 0.25, False)
    assert one.error_low < 0.02
    assert one.error_high > 0.9  # one image tells next to nothing
    wrong = fitted.check(*dense(50, [1, 1, 1, 1]))
    assert (wrong.error, wrong.error_high, wrong.drift) == (1.0, 1.0, True)
    assert wrong.p_value < 1e-6
    assert "of 50 images or groups are answered" in wrong.sentence
    assert "each image or group counting the same" in wrong.sentence
    none = SelectiveClassifier(0.1).fit(*dense(500, [1, 1, 1, 1]))
    assert (none.answered_, none.threshold_) == (0, math.inf)
    found = none.check(*dense(5, [1, 0, 0, 0]))
    assert (found.error, found.error_low, found.error_high) == (None, 0.0, 1.0)
    assert found.p_value == pytest.approx(1)
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["images"] == 5
    half = SelectiveClassifier(0.1).fit(torch.full((60, 1000, 4), 1e-3).half(), torch.zeros(60, 4, dtype=torch.long))
    assert half.answered_ == 240


def test_every_image_counts_the_same_and_ignored_pixels_do_not_count():
    fitted = SelectiveClassifier(0.1).fit(*dense(100, [0, 0, 0, 0]))
    probs, labels = dense(3, [0, 0, 0, 0])
    labels[0], labels[1], labels[2] = [1, -100, -100, -100], [0, 0, 0, 1], [-100] * 4
    found = fitted.check(probs, labels)
    assert (found.images, found.rows, found.errors) == (2, 5, 2)
    assert found.error == pytest.approx((1 + 1 / 4) / 2)
    assert found == fitted.check(Predictions(probs, labels))


def test_groups_are_images_by_another_name():
    rng = np.random.default_rng(4)
    probs, labels = maps(rng, 80, pixels=4)
    selective = SelectiveClassifier(0.2)
    expected = selective.fit(probs, labels).to_json()
    names = np.array([f"patient {number:03}" for number in range(80)])
    flat = as_rows(probs, labels)
    assert selective.fit(*flat, groups=np.repeat(names, 4)).to_json() == expected
    assert selective.fit(probs, labels, groups=names.tolist()).to_json() == expected
    assert selective.fit(Predictions(probs, labels), groups=torch.arange(80)).to_json() == expected
    pairs = selective.fit(probs, labels, groups=np.repeat(names[:40], 2).astype(object))
    assert (pairs.images_, pairs.rows_) == (40, 320)
    assert pairs.check(probs, labels).images == 80
    assert pairs.check(probs, labels, groups=np.arange(320).reshape(80, 4) // 16).images == 20
    assert selective.fit(*flat, groups=range(320)).images_ is None  # each row by itself
    for groups, message in (([1, 2], "one value for each of 320"), ([None] * 320, "missing"), ([np.nan] * 80, "miss")):
        with pytest.raises(InputError, match=message):
            selective.fit(probs, labels, groups=groups)


def test_files():
    rng = np.random.default_rng(5)
    fitted = SelectiveClassifier(0.08).fit(*maps(rng, 200))
    assert 0 < fitted.answered_ < fitted.rows_
    again = SelectiveClassifier.from_json(fitted.to_json())
    assert (again.images_, again.threshold_) == (200, fitted.threshold_)
    new = maps(rng, 100)
    assert again.check(*new) == fitted.check(*new)
    content = json.loads(fitted.to_json())
    del content["learned"]["images"]  # of before, or of independent rows
    assert SelectiveClassifier.from_json(json.dumps(content)).check(*new) == fitted.check(*new)
    content["learned"]["images"] = 0
    with pytest.raises(InputError, match="images must be"):
        SelectiveClassifier.from_json(json.dumps(content))
