"""What the losses refuse, and inputs of unusual kind that they read correctly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, auavuc_loss, avuc_loss
from avuc.losses.quadrants import avuc_quadrants

VARIANTS = ["paper", "stopgrad", "monotone", "soft"]


def batch(n: int = 12, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, classes, generator=generator), torch.randint(0, classes, (n,), generator=generator)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("threshold", [math.nan, torch.tensor(math.nan), torch.tensor([math.nan])])
def test_a_threshold_of_nan_is_refused(threshold: float | Tensor, variant: Any) -> None:
    """Nothing is greater than NaN, so every prediction counted as certain."""
    logits, labels = batch()
    with pytest.raises(InputError, match="threshold is NaN"):
        avuc_loss(logits, labels, threshold, variant=variant)
    with pytest.raises(InputError, match="threshold is NaN"):
        avuc_quadrants(logits.softmax(-1), labels, threshold, variant=variant)


@pytest.mark.parametrize("threshold", [True, "0.5", [0.5], torch.ones(12), torch.ones(12, 1)])
def test_a_threshold_is_one_number(threshold: Any) -> None:
    with pytest.raises(InputError, match="threshold must be"):
        avuc_loss(*batch(), threshold)


def test_thresholds_of_any_kind() -> None:
    logits, labels = batch()
    expected = avuc_loss(logits, labels, 0.5)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert avuc_loss(logits, labels, torch.tensor([0.5], dtype=dtype)) == expected
    assert avuc_loss(logits, labels, torch.tensor(1)) == avuc_loss(logits, labels, 1.0)
    # everything certain, everything uncertain
    right = logits.argmax(-1)
    assert avuc_loss(logits, right, math.inf) == 0
    assert avuc_loss(logits, (right + 1) % 4, -math.inf) == 0


@pytest.mark.gpu
def test_a_threshold_of_nan_on_a_gpu() -> None:
    logits, labels = (x.cuda() for x in batch())
    with pytest.raises(InputError, match="threshold is NaN"):
        avuc_loss(logits, labels, torch.tensor(math.nan, device="cuda"))


@pytest.mark.parametrize(
    "labels",
    [torch.eye(4)[[0, 1, 2]], torch.eye(4, dtype=torch.long)[[0, 1, 2]], torch.full((3, 4), 0.25)],
    ids=["one-hot float", "one-hot int", "soft"],
)
@pytest.mark.parametrize("draws", [0, 2])
def test_one_hot_and_soft_labels_are_refused(labels: Tensor, draws: int) -> None:
    logits = torch.zeros((draws, 3, 4) if draws else (3, 4))
    for call in (lambda: avuc_loss(logits, labels, 0.5), lambda: auavuc_loss(logits, labels)):
        with pytest.raises(InputError, match=r"one-hot or soft labels of shape \(3, 4\): use labels.argmax\(-1\)"):
            call()


@pytest.mark.parametrize("which", ["scores", "labels", "both", "weights"])
def test_arrays_and_lists_are_refused_in_one_line(which: str) -> None:
    """A loss of an array would have no gradient, and failed with an AttributeError."""
    logits, labels = batch()
    given = (
        (logits.numpy() if which in ("scores", "both") else logits),
        (labels.tolist() if which in ("labels", "both") else labels),
    )
    weights: Any = [1.0] * 12 if which == "weights" else None
    for call in (
        lambda: avuc_loss(*given, 0.5, weights=weights),
        lambda: avuc_loss(*given, 0.5, variant="soft", weights=weights),
        lambda: auavuc_loss(*given, weights=weights),
        lambda: AvUCLoss()(*given, weights),
    ):
        with pytest.raises(InputError, match=r"must be a tensor; found (ndarray|list): .*torch.as_tensor") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_labels_in_one_column_are_named() -> None:
    logits, labels = batch()
    with pytest.raises(InputError, match=r"labels \(12, 1\) .*use labels.squeeze\(1\)"):
        avuc_loss(logits, labels[:, None], 0.5)


def test_class_weights_in_place_of_weights_of_predictions() -> None:
    logits, labels = batch()
    with pytest.raises(InputError, match=r"found 4 weights .*; of class weights give class_weights\[labels\]"):
        avuc_loss(logits, labels, 0.5, weights=torch.ones(4))


def test_what_to_do_about_labels_from_1_and_classes_at_the_end() -> None:
    logits, labels = batch()
    with pytest.raises(InputError, match="labels that start at 1 need labels - 1"):
        avuc_loss(logits, labels.clamp(max=3) + 1, 0.5)
    with pytest.raises(InputError, match="if 255 means no label, pass ignore_index=255 or make it -100"):
        avuc_loss(logits, labels.masked_fill(labels == 0, 255), 0.5)
    with pytest.raises(InputError, match=r"the classes last for labels \(2, 3\): pass class_dim=-1 .*movedim\(-1, 1\)"):
        avuc_loss(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long), 0.5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bad", [-1, 4, 255, -101])
def test_labels_out_of_range_beside_ignored_ones(bad: int, variant: Any) -> None:
    logits, labels = batch()
    labels[0], labels[5] = -100, bad
    with pytest.raises(InputError, match=r"labels must be 0 … 3 \(or ignore_index=-100\)"):
        avuc_loss(logits, labels, 0.5, variant=variant)
    if variant != "soft":
        with pytest.raises(InputError, match="labels must be 0 … 3"):
            auavuc_loss(logits, labels, points=None, variant=variant)


def test_bytes_are_labels() -> None:
    """In uint8, 156 is the same number as the ignore_index −100: compiled, such rows were left out."""
    logits, labels = batch(n=6, classes=200)
    labels[:] = torch.tensor([156, 3, 156, 7, 199, 0])
    logits[0, 156] += 20
    compiled = torch.compile(lambda z, y: avuc_loss(z, y, 2.0), backend="aot_eager", fullgraph=True)
    for loss in (lambda z, y: avuc_loss(z, y, 2.0), lambda z, y: avuc_loss(z[None], y, 2.0), compiled):
        expected = loss(logits, labels)
        for dtype in (torch.uint8, torch.int16, torch.int32):
            assert loss(logits, labels.to(dtype)) == expected
        assert loss(logits, torch.where(labels == 156, -100, labels)) != expected


@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf])
def test_weights_are_numbers_from_0_up(bad: float) -> None:
    logits, labels = batch()
    weights = torch.ones(12)
    weights[3] = bad
    for call in (
        lambda: avuc_loss(logits, labels, 0.5, weights=weights),
        lambda: avuc_loss(logits, labels, 0.5, weights=weights, variant="soft"),
        lambda: auavuc_loss(logits, labels, weights=weights),
        lambda: avuc_quadrants(logits.softmax(-1), labels, 0.5, weights=weights),
    ):
        with pytest.raises(InputError, match="weights must not be negative, NaN or infinite"):
            call()


@pytest.mark.parametrize("probs", [torch.tensor([[3.0, 1.0]]), torch.tensor([[1.5, -0.5]]), torch.tensor([[0.2, 0.2]])])
def test_logits_in_place_of_probabilities_are_refused(probs: Tensor) -> None:
    with pytest.raises(InputError, match="apply softmax if these are logits"):
        avuc_quadrants(probs, torch.tensor([0]), 0.5)


def test_uncertainties_are_one_per_label() -> None:
    logits, labels = batch()
    with pytest.raises(InputError, match="one uncertainty per label; found 1 for 12"):
        avuc_quadrants(logits.softmax(-1), labels, 0.5, uncertainty=torch.tensor([0.3]))


@pytest.mark.parametrize("points", [1, 0, -3, 2.5, True, math.nan])
def test_points_are_a_whole_number(points: Any) -> None:
    with pytest.raises(InputError, match="points"):
        auavuc_loss(*batch(), points=points)


@pytest.mark.parametrize("variant", VARIANTS)
def test_layout_does_not_matter(variant: Any) -> None:
    logits, labels = batch(n=24)
    expected = avuc_loss(logits, labels, 0.9, variant=variant)
    strided = torch.zeros(4, 48).T[::2]
    strided.copy_(logits)
    assert not strided.is_contiguous()
    flipped = logits.flip(0)[torch.arange(23, -1, -1)]
    channels_last = logits.reshape(2, 3, 4, 4).movedim(-1, 1)
    for other, same in ((strided, labels), (flipped, labels), (channels_last, labels.reshape(2, 3, 4))):
        torch.testing.assert_close(avuc_loss(other, same, 0.9, variant=variant), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (1, 1), (5, 1), (3, 1000), (1, 1000)])
def test_small_and_wide_batches_have_finite_gradients(rows: int, classes: int, variant: Any) -> None:
    logits, labels = batch(rows, classes)
    for scale in (0.0, 1.0, 1e4):  # uniform, ordinary, and p exactly 0 or 1
        leaf = (scale * logits).requires_grad_()
        loss = avuc_loss(leaf, labels, 0.5, variant=variant)
        loss.backward()
        assert loss.isfinite()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
