"""AvU as a loss for segmentation (Mody et al. 2024, arXiv 2409.03470), for images and volumes.

It differs from `avuc_loss` in what it sums over:

    per image       the quadrants are those of one image, so a large image does not outweigh a small one
    thresholds      the loss is the mean over thresholds .05, .10 … .40 nats, so none has to be learned
    region          only voxels near the ground truth or the prediction count (both dilated by 5 voxels)
    small errors    errors that an opening by 3 voxels removes, such as those along a contour, count as accurate

    L = mean over images and thresholds of log(1 + (AU + IC)/(AC + IU))

Images in which no voxel counts are left out of the mean. The weights in the quadrants are those of `avuc_quadrants`,
and so is the pathology of variant "paper". Checked against the authors' TensorFlow code. Two details of it are left
out: small errors that are 3 mm or more from the ground truth count there, and confusions between two foreground classes
do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from avuc.core.data_parallel import Group, sum_over_ranks
from avuc.core.errors import InputError
from avuc.losses.analytic import or_empty
from avuc.losses.family import FamilyLoss
from avuc.losses.first_calls import warn_of_probs
from avuc.losses.inputs import check_shapes, checked_threshold, checked_whole, one_of, refuse_nan
from avuc.losses.layout import standard_layout
from avuc.losses.quadrants import SampleStatistics, mass, sample_statistics
from avuc.uncertainty import highest_certain

SegmentationVariant = Literal["paper", "stopgrad", "monotone"]
SEGMENTATION_VARIANTS: tuple[str, ...] = get_args(SegmentationVariant)
THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
Size = int | Sequence[int]


def segmentation_avu_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    variant: SegmentationVariant = "paper",
    background: int | None = 0,
    dilation: Size = 5,
    opening: Size = 3,
    ignore_index: int = -100,
    weights: Tensor | None = None,
    group: Group = None,
    class_dim: int | None = None,
) -> Tensor:
    """Return the AvU loss of segmented images, a tensor without dimensions. Add it to the cross-entropy.

        L = mean over images and thresholds of log(1 + (AU + IC)/(AC + IU))

    Args:
        logits: (N, C, H, W) or (N, C, D, H, W); ([S,] N, C, *spatial) for S posterior samples. One logit per pixel,
            (N, 1, H, W), is a binary segmentation.
        labels: class indices, (N, *spatial).
        thresholds: entropies in nats up to which a voxel is certain (default .05, .10 … .40).
        variant: "paper" (default), "stopgrad" or "monotone"; see `avuc_quadrants`.
        background: the class that is no object (default 0). Voxels far from every object, labelled or predicted, do not
            count. None: every voxel counts.
        dilation: how far "near" is: width of the box, in voxels, around each voxel of an object (default 5). A sequence
            has one width for each spatial dimension, (1, 5, 5) for volumes of thick slices.
        opening: errors in which no box of this width fits count as accurate (default 3; 1: every error counts).
        ignore_index: label of the voxels to leave out (default −100).
        weights: weight of each voxel, same shape as `labels`. Default None: 1 each.
        group: the data-parallel processes that share a batch; the mean is over the images of all of them.
        class_dim: the dimension of the classes. Default None: the one after N.

    >>> labels = torch.zeros(1, 8, 8, dtype=torch.long)
    >>> labels[:, 2:6, 2:6] = 1
    >>> logits = 8.0 * F.one_hot(labels).movedim(-1, 1)  # right and certain
    >>> segmentation_avu_loss(logits, labels).item()
    0.0
    """
    one_of("variant", variant, SEGMENTATION_VARIANTS)
    levels = checked_thresholds(thresholds)
    rows, flat = standard_layout(logits, labels, None, class_dim)
    if flat.shape == labels.shape:
        logits = rows
    else:  # a binary segmentation became rows ([S,] M, 2)
        logits = rows.reshape(*rows.shape[:-2], *labels.shape, 2).movedim(-1, rows.ndim - 1)
        labels = flat.reshape(labels.shape)
    check_shapes(logits, labels)
    labels = labels.long()  # in uint8, label 156 and an ignore_index of −100 are the same bits
    check_spatial(logits, labels)
    statistics = sample_statistics(logits, labels, "entropy", ignore_index, weights)
    statistics = counted(statistics, labels, background, dilation, opening, ignore_index)
    loss = segmentation_from_statistics(statistics, labels.shape[0], levels, variant, group)
    refuse_nan(loss, "logits")
    warn_of_probs("segmentation_avu_loss", logits, labels)
    return loss


def check_spatial(logits: Tensor, labels: Tensor) -> None:
    """Raise `InputError` unless the labels are those of images or volumes."""
    if labels.ndim not in (3, 4):
        raise InputError(
            "segmentation_avu: give logits (N, C, H, W) or (N, C, D, H, W) and labels (N, H, W) or (N, D, H, W); "
            f"found {tuple(logits.shape)} and {tuple(labels.shape)}"
        )


def counted(
    statistics: SampleStatistics,
    labels: Tensor,
    background: int | None,
    dilation: Size,
    opening: Size,
    ignore_index: int,
) -> SampleStatistics:
    """Return the statistics with small errors as accurate, and weight 0 for voxels far from every object."""
    assert statistics.predicted is not None
    predicted, valid = statistics.predicted.reshape(labels.shape), labels != ignore_index
    box = _sizes("opening", opening, labels.ndim - 1)
    large = _dilated(_eroded((predicted != labels) & valid, box), box)
    weight = statistics.weight
    if background is not None:
        objects = ((labels != background) | (predicted != background)) & valid
        near = _dilated(objects, _sizes("dilation", dilation, labels.ndim - 1))
        weight = weight * near.reshape(-1)
    return statistics._replace(correct=~large.reshape(-1), weight=weight)


def segmentation_from_statistics(
    statistics: SampleStatistics, images: int, thresholds: Tensor, variant: SegmentationVariant, group: Group = None
) -> Tensor:
    """Return the loss of voxels whose statistics are known; those of each image follow one another."""
    used = statistics.weight > 0  # a voxel of weight 0 may be NaN
    u, p = torch.where(used, statistics.uncertainty, 0.0), torch.where(used, statistics.confidence, 1.0)
    scaled, no = torch.tanh(u), torch.zeros_like(statistics.correct)
    right = statistics.correct
    certain = mass(p, scaled, right, no, variant) * statistics.weight
    uncertain = mass(p, scaled, right, ~no, variant) * statistics.weight
    # A voxel is certain from the first threshold that its u does not exceed. Sums by that threshold need one pass, and
    # sums up to a threshold and above it are then cumulative sums: no voxels × thresholds tensor.
    levels = highest_certain(thresholds.to(u)).contiguous()
    first = torch.bucketize(u.detach(), levels)
    image = torch.arange(images, device=u.device).repeat_interleave(u.numel() // max(images, 1))
    cell = image * (len(levels) + 1) + first
    table = torch.stack((certain * right, certain * ~right, uncertain * right, uncertain * ~right))
    sums = table.new_zeros(4, images * (len(levels) + 1)).index_add(1, cell, table)
    ac, ic, au, iu = sums.reshape(4, images, len(levels) + 1)
    upto = [part.cumsum(dim=1)[:, :-1] for part in (ac, ic)]
    above = [part.flip(1).cumsum(dim=1).flip(1)[:, 1:] for part in (au, iu)]
    good, bad = upto[0] + above[1], upto[1] + above[0]
    losses = torch.log1p(bad / or_empty(good)).mean(dim=1)
    labelled = statistics.weight.new_zeros(images).index_add(0, image, statistics.weight) > 0
    total, count = sum_over_ranks(torch.stack(((losses * labelled).sum(), labelled.sum().to(losses))), group)
    loss: Tensor = total / torch.where(count > 0, count, 1.0)
    return loss


def checked_thresholds(thresholds: Sequence[float]) -> Tensor:
    """Return the thresholds in ascending order, float64."""
    if not isinstance(thresholds, Sequence) or not thresholds:
        raise InputError(f"segmentation_avu: thresholds must be a sequence of entropies in nats; found {thresholds!r}")
    return torch.tensor(sorted(float(checked_threshold(level, "paper")) for level in thresholds), dtype=torch.float64)


def _sizes(name: str, size: Size, dimensions: int) -> tuple[int, ...]:
    size = _checked_size(name, size)
    sizes = (size,) * dimensions if isinstance(size, int) else tuple(size)
    if len(sizes) != dimensions:
        raise InputError(f"segmentation_avu: {name} needs {dimensions} widths, one for each dimension; found {size!r}")
    return sizes


def _checked_size(name: str, size: Any) -> int | tuple[int, ...]:
    """Return one odd width, or one for each of two or three dimensions."""
    several = isinstance(size, Iterable) and not isinstance(size, str)
    unchecked = tuple(size) if several else (size,)
    widths = tuple(checked_whole(f"segmentation_avu: {name}", width, least=1) for width in unchecked)
    if several and len(widths) not in (2, 3):
        raise InputError(
            f"segmentation_avu: {name} has one width, or one for each of 2 or 3 dimensions; found {size!r}"
        )
    if not all(width % 2 for width in widths):
        raise InputError(f"segmentation_avu: {name} must be odd, so that the box has a middle; found {size!r}")
    return widths if several else widths[0]


def _checked_background(background: Any) -> int | None:
    if background is not None and (isinstance(background, bool) or not isinstance(background, Integral)):
        raise InputError(
            f"segmentation_avu: background must be a class, or None if every voxel counts; found {background!r}"
        )
    return None if background is None else int(background)


def _dilated(mask: Tensor, sizes: tuple[int, ...]) -> Tensor:
    pool = F.max_pool2d if len(sizes) == 2 else F.max_pool3d
    padding = tuple(size // 2 for size in sizes)
    pooled: Tensor = pool(mask.unsqueeze(1).float(), sizes, stride=1, padding=padding)
    return pooled.squeeze(1) > 0


def _eroded(mask: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return where the whole box is in the mask; beyond the edge of the image everything is."""
    return ~_dilated(~mask, sizes)


class SegmentationAvULoss(FamilyLoss):
    """`segmentation_avu_loss` times β, as a module. Add it to the cross-entropy.

    Args:
        beta: factor of the loss (default 1).
        variant: "paper" (default), "stopgrad" or "monotone"; see `avuc_quadrants`.
        thresholds: entropies in nats (default .05, .10 … .40).
        background: the class that is no object (default 0); None: every voxel counts.
        dilation, opening: widths in voxels; see `segmentation_avu_loss`.
        ignore_index: label of the voxels to leave out (default −100).
        group: the data-parallel processes that share a batch: None (default) for all, False for this process alone.
        class_dim: the dimension of the classes. Default None: the one after N.

    >>> logits = torch.randn(2, 3, 8, 8, requires_grad=True)
    >>> SegmentationAvULoss(variant="monotone")(logits, torch.randint(0, 3, (2, 8, 8))).backward()
    """

    function = staticmethod(segmentation_avu_loss)
    variants = SEGMENTATION_VARIANTS
    options = ("thresholds", "background", "dilation", "opening")

    def __init__(
        self,
        beta: float = 1.0,
        variant: SegmentationVariant = "paper",
        *,
        thresholds: Sequence[float] = THRESHOLDS,
        background: int | None = 0,
        dilation: Size = 5,
        opening: Size = 3,
        ignore_index: int = -100,
        group: Group = None,
        class_dim: int | None = None,
    ) -> None:
        super().__init__(beta, variant, ignore_index, group, class_dim)
        checked_thresholds(thresholds)
        self.thresholds: tuple[float, ...] = tuple(float(level) for level in thresholds)
        self.background: int | None = _checked_background(background)
        self.dilation: Size = _checked_size("dilation", dilation)
        self.opening: Size = _checked_size("opening", opening)

    def check(self, logits: Tensor, labels: Tensor) -> None:
        """Raise `InputError` if a batch is not one of images or volumes with the loss's number of widths."""
        check_spatial(logits, labels)
        for name in ("dilation", "opening"):
            _sizes(name, getattr(self, name), labels.ndim - 1)
