"""Scores that are neither clearly logits nor clearly probabilities are refused; float64 keeps its digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from avuc.core.errors import InputError
from avuc.evaluation.files import read_scores

ROWS, CLASSES = 300, 6
RNG = np.random.default_rng(7)
LABELS = RNG.integers(0, CLASSES, ROWS)
LOGITS = RNG.normal(size=(ROWS, CLASSES)) * 2
LOGITS[np.arange(ROWS), LABELS] += 3
NAMES = ("logits", "scores", "predictions")


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


PROBS = softmax(LOGITS)
COUNTS = np.array([np.random.default_rng(i).multinomial(500, p) for i, p in enumerate(PROBS)])


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet", ".safetensors", ".npy"])
def test_probabilities_under_the_name_logits(save, refused, suffix):
    path = save(suffix, PROBS, LABELS)
    line = refused(path)
    assert "every row sums to 1" in line
    assert "pass --kind probs, or --kind logits" in line
    assert read_scores(path, kind="probs").kind == "probs"
    asked = read_scores(path, kind="logits")
    assert asked.kind == "logits"
    assert "like probabilities" in asked.notes[0]


def test_probabilities_of_draws_under_the_name_logits(save, refused):
    assert "--kind probs" in refused(save(".npz", np.stack([PROBS, PROBS[::-1]]), LABELS))


def test_a_second_file_is_named(save, tmp_path, refused):
    first = save(".npz", LOGITS, LABELS)
    other = tmp_path / "other.npz"
    np.savez(other, logits=PROBS)
    assert "--kind probs" in refused(first, "--ood", str(other), where=other)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "scores",
    [COUNTS, COUNTS.astype(np.float32), np.round(255 * PROBS), np.round(1000 * PROBS), 12.5 * PROBS],
    ids=["votes", "votes as floats", "bytes", "thousandths", "scaled"],
)
def test_equal_sums_are_no_logits(save, refused, name, scores):
    path = save(".npz", scores, LABELS, name=name)
    assert "divide every row by its sum" in refused(path)
    assert read_scores(path, kind="logits").kind == "logits"


@pytest.mark.parametrize(
    "scores",
    [LOGITS - LOGITS.min(), np.maximum(LOGITS, 0), np.zeros((ROWS, CLASSES)), np.ones((ROWS, CLASSES))],
    ids=["from 0", "rectified", "zeros", "ones"],
)
def test_logits_that_are_never_negative(save, refused, scores):
    assert read_scores(save(".npz", scores, LABELS)).kind == "logits"
    path = save(".npz", scores, LABELS, name="scores")
    assert "--kind logits" in refused(path)
    assert read_scores(path, kind="logits").kind == "logits"


def test_one_score_per_row_is_no_count(save):
    for size in (3, 100):
        assert read_scores(save(".npz", size * np.eye(CLASSES)[LABELS], LABELS)).kind == "logits"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("base", "log"), [("2", np.log2), ("10", np.log10)])
def test_logarithms_to_another_base(save, refused, name, base, log):
    path = save(".npz", log(PROBS), LABELS, name=name)
    line = refused(path)
    assert f"log{base} of probabilities" in line
    assert f"multiply the scores by log({base})" in line
    right = read_scores(save(".npz", log(PROBS) * np.log(float(base)), LABELS, name=name))
    np.testing.assert_allclose(right.predictions().probs.numpy(), PROBS, atol=1e-5)
    assert read_scores(save(".npz", np.log(PROBS), LABELS, name=name)).kind == "logits"


@pytest.mark.parametrize(("digits", "classes"), [(2, 6), (2, 9), (3, 6), (4, 40)])
def test_rounded_probabilities_are_divided_by_their_sum(save, digits, classes):
    probs = np.round(softmax(RNG.normal(size=(ROWS, classes)) * 2), digits)
    file = read_scores(save(".npz", probs, LABELS, name="probs"))
    np.testing.assert_allclose(file.scores.numpy(), probs / probs.sum(1, keepdims=True), atol=1e-6)


def test_sums_that_rounding_does_not_explain(save, refused):
    probs = 0.98 * PROBS
    line = refused(save(".npz", probs, LABELS, name="probs"))
    assert "divide every row by its sum if these are rounded probabilities" in line
    many = np.round(softmax(RNG.normal(size=(ROWS, 1000))), 2)  # nearly every probability became 0
    assert "divide every row by its sum" in refused(save(".npz", many, LABELS, name="probs"))


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".parquet", ".csv"])
@pytest.mark.parametrize("draws", [False, True])
def test_log_likelihoods_far_from_zero_keep_their_differences(save, suffix, draws):
    if draws and suffix in (".parquet", ".csv"):
        return
    far = LOGITS - 1e7
    file = read_scores(save(suffix, np.stack([far, far + 2e7]) if draws else far, LABELS))
    assert file.scores.dtype == torch.float32
    np.testing.assert_allclose(file.predictions().probs.numpy(), PROBS, atol=1e-6)


def test_logits_near_zero_stay_as_they_are(save):
    file = read_scores(save(".npz", LOGITS, LABELS))
    np.testing.assert_array_equal(file.scores.numpy(), LOGITS.astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "labels", "says"),
    [
        ((5, 9), 9, "save scores.T"),
        ((9, 5, 4), 9, "scores.transpose(2, 0, 1) if they are last"),
        ((4, 5, 9), 9, "scores.transpose(0, 2, 1)"),
        ((9, 5, 1), 9, "scores.squeeze(-1)"),
        ((18,), 9, "save one column per class"),
        ((2, 9, 5, 1), 9, "expected (N, C) or (S, N, C)"),
    ],
)
def test_axes_in_another_order(save, refused, shape, labels, says):
    assert says in refused(save(".npz", RNG.normal(size=shape), np.zeros(labels, int)))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, -1, 2], "remove the rows without a label"),
        ([0, -100, 2], "remove the rows without a label"),
        ([0.0, float("nan"), 2.0], "remove the rows without a label"),
        ([0.5, 1.0, 2.0], "name other labels with --label"),
        ([[0, 1, 2]], "save labels.reshape(-1)"),
        ([[1, 1, 0], [0, 1, 0], [0, 0, 1]], "pass --task multilabel if every label is a decision of its own"),
    ],
)
def test_labels_that_are_no_class_numbers(save, refused, labels, says):
    assert says in refused(save(".npz", RNG.normal(size=(3, 3)), np.array(labels)))


def test_labels_of_a_margin(save, refused):
    assert "save 0 instead of −1" in refused(save(".npz", RNG.normal(size=(3, 2)), np.array([-1, 1, 1])))


def test_the_library_refuses_too(save):
    with pytest.raises(InputError, match="--kind probs"):
        read_scores(save(".npz", PROBS, LABELS))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_predicted_classes_beside_the_scores(tmp_path, refused, suffix):
    import safetensors.numpy

    arrays = {"predictions": LOGITS.argmax(1), "scores": LOGITS, "labels": LABELS}
    path = tmp_path / f"a{suffix}"
    np.savez(path, **arrays) if suffix == ".npz" else safetensors.numpy.save_file(arrays, path)
    assert "pass --scores-key scores" in refused(path)
    assert read_scores(path, scores_key="scores").kind == "logits"


def test_records_are_refused_with_the_function_that_converts_them(tmp_path, refused):
    np.save(tmp_path / "logits.npy", np.array([(1.0, 2.0)], [("a", "f8"), ("b", "f8")]))
    assert "structured_to_unstructured" in refused(tmp_path / "logits.npy")
