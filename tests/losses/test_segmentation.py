"""AvU for segmentation against loops over voxels, scipy's morphology, and its own parts."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.core.errors import InputError
from avuc.losses import avuc_loss, segmentation, segmentation_avu_loss

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)


def shapes(*size: int, classes: int = 3, seed: int = 0, sharp: float = 9.0) -> tuple[Tensor, Tensor]:
    """Logits of blurred shapes, and labels that differ from them in patches."""
    generator = torch.Generator().manual_seed(seed)
    blur = F.avg_pool2d if len(size) == 3 else F.avg_pool3d
    noise = torch.randn(size[0], classes, *size[1:], generator=generator, dtype=torch.float64)
    other = torch.randn(noise.shape, generator=generator, dtype=torch.float64)
    logits = sharp * blur(noise, 3, 1, 1)
    logits[:, 0] += 1
    return logits, (logits + 5 * blur(other, 3, 1, 1)).argmax(1)


def neighbours(place: tuple[int, ...], widths: tuple[int, ...], size: tuple[int, ...]) -> list[tuple[int, ...]]:
    ranges = [range(max(0, x - w // 2), min(n, x + w // 2 + 1)) for x, w, n in zip(place, widths, size, strict=True)]
    return list(itertools.product(*ranges))


def oracle(
    logits: Tensor,
    labels: Tensor,
    variant: str,
    dilation: tuple[int, ...],
    opening: tuple[int, ...],
    background: int | None = 0,
) -> float:
    losses = []
    for scores, truth in zip(logits, labels, strict=True):
        size, probs = tuple(truth.shape), scores.softmax(0)
        places = list(itertools.product(*(range(n) for n in size)))
        predicted = probs.argmax(0)
        valid = {place: int(truth[place]) != -100 for place in places}
        wrong = {place for place in places if valid[place] and predicted[place] != truth[place]}
        eroded = {place for place in places if all(other in wrong for other in neighbours(place, opening, size))}
        large = {place for place in places if any(other in eroded for other in neighbours(place, opening, size))}
        objects = {p for p in places if valid[p] and (truth[p] != background or predicted[p] != background)}
        near = {place for place in places if any(other in objects for other in neighbours(place, dilation, size))}
        counted = [place for place in places if valid[place] and (background is None or place in near)]
        if not counted:
            continue
        values = []
        for threshold in THRESHOLDS:
            good = bad = 0.0
            for place in counted:
                column = probs[(slice(None), *place)]
                p, u = float(column.max()), float(torch.special.entr(column).sum())
                accurate, certain = place not in large, u <= threshold
                share = (p if certain else 1 - p) if variant == "monotone" else (p if accurate else 1 - p)
                weight = share * (1 - math.tanh(u) if certain else math.tanh(u))
                if accurate == certain:
                    good += weight
                else:
                    bad += weight
            values.append(math.log1p(bad / max(good, 1e-12)))
        losses.append(sum(values) / len(values))
    return sum(losses) / max(len(losses), 1)


@pytest.mark.parametrize("variant", ["paper", "stopgrad", "monotone"])
def test_equals_a_loop_over_pixels(variant: str) -> None:
    logits, labels = shapes(3, 12, 10)
    labels[0, :2] = -100
    loss = segmentation_avu_loss(logits, labels, variant=variant)
    assert loss.item() == pytest.approx(oracle(logits, labels, variant, (5, 5), (3, 3)), rel=1e-5)


def test_equals_a_loop_over_voxels() -> None:
    logits, labels = shapes(2, 4, 7, 6)
    labels[1, 0] = -100
    loss = segmentation_avu_loss(logits, labels, dilation=(1, 5, 5), opening=(1, 3, 3))
    assert loss.item() == pytest.approx(oracle(logits, labels, "paper", (1, 5, 5), (1, 3, 3)), rel=1e-5)
    loss = segmentation_avu_loss(logits, labels, dilation=3, opening=1, background=None)
    assert loss.item() == pytest.approx(oracle(logits, labels, "paper", (3, 3, 3), (1, 1, 1), None), rel=1e-5)


def test_masks_equal_scipy() -> None:
    scipy = pytest.importorskip("scipy.ndimage")
    mask = torch.rand(2, 20, 30, generator=torch.Generator().manual_seed(0)) < 0.8
    for image, opened, grown in zip(
        mask,
        segmentation._dilated(segmentation._eroded(mask, (3, 3)), (3, 3)),
        segmentation._dilated(mask, (5, 3)),
        strict=True,
    ):
        box = torch.ones(3, 3).numpy()
        eroded = scipy.binary_erosion(image.numpy(), box, border_value=1)
        assert (scipy.binary_dilation(eroded, box) == opened.numpy()).all()
        assert (scipy.binary_dilation(image.numpy(), torch.ones(5, 3).numpy()) == grown.numpy()).all()


def test_one_image_one_threshold_no_masks_is_avuc() -> None:
    logits, labels = shapes(1, 9, 9)
    for variant in ("paper", "stopgrad", "monotone"):
        ours = segmentation_avu_loss(logits, labels, thresholds=[0.4], variant=variant, background=None, opening=1)
        torch.testing.assert_close(ours, avuc_loss(logits, labels, 0.4, variant=variant))


def test_gradient_is_that_of_avuc() -> None:
    logits, labels = shapes(1, 9, 9)
    z = logits.clone().requires_grad_()
    (ours,) = torch.autograd.grad(
        segmentation_avu_loss(z, labels, thresholds=[0.4], background=None, opening=1, variant="stopgrad"), z
    )
    (theirs,) = torch.autograd.grad(avuc_loss(z, labels, 0.4, variant="stopgrad"), z)
    torch.testing.assert_close(ours, theirs)


def test_a_thin_error_is_forgiven() -> None:
    truth = torch.zeros(1, 16, 16, dtype=torch.long)
    truth[:, 4:12, 4:12] = 1
    thin, thick = truth.clone(), truth.clone()
    thin[:, 4:12, 12] = 1  # the contour is one pixel off
    thick[:, 4:12, 12:15] = 1
    losses = [
        segmentation_avu_loss(12.0 * F.one_hot(predicted).movedim(-1, 1), truth, variant="monotone").item()
        for predicted in (truth, thin, thick)
    ]
    assert losses[0] == losses[1] == 0
    assert losses[2] > 0.1


def test_far_background_does_not_count() -> None:
    logits, labels = torch.zeros(1, 2, 16, 16), torch.zeros(1, 16, 16, dtype=torch.long)
    labels[:, 2:5, 2:5] = 1
    logits[:, 0] = torch.where(labels == 0, 9.0, -9.0)
    near = segmentation_avu_loss(logits, labels)
    changed = logits.clone()
    changed[:, 0, 12:, 12:] = 0.1  # unsure, but far from the object
    torch.testing.assert_close(segmentation_avu_loss(changed, labels), near)
    assert segmentation_avu_loss(changed, labels, background=None) > near + 0.01


def test_images_weigh_the_same_and_empty_ones_are_left_out() -> None:
    logits, labels = shapes(3, 10, 10)
    single = torch.stack([segmentation_avu_loss(z[None], y[None]) for z, y in zip(logits, labels, strict=True)])
    torch.testing.assert_close(segmentation_avu_loss(logits, labels), single.mean())
    empty = torch.zeros(1, 3, 10, 10, dtype=torch.float64)
    empty[:, 0] = 9
    both = torch.cat((logits, empty)), torch.cat((labels, torch.zeros(1, 10, 10, dtype=torch.long)))
    torch.testing.assert_close(segmentation_avu_loss(*both), single.mean())


def test_binary_segmentation() -> None:
    logits, labels = shapes(2, 9, 9, classes=2)
    one = (logits[:, 1] - logits[:, 0]).unsqueeze(1)
    expected = segmentation_avu_loss(logits, labels)
    torch.testing.assert_close(segmentation_avu_loss(one, labels), expected)
    torch.testing.assert_close(segmentation_avu_loss(torch.stack((one, one)), labels), expected)


def test_ignored_pixels_may_be_nan() -> None:
    logits, labels = shapes(1, 9, 9)
    labels[0, 0, 0] = -100
    expected = segmentation_avu_loss(logits, labels)
    logits[0, :, 0, 0] = 3.0
    torch.testing.assert_close(segmentation_avu_loss(logits, labels), expected)


def test_label_156_in_uint8_is_not_the_ignore_index() -> None:
    labels = torch.full((1, 9, 9), 156, dtype=torch.uint8)
    logits = torch.zeros(1, 200, 9, 9)
    logits[:, 156, :5], logits[:, 3, 5:] = 9.0, 9.0
    found = segmentation_avu_loss(logits, labels)
    assert found > 0.1
    assert found == segmentation_avu_loss(logits, labels.long())


def test_errors() -> None:
    logits, labels = shapes(1, 5, 5)
    with pytest.raises(InputError, match=r"logits \(N, C, H, W\)"):
        segmentation_avu_loss(logits[:, :, 0, 0], labels[:, 0, 0])
    with pytest.raises(InputError, match="odd"):
        segmentation_avu_loss(logits, labels, opening=2)
    with pytest.raises(InputError, match="2 widths"):
        segmentation_avu_loss(logits, labels, dilation=(1, 3, 3))
    with pytest.raises(InputError, match="thresholds"):
        segmentation_avu_loss(logits, labels, thresholds=())
    with pytest.raises(InputError, match="NaN"):
        segmentation_avu_loss(logits, labels, thresholds=[math.nan])
    with pytest.raises(InputError, match="variant"):
        segmentation_avu_loss(logits, labels, variant="soft")  # type: ignore[arg-type]
