"""Which rows of a file belong together: positions of one image or sentence, or rows of a group."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from avuc.core.row_groups import Array, images_or_groups
from avuc.core.tasks import not_ignored
from avuc.evaluation.files.score_file import BLOCK, ScoreFile, ScoreStream


def positions(file: ScoreFile) -> tuple[int, ...]:
    """Return the shape of the rows of a file: (N,), or (N, *spatial) for dense scores."""
    layout = file.raw.layout
    if layout is None or not layout.dense:
        return (file.num_rows,)
    return tuple(size for axis, size in enumerate(layout.shape) if axis >= layout.row_axis and axis != layout.axis)


def given_shape(file: ScoreFile) -> tuple[int, ...]:
    """Return the shape of all rows, with those that were left out: (N,), or (N, *spatial) if they are of images."""
    layout, images = file.raw.layout, file.raw.images
    if images is not None:
        return images.shape
    return positions(file) if layout is None or layout.dense else (layout.flat[-2],)


def row_positions(file: ScoreFile) -> Array:
    """Return the flat index of each row into `given_shape`."""
    images, kept = file.raw.images, file.places
    if images is not None:
        kept = images.positions
    numbers: Array = np.arange(file.num_rows) if kept is None else kept.cpu().numpy()
    return numbers


def file_groups(file: ScoreFile, groups: Any = None) -> Array | None:
    """Return the group number of each row, or its image number if `groups` is None; None if rows are independent.

    Args:
        file: from `read_scores`.
        groups: one name or number for each row of the file or each image; or for each row that was kept.
    """
    return images_or_groups(given_shape(file), torch.from_numpy(row_positions(file)), file.num_rows, groups)


def image_sizes(file: ScoreFile | ScoreStream) -> Array | None:
    """Return the number of rows of each image that has any, in their order; None if the rows are not of images."""
    counts = image_counts(file)
    return None if counts is None else counts[counts > 0]


def image_counts(file: ScoreFile | ScoreStream) -> Array | None:
    """Return the number of rows of every image, 0 if all were left out; None if the rows are not of images.

    The labels of a stream are read once; without labels every row counts.
    """
    layout, images = file.raw.layout, file.raw.images
    if images is not None:
        return np.bincount(images.positions.numpy() // math.prod(images.shape[1:]), minlength=images.shape[0])
    if layout is None or not layout.dense:
        return None
    count = layout.shape[layout.row_axis]
    pixels = layout.flat[-2] // count
    if isinstance(file, ScoreFile):
        return np.bincount(row_positions(file) // pixels, minlength=count) if pixels > 1 else None
    if file.raw.labels is None:
        return np.full(count, pixels)
    blocks = (block.reshape(len(block), -1) for block in file.raw.labels.blocks(max(1, BLOCK // pixels)))
    return np.concatenate([not_ignored(block, layout.ignore).sum(1).numpy() for block in blocks])
