"""Summary of blocks, merged, are the facts of the whole; every decision is a function of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from avuc.core.errors import InputError
from avuc.evaluation.files import read_scores
from avuc.evaluation.files.decision.checks import decide
from avuc.evaluation.files.decision.summary import Summary
from avuc.evaluation.files.names import RawScores

PATH = Path("a.npz")


def found(name: str = "", classes: tuple[str, ...] | None = None) -> RawScores:
    return RawScores(None, "key 'x'", name, (), None, "'y'", classes)


def oracle(scores: np.ndarray, labels: np.ndarray) -> dict[str, object]:
    """The same facts by slow loops in float64."""
    draws = scores if scores.ndim == 3 else scores[None]
    out: dict[str, object] = {"low": np.inf, "high": -np.inf, "sum_low": np.inf, "sum_high": -np.inf}
    nan = infinite = 0
    for draw in draws:
        for i, row in enumerate(draw.tolist()):
            for value in row:
                nan += value != value
                infinite += value in (np.inf, -np.inf)
                if np.isfinite(value):
                    if value < out["low"]:
                        out["low"], out["low_row"] = value, i
                    out["high"] = max(out["high"], value)
            total = sum(row) if np.isfinite(sum(row)) else 0.0
            if total < out["sum_low"]:
                out["sum_low"], out["sum_low_row"] = total, i
            if total > out["sum_high"]:
                out["sum_high"], out["sum_high_row"] = total, i
    exact = [float(value) for value in draws.reshape(-1)]
    fits = [d for d in range(5) if all(np.isfinite(x) and np.float32(round(x, d)) == np.float32(x) for x in exact)]
    out["digits"] = fits[0] if fits else None
    out["mixed"] = any(sum(value > 0 for value in row) > 1 for draw in draws for row in draw.tolist())
    rows = [row for draw in draws for row in draw.tolist()]
    out["log_bases"] = tuple(
        base
        for base in (np.e, 2.0, 10.0)
        if max(exact) <= 0 and all(abs(sum(base**value for value in row) - 1) < 0.02 for row in rows)
    )
    mean = draws.mean(0)
    right = [sum(int(row.argmax()) == y - first for row, y in zip(mean, labels, strict=True)) for first in (0, 1)]
    return out | {"nan": nan, "infinite": infinite, "right_from_0": right[0], "right_from_1": right[1]}


@pytest.mark.parametrize("draws", [None, 3])
@pytest.mark.parametrize("cuts", [(), (7,), (1, 2, 30), (39,)])
@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (False, "logits"),
        (True, "logits"),
        *((False, kind) for kind in ("rounded", "counts", "hot", "ln", "log2", "log10")),
    ],
)
def test_merged_blocks_equal_the_whole_and_a_slow_loop(draws, cuts, broken, kind):
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(40, 4) if draws is None else (draws, 40, 4)).astype(np.float32)
    share = softmax(scores.astype(np.float64))
    scores = {
        "logits": scores,
        "rounded": np.round(share, 2),
        "counts": np.round(50 * share),
        "hot": 3.0 * (share == share.max(-1, keepdims=True)),
        "ln": np.log(share),
        "log2": np.log2(share),
        "log10": np.log10(share),
    }[kind].astype(np.float32)
    labels = rng.integers(1, 5, 40)
    if broken:
        scores[..., 11, 2], scores[..., 25, 0] = np.nan, np.inf
    whole = Summary.of(scores, labels)
    edges = [0, *cuts, 40]
    parts = [Summary.of(scores[..., a:b, :], labels[a:b], start=a) for a, b in pairwise(edges)]
    merged = parts[-1]
    for part in parts[-2::-1]:  # in another order than that of the file
        merged = merged.merge(part)
    assert repr(merged) == repr(whole)  # NaN differs from itself
    expected = oracle(scores, labels)
    same = ("low_row", "sum_low_row", "sum_high_row", "nan", "infinite", "digits", "mixed", "log_bases")
    for name in same if kind == "logits" else same[3:]:  # of equal sums, rounding decides which row is the largest
        assert getattr(whole.scores, name) == expected[name], name
    for name in ("low", "high", "sum_low", "sum_high"):
        assert getattr(whole.scores, name) == pytest.approx(expected[name]), name
    assert whole.labels is not None
    if not broken:
        assert (whole.labels.right_from_0, whole.labels.right_from_1) == (
            expected["right_from_0"],
            expected["right_from_1"],
        )
    assert whole.labels.values == (1, 2, 3, 4)
    assert (whole.scores.bad is not None) == broken
    if broken:
        assert whole.scores.bad[:2] == (11, 2)


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture
def model():
    """97 % right on 10 classes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 500)
    logits = rng.normal(size=(500, 10)) * 0.5
    logits[np.arange(500), labels] += 3.5
    return logits.astype(np.float32), labels


def test_percentages_are_no_logits(save, refused, model):
    logits, labels = model
    for digits in (0, 2, 6):
        path = save(".csv", np.round(100 * softmax(logits), digits), labels, name="predictions")
        line = refused(path)
        assert "every row sums to about 100; pass --kind percent" in line
        file = read_scores(path, kind="percent")
        assert file.kind == "probs"
        assert file.scale == 100
        np.testing.assert_allclose(file.scores.numpy(), softmax(logits), atol=0.03 if not digits else 5e-4)
    assert "every row sums to about 100" in refused(save(".npz", 100 * softmax(logits), labels, name="probs"))
    with pytest.raises(InputError, match=r"should contain percentages, but row \d+ sums to 1, not 100"):
        read_scores(save(".npz", softmax(logits), labels, name="predictions"), kind="percent")


def test_percentages_are_written_back_as_percentages(save, model, tmp_path):
    from avuc.evaluation.files import write_scores

    logits, labels = model
    file = read_scores(save(".npz", 100 * softmax(logits), labels, name="predictions"), kind="percent")
    write_scores(file, file.scores, tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as saved:
        np.testing.assert_allclose(saved["predictions"], 100 * softmax(logits), rtol=1e-5)


def test_shares_that_do_not_sum_to_one_are_refused(save, refused, model):
    logits, labels = model
    sigmoid = 1 / (1 + np.exp(-logits))
    path = save(".npz", sigmoid, labels, name="scores")
    assert "neither clearly probabilities nor clearly logits" in refused(path)
    assert read_scores(path, kind="logits").kind == "logits"
    assert read_scores(save(".npz", sigmoid, labels, name="logits")).kind == "logits"


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".safetensors", ".parquet", ".npy"])
def test_labels_from_1_without_the_last_class(save, refused, suffix, model):
    logits, labels = model
    keep = labels < 9
    line = refused(save(suffix, logits[keep], labels[keep] + 1))
    assert "go from 1 to 9 and may start at 0 or at 1 (accuracy" in line
    assert "--first-label 1" in line
    file = read_scores(save(suffix, logits[keep], labels[keep] + 1), first_label=1)
    assert file.labels.tolist() == labels[keep].tolist()


def test_labels_from_1_with_every_class(save, refused, model):
    logits, labels = model
    path = save(".npz", logits, labels + 1)
    assert "pass --first-label 1, or subtract 1 from the labels" in refused(path)
    assert read_scores(path, first_label=1).labels.tolist() == labels.tolist()
    with pytest.raises(InputError, match="out of range: 0 at row"):
        read_scores(save(".npz", logits, labels), first_label=1)


def test_labels_from_0_without_class_0_are_read_with_a_note(save, model):
    logits, labels = model
    keep = labels > 0
    file = read_scores(save(".npz", logits[keep], labels[keep]))
    assert file.labels.tolist() == labels[keep].tolist()
    assert "no row has label 0" in file.notes[0]


def decided(scores, labels, classes):
    return decide(PATH, found("logits", classes), Summary.of(scores, labels))


def test_numbers_of_columns_say_where_labels_count_from(model):
    logits, labels = model
    from_1 = tuple(str(i) for i in range(1, 11))
    assert decided(logits, labels + 1, from_1).labels(labels + 1).tolist() == labels.tolist()
    keep = labels < 9
    decision = decided(logits[keep], labels[keep] + 1, from_1)
    assert decision.first_label == 1
    assert "starting at 1" in decision.notes[0]
    decision = decided(logits, labels, from_1)
    assert decision.first_label == 0
    assert "labels were read as starting at 0" in decision.notes[0]
    keep = labels > 0  # numbered from 1, but the model is right only when the labels count from 0
    with pytest.raises(InputError, match="--first-label 0"):
        decided(logits[keep], labels[keep], from_1)


def test_columns_in_an_order_of_their_own(model):
    logits, labels = model
    logits, labels = logits[:, :3], labels % 3
    decision = decided(logits, np.array([3, 5, 7])[labels], ("7", "3", "5"))
    assert decision.labels(torch.tensor([3, 5, 7])).tolist() == [1, 2, 0]
    with pytest.raises(InputError, match=r"the numbers of the columns .* or their positions"):
        decided(logits, labels, ("2", "0", "1"))


def test_decisions_need_no_arrays(model):
    """A file of 50 million rows has the same facts as one of 500, and the same decision."""
    logits, labels = model
    facts = Summary.of(softmax(logits), labels)
    many = replace(facts, scores=replace(facts.scores, rows=50_000_000), labels=replace(facts.labels, rows=50_000_000))
    assert decide(PATH, found(), many) == decide(PATH, found(), facts)
    assert decide(PATH, found(), many).kind == "probs"
