"""ConformalClassifier: references, the law of coverage, layouts, extremes, files."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from avuc import InputError, MultiLabelPredictions, Predictions
from avuc.conformal import ConformalClassifier
from avuc.conformal.distributions import beta_binomial, central_interval, total_of
from avuc.conformal.inputs import class_rows
from avuc.conformal.scores import METHODS, Score

make = runpy.run_path(str(Path(__file__).with_name("make_reference.py")))
reference_data, as_text = make["reference_data"], make["as_text"]
REFERENCE = json.loads(make["FILE"].read_text(encoding="utf-8"))
SPLITS, FIT = 1000, 700


@pytest.mark.parametrize("name", [name for name in REFERENCE if "randomized" not in name])
def test_thresholds_and_sets_are_those_of_mapie_and_torchcp(name: str) -> None:
    fit_probs, fit_labels, probs, _ = reference_data()
    conformal = ConformalClassifier(
        name.split()[-1], 0.8, randomized=False, class_conditional="class-cond" in name, penalty=0.05, k_reg=2
    ).fit(fit_probs, fit_labels)
    assert conformal.thresholds_ == pytest.approx(REFERENCE[name]["thresholds"], abs=1e-6)  # TorchCP sums in float32
    assert as_text(conformal.predict_sets(probs).numpy()) == REFERENCE[name]["sets"]


def test_randomised_sets_are_those_of_mapie_for_the_same_random_numbers() -> None:
    fit_probs, fit_labels, probs, _ = reference_data()
    expected = REFERENCE["mapie randomized aps"]
    drawn = [np.random.RandomState(make["SEED"]).uniform(size=len(each)) for each in (fit_probs, probs)]
    scores = Score("aps").of_labels(torch.from_numpy(fit_probs), fit_labels, drawn[0])
    threshold = np.sort(scores)[math.ceil(0.8 * (len(scores) + 1)) - 1 :][:1]
    assert threshold == pytest.approx(expected["thresholds"], abs=1e-7)  # these float32 rows sum to 1 only up to 1e-7
    assert as_text(Score("aps").sets(torch.from_numpy(probs), threshold, drawn[1])) == expected["sets"]


def law_of(counts, conformal: ConformalClassifier) -> np.ndarray:
    """P(so many of the new rows are covered): `counts` new rows for each threshold."""
    return total_of(
        beta_binomial(int(m), int(k), int(n) + 1 - int(k))
        for m, k, n in zip(counts, conformal.ranks, conformal.rows_, strict=True)
    )


def assert_inside(outside: int, gaps: list[float]) -> None:
    """At most 5 % of the splits are outside their 95 % interval, and the mean over all splits is that of the law.

    72 is the 99.9 % point of Binomial(1000, 0.05); 3.3 standard errors are the 99.9 % interval.
    """
    assert len(gaps) == SPLITS
    assert outside <= 72
    assert abs(np.mean(gaps)) < 3.3 * np.std(gaps) / math.sqrt(SPLITS)


@pytest.mark.parametrize("class_conditional", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_coverage_over_1000_random_splits_follows_its_law(
    digits: Predictions, method: str, class_conditional: bool
) -> None:
    """Given the pool, the number of covered rows of a random split is beta-binomial, for any model and any data.

    The scores of the labels are computed once; fixed numbers of rows of each class keep the law the same.
    """
    conformal = ConformalClassifier(method, 0.9, class_conditional=class_conditional).fit(digits)
    labels, rng = digits.labels.numpy(), np.random.default_rng(4)
    scores = conformal._score().of_labels(digits.probs, labels, rng.random(len(labels)))
    groups = [scores[labels == k] for k in range(10)] if class_conditional else [scores]
    assert len(np.unique(scores)) == len(scores)
    conformal.rows_ = np.array([len(group) * FIT // len(scores) for group in groups])
    new = [len(group) - fit for group, fit in zip(groups, conformal.rows_, strict=True)]
    law = law_of(new, conformal)
    low, high = central_interval(law, 0.95)
    hits = np.zeros(SPLITS)
    for group, fit in zip(groups, conformal.rows_, strict=True):
        for split in range(SPLITS):
            mixed = rng.permutation(group)
            hits[split] += (mixed[fit:] <= conformal._quantile(mixed[:fit])).sum()
    gaps = (hits - law @ np.arange(len(law))) / sum(new)
    assert_inside(int(((hits < low) | (hits > high)).sum()), gaps.tolist())


@pytest.mark.parametrize(
    ("method", "class_conditional"),
    [
        ("threshold", False),
        *(pytest.param(m, c, marks=pytest.mark.slow) for m in METHODS for c in (False, True) if c or m != "threshold"),
    ],
)
def test_coverage_of_the_sets_over_1000_random_splits(
    digits: Predictions, method: str, class_conditional: bool
) -> None:
    """The same with a fit and sets for every split."""
    rng, outside, gaps = np.random.default_rng(4), 0, []
    labels = digits.labels.numpy()
    for split in range(SPLITS):
        order = torch.from_numpy(rng.permutation(len(digits)))
        fit, new = order[:FIT], order[FIT:]
        conformal = ConformalClassifier(method, 0.9, class_conditional=class_conditional, seed=split)
        conformal.fit(Predictions(digits.probs[fit], digits.labels[fit], digits.expected_entropy[fit]))
        sets = conformal.predict_sets(Predictions(digits.probs[new], digits.labels[new], digits.expected_entropy[new]))
        hits = int(sets[torch.arange(len(new)), digits.labels[new]].sum())
        law = law_of(np.bincount(labels[new], minlength=10) if class_conditional else [len(new)], conformal)
        low, high = central_interval(law, 0.95)
        outside += not low <= hits <= high
        gaps.append((hits - float(law @ np.arange(len(law)))) / len(new))
    assert_inside(outside, gaps)


@pytest.mark.parametrize("method", METHODS)
def test_coverage_averaged_over_data_holds_for_one_seed(method: str) -> None:
    """A sure model: the random numbers alone decide about APS, so those of one seed must differ from data to data."""
    rng, fits, rows = np.random.default_rng(0), 200, 1000
    coverage, alarms = [], 0
    for _ in range(fits):
        sure = 1 - 0.01 * rng.random(2 * rows)
        probs, labels = np.stack([sure, 1 - sure], 1), (rng.random(2 * rows) > sure).astype(int)
        turned = rng.random(2 * rows) < 0.5
        probs[turned], labels[turned] = probs[turned, ::-1], 1 - labels[turned]
        conformal = ConformalClassifier(method, 0.9).fit(probs[:rows], labels[:rows])
        check = conformal.check(probs[rows:], labels[rows:])
        coverage.append(check.coverage)
        alarms += check.drift
    # the standard deviation of one is 0.0134; 21 is the 99.9 % point of Binomial(200, 0.05)
    assert abs(np.mean(coverage) - 0.9) < 3.3 * 0.0134 / math.sqrt(fits)
    assert alarms <= 21


@pytest.mark.parametrize("class_conditional", [False, True])
@pytest.mark.parametrize("options", [{}, {"method": "aps", "randomized": False}])
def test_very_sure_models_raise_no_false_alarm(options: dict[str, object], class_conditional: bool) -> None:
    """Probabilities of float64 that float32 rounds to 1: scores differ, or the coverage may be higher."""
    rng, alarms, coverage = np.random.default_rng(0), 0, []
    for _ in range(40):
        rest = np.exp(rng.normal(-25, 3, 1000))
        probs, labels = np.stack([1 - rest, rest], 1), np.zeros(1000, int)
        conformal = ConformalClassifier(coverage=0.8, class_conditional=class_conditional, **options)
        check = conformal.fit(probs[:500], labels[:500]).check(probs[500:], labels[500:])
        alarms += check.drift
        coverage.append(check.coverage)
    assert alarms <= 8  # the 99.9 % point of Binomial(40, 0.05)
    assert np.mean(coverage) > 0.78
    if not options:
        assert np.mean(coverage) < 0.82


def test_the_law_of_coverage_is_the_interval(digits: Predictions) -> None:
    conformal = ConformalClassifier("aps", 0.9).fit(digits)
    low, high = conformal.coverage_interval()
    rank = math.ceil(0.9 * (len(digits) + 1))
    rng = np.random.default_rng(0)
    seen = rng.beta(rank, len(digits) + 1 - rank, 100_000)
    assert ((low <= seen) & (seen <= high)).mean() == pytest.approx(0.95, abs=0.003)
    wide = conformal.coverage_interval(0.999)
    assert wide[0] < low < high < wide[1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("class_conditional", [False, True])
def test_logits_give_the_sets_of_their_probabilities(digits: Predictions, method: str, class_conditional: bool) -> None:
    logits, labels = digits.probs.log() + 3, digits.labels  # a constant changes no softmax
    options = {"class_conditional": class_conditional, "allow_empty": False}
    ours = ConformalClassifier(method, 0.8, **options).fit(logits[:700], labels[:700], logits=True)
    slow = ConformalClassifier(method, 0.8, **options).fit(logits[:700].softmax(1), labels[:700])
    assert ours.thresholds_ == pytest.approx(slow.thresholds_, abs=1e-12)
    sets = ours.predict_sets(logits[700:], logits=True)
    assert torch.equal(sets, slow.predict_sets(logits[700:].softmax(1)))
    assert ours.check(logits[700:], labels[700:], logits=True) == slow.check(logits[700:].softmax(1), labels[700:])


def test_logits_of_any_layout_and_what_is_refused() -> None:
    z, y = torch.randn(40, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    binary = ConformalClassifier(coverage=0.5).fit(z, y, logits=True)
    both = torch.stack([torch.zeros(40), z], 1)
    assert torch.equal(binary.predict_sets(z, logits=True), binary.predict_sets(both.softmax(1)))
    maps = torch.randn(2, 3, 4, 5, dtype=torch.float16)
    ignored = torch.full((2, 4, 5), -100)
    ignored[0] = 1
    dense = ConformalClassifier(coverage=0.5).fit(maps, ignored, logits=True)
    assert dense.rows_.tolist() == [20]
    assert dense.predict_sets(maps, logits=True).shape == (40, 3)
    rows = torch.randn(20, 3)
    fitted = ConformalClassifier(coverage=0.5).fit(rows, torch.zeros(20), logits=True)
    rows[3, 1] = math.nan
    for call, problem in (
        (lambda: fitted.predict_sets(rows, logits=True), "NaN"),
        (lambda: fitted.fit(rows, torch.zeros(20), logits=True), "NaN"),
        (lambda: fitted.fit(torch.randn(20, 3), torch.full((20,), 3), logits=True), "must be in 0…2"),
        (lambda: fitted.fit(torch.randn(20, 3), torch.full((20,), -1), logits=True), "have none"),
        (lambda: fitted.fit(torch.randn(20, 3).softmax(1), torch.zeros(20), logits=True), "leave logits=True out"),
        (lambda: fitted.predict_sets(Predictions(torch.full((1, 3), 1 / 3), [0]), logits=True), "not logits"),
        (lambda: fitted.predict_sets(torch.randn(20, 4), logits=True), "4 classes"),
    ):
        with pytest.raises(InputError, match=problem):
            call()


@pytest.mark.parametrize(("coverage", "rows", "rank"), [(0.9, 9, 9), (0.07, 99, 7), (0.57, 99, 57), (0.9, 8, 9)])
def test_the_rank_is_exact_for_decimal_numbers(coverage: float, rows: int, rank: int) -> None:
    conformal = ConformalClassifier(coverage=coverage).fit([[0.6, 0.4]] * rows, [0] * rows)
    assert conformal.ranks.tolist() == [rank]
    assert math.isinf(conformal.thresholds_[0]) == (rank > rows)


def test_drift_raises_the_alarm_and_new_rows_of_the_same_kind_do_not(digits: Predictions) -> None:
    half = len(digits) // 2
    conformal = ConformalClassifier("raps", 0.9).fit(digits.probs[:half], digits.labels[:half])
    same = conformal.check(digits.probs[half:], digits.labels[half:])
    assert not same.drift
    assert same.low <= same.coverage <= same.high
    assert "as expected" in same.sentence
    # rows with wrong labels
    moved = conformal.check(digits.probs[half:], (digits.labels[half:] + 1) % 10)
    assert moved.drift
    assert moved.coverage < moved.low
    assert "less than expected" in moved.sentence
    easy = conformal.check(digits.probs[half:], digits.probs[half:].argmax(1))
    assert easy.drift
    assert "more than expected" in easy.sentence
    assert json.loads(json.dumps(easy.as_json(), allow_nan=False))["drift"] is True
    assert "drift=True" in repr(easy)
    assert "<table>" in easy._repr_html_()


def test_check_is_a_loop_over_rows(digits: Predictions) -> None:
    conformal = ConformalClassifier("threshold", 0.8).fit(digits)
    found, sets = conformal.check(digits), conformal.predict_sets(digits).numpy()
    labels = digits.labels.tolist()
    assert found.coverage == sum(row[k] for row, k in zip(sets, labels, strict=True)) / len(labels)
    assert found.mean_size == pytest.approx(np.mean([sum(row) for row in sets]))
    assert list(found.sizes) == [sum(int(sum(row) == size) for row in sets) for size in range(11)]
    for each in found.classes:
        own = [row for row, k in zip(sets, labels, strict=True) if k == each.label]
        assert each.rows == len(own)
        assert each.coverage == sum(row[each.label] for row in own) / len(own)
        assert each.mean_size == pytest.approx(sum(map(sum, own)) / len(own))
        assert each.low <= each.coverage <= each.high


def test_class_conditional_covers_every_class(digits: Predictions) -> None:
    conformal = ConformalClassifier("threshold", 0.9, class_conditional=True).fit(digits)
    assert min(each.coverage for each in conformal.check(digits).classes) >= 0.9


@pytest.mark.parametrize("classes", [2, 3])
def test_rows_that_come_one_by_one_have_random_numbers_of_their_own(classes: int) -> None:
    """A service gets one row for each request: 97.5 % of the sets of two classes contained the true one, not 90 %."""
    rng = np.random.default_rng(classes)
    logits = 3 * rng.normal(size=(5500, classes))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.random((5500, 1))).argmax(1)
    for seed in range(3):
        fitted = ConformalClassifier("aps", 0.9, seed=seed).fit(probs[1500:], labels[1500:])
        sets = torch.cat([fitted.predict_sets(probs[k : k + 1]) for k in range(1500)]).numpy()
        assert sets[np.arange(1500), labels[:1500]].mean() == pytest.approx(0.9, abs=0.024)  # three standard errors
    single = probs.astype(np.float32)
    again = torch.cat([fitted.predict_sets(single[k : k + 1]) for k in range(300)]).numpy()
    assert (again == sets[:300]).all()


def test_sets_grow_with_coverage_and_a_seed_repeats_them(digits: Predictions) -> None:
    for method in METHODS:
        small, large = (ConformalClassifier(method, c).fit(digits).predict_sets(digits) for c in (0.8, 0.95))
        assert not bool((small & ~large).any())
        fitted = ConformalClassifier(method, 0.8).fit(digits)
        assert torch.equal(fitted.predict_sets(digits), small)
        assert torch.equal(fitted.predict_sets(digits, seed=9), small) == (method == "threshold")


def test_no_empty_sets_on_request(digits: Predictions) -> None:
    conformal = ConformalClassifier("aps", 0.5).fit(digits)
    filled = ConformalClassifier("aps", 0.5, allow_empty=False).fit(digits)
    sets, full = conformal.predict_sets(digits), filled.predict_sets(digits)
    empty = ~sets.any(1)
    assert bool(empty.any())
    assert torch.equal(full[~empty], sets[~empty])
    assert torch.equal(full[empty].int().argmax(1), digits.predicted[empty])
    assert bool((full[empty].sum(1) == 1).all())
    assert conformal.is_exact
    assert not filled.is_exact
    assert filled.check(digits).high == 1


def test_binary_and_dense_predictions() -> None:
    rng = np.random.default_rng(0)
    one = rng.random(400)
    labels = (rng.random(400) < one).astype(int)
    both = ConformalClassifier("aps").fit(np.stack([1 - one, one], 1), labels)
    binary = ConformalClassifier("aps").fit(one, labels)
    assert binary.thresholds_ == pytest.approx(both.thresholds_)
    assert binary.predict_sets(one).shape == (400, 2) == binary.predict_sets(one[:, None]).shape
    dense = Predictions(np.stack([1 - one, one], 1).reshape(4, 10, 10, 2), labels.reshape(4, 10, 10), class_dim=-1)
    pixels = ConformalClassifier("aps", 0.7).fit(dense)
    # 0.7 · (4 + 1) images of 100 pixels
    scores = np.sort(pixels._score().of_labels(dense.probs, labels, pixels._uniform(class_rows(dense), (0, 0), labels)))
    assert pixels.thresholds_ == scores[349]
    assert dense.to_map(pixels.predict_sets(dense)).shape == (4, 10, 10, 2)
    images = dense.probs.reshape(4, 10, 10, 2).permute(0, 3, 1, 2)
    assert torch.equal(pixels.predict_sets(images), pixels.predict_sets(dense))


@pytest.mark.parametrize("method", METHODS)
def test_extremes(method: str) -> None:
    one = ConformalClassifier(method).fit([[0.7, 0.3]], [0])  # too few rows: every class
    assert one.predict_sets([[1.0, 0.0]]).all()
    assert one.coverage_interval() == (1.0, 1.0)
    sure = ConformalClassifier(method, randomized=False).fit([[1.0, 0.0]] * 30, [0] * 30)
    assert sure.predict_sets([[1.0, 0.0]]).tolist() == [[True, method != "threshold"]]
    assert sure.tied_
    assert sure.coverage_interval()[1] == 1.0
    wrong = ConformalClassifier(method, randomized=False).fit([[1.0, 0.0]] * 30, [1] * 30)
    assert wrong.predict_sets([[1.0, 0.0], [0.4, 0.6]]).all()
    half = ConformalClassifier(method).fit(torch.full((30, 1000), 1e-3, dtype=torch.float16), torch.arange(30))
    assert half.predict_sets(torch.full((3, 1000), 1e-3)).shape == (3, 1000)


def test_a_class_without_rows_is_in_every_set() -> None:
    probs, labels = np.tile([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]], (50, 1)), np.tile([0, 1], 50)
    conformal = ConformalClassifier(class_conditional=True).fit(probs, labels)
    assert conformal.rows_.tolist() == [50, 50, 0]
    assert math.isinf(conformal.thresholds_[2])
    assert bool(conformal.predict_sets(probs)[:, 2].all())
    # the interval is that of 50 rows, not of none
    alone = ConformalClassifier().fit(probs[:50], labels[:50])
    assert conformal.coverage_interval()[0] == alone.coverage_interval()[0] < 1
    restored = ConformalClassifier.from_json(conformal.to_json())
    assert restored.thresholds_.tolist() == conformal.thresholds_.tolist()
    none = conformal.check(probs, labels).classes[2]
    assert none.rows == 0
    assert math.isnan(none.coverage)
    assert conformal.check(probs, labels).as_json()["classes"][2]["coverage"] is None


def test_bad_input_is_one_line(digits: Predictions) -> None:
    for wrong in (0, 1, 1.5, "0.9", True, math.nan):
        with pytest.raises(InputError, match="coverage must be"):
            ConformalClassifier(coverage=wrong).fit(digits)  # type: ignore[arg-type]
    for name, value in (("penalty", -1), ("k_reg", 1.5), ("seed", -1), ("randomized", 1), ("method", "lac")):
        with pytest.raises(InputError, match=name):
            ConformalClassifier(**{name: value}).fit(digits)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="1 of 2 rows have none"):
        ConformalClassifier().fit([[0.5, 0.5]] * 2, [0, -1])
    with pytest.raises(InputError, match="no rows"):
        ConformalClassifier().fit(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    with pytest.raises(InputError, match="not fitted"):
        ConformalClassifier().predict_sets(digits)
    with pytest.raises(InputError, match="have 2 classes, but the fit had 10"):
        ConformalClassifier().fit(digits).predict_sets([[0.5, 0.5]])
    with pytest.raises(InputError, match="NaN"):
        ConformalClassifier().fit([[math.nan, 0.5]], [0])
    with pytest.raises(InputError, match="leave them out"):
        ConformalClassifier().fit(digits, digits.labels)
    with pytest.raises(InputError, match="multi-label"):
        ConformalClassifier().fit(MultiLabelPredictions([[0.9, 0.2]], [[1, 0]]))
    with pytest.raises(InputError, match="level must be"):
        ConformalClassifier().fit(digits).check(digits, level=95)


@pytest.mark.parametrize("class_conditional", [False, True])
def test_a_file_restores_the_sets(digits: Predictions, tmp_path: Path, class_conditional: bool) -> None:
    conformal = ConformalClassifier("raps", 0.85, class_conditional=class_conditional, seed=3).fit(digits)
    conformal.class_names_ = tuple("abcdefghij")
    conformal.save(tmp_path / "sets.json")
    restored = ConformalClassifier.load(tmp_path / "sets.json")
    assert torch.equal(restored.predict_sets(digits), conformal.predict_sets(digits))
    assert restored.get_params() == conformal.get_params()
    assert restored.class_names_ == conformal.class_names_
    assert repr(restored) == repr(conformal)
    assert "raps" in repr(restored)
    fresh = ConformalClassifier.from_json(ConformalClassifier().to_json())
    assert not fresh.is_fitted


def test_damaged_files_are_refused(digits: Predictions, tmp_path: Path) -> None:
    good = json.loads(ConformalClassifier().fit(digits).to_json())
    changes: list[tuple[str, object]] = [
        ("format", "other"),
        ("kind", "selective"),
        ("version", 2),
        ("params", {}),
        ("params", good["params"] | {"coverage": 2}),
        ("learned", {"rows": [3]}),
    ]
    for key, value in (
        ("thresholds", [None]),
        ("thresholds", ["1"]),
        ("thresholds", []),
        ("rows", [-1]),
        ("rows", [1.5]),
        ("tied", 0),
        ("num_classes", 0),
        ("class_names", ["a"]),
    ):
        changes.append(("learned", good["learned"] | {key: value}))
    for key, value in changes:
        path = tmp_path / "bad.json"
        path.write_text(json.dumps(good | {key: value}))
        with pytest.raises(InputError, match=r"bad\.json"):
            ConformalClassifier.load(path)
    for text in ("", "[1]", '{"format"', "[" * 100_000):
        with pytest.raises(InputError):
            ConformalClassifier.from_json(text)
    with pytest.raises(InputError, match=r"missing\.json"):
        ConformalClassifier.load(tmp_path / "missing.json")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("randomized", [False, True])
@pytest.mark.parametrize("class_conditional", [False, True])
@pytest.mark.parametrize("trees", [7, 10, 13])
def test_the_type_of_the_probabilities_decides_nothing(method, randomized, class_conditional, trees):
    """Votes of a forest have few values: many rows have the score of the threshold, in float32 and in float64."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    votes = np.stack([rng.multinomial(trees, np.roll([0.6, 0.2, 0.2], label)) for label in labels]) / trees
    options = {"class_conditional": class_conditional, "randomized": randomized}
    for coverage in (0.6, 0.75, 0.85, 0.9):
        found = []
        for first in (np.float32, np.float64):
            fitted = ConformalClassifier(method, coverage, **options).fit(votes[:1000].astype(first), labels[:1000])
            found += [fitted.predict_sets(votes[1000:].astype(second)).tolist() for second in (np.float32, np.float64)]
        assert all(each == found[0] for each in found)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("rows", [4, 19])
def test_the_coverage_of_rows_of_one_class_is_exact_for_each_seed(rows: int, seed: int) -> None:
    """The same labels in every fit: random numbers from the labels alone were the same in all fits."""
    rng, covered = np.random.default_rng(0), []
    for _ in range(600):
        first, new = (np.stack([p, 1 - p], 1) for p in (rng.beta(2, 1, size) for size in (rows, 100)))
        fitted = ConformalClassifier("aps", 0.8, seed=seed).fit(first, np.zeros(rows, int))
        covered.append(fitted.predict_sets(new)[:, 0].double().mean())
    error = np.std(covered) / len(covered) ** 0.5
    assert abs(np.mean(covered) - 0.8) < 3.5 * error


def test_logits_are_told_to_pass_the_argument():
    """The remedy names the argument, and other wrong numbers keep their own."""
    generator = torch.Generator().manual_seed(0)
    logits, labels = 2 * torch.randn(60, 3, generator=generator), torch.arange(60) % 3
    fitted = ConformalClassifier(coverage=0.5).fit(logits, labels, logits=True)
    for scores in (logits, logits.numpy(), logits.tolist(), logits.abs() + 1):
        for call in (lambda z: fitted.fit(z, labels), fitted.predict_sets, lambda z: fitted.check(z, labels)):
            with pytest.raises(InputError, match="pass logits=True if they are logits"):
                call(scores)
    with pytest.raises(InputError, match="pass logits=True"):
        fitted.fit(logits[:, 0], labels % 2)
    with pytest.raises(InputError, match="pass logits=True"):
        fitted.fit(logits.reshape(5, 12, 3).movedim(-1, 1), labels.reshape(5, 12))
    others = {
        "percentages": (100 * logits.softmax(1), labels),
        "NaN": (logits.softmax(1).where(labels[:, None] > 0, torch.nan), labels),
        "labels": (logits.softmax(1), labels + 1),
        "one-vs-rest": (logits.sigmoid(), labels),
    }
    for scores, classes in others.values():
        with pytest.raises(InputError) as caught:
            fitted.fit(scores, classes)
        assert "logits=True" not in str(caught.value)
