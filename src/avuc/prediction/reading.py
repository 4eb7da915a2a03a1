"""One pass of the samples over a dataset in memory: running sums for one or several readings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from avuc.core.progress import Progress
from avuc.core.tasks import binary_rows
from avuc.prediction.checks import refuse_nan
from avuc.prediction.inputs import Batch, Batches
from avuc.prediction.parts import Part
from avuc.prediction.rows import RowLayout
from avuc.prediction.running_sums import SampleSums, monte_carlo_error
from avuc.prediction.task import Task
from avuc.predictions import HasTransform
from avuc.predictions.rows import check_calibrator_kind

# number of single samples between two checks for NaN: each check makes the GPU wait for the host
CHECK_EVERY = 16
# fewer samples give no usable estimate of the Monte Carlo error
FEWEST_SAMPLES = 8


@dataclass(frozen=True)
class Reading:
    """One of several predictions from the same samples (`Predictor.read`).

    Attributes:
        samples: how many of the samples to use; None: all.
        calibrator: its `transform` is applied to the logits of each sample; None: no calibration.
    """

    samples: int | None = None
    calibrator: HasTransform | None = None


class Plan(NamedTuple):
    """How the samples run over one dataset.

    Attributes:
        readings: the predictions to make.
        limits: the most samples of each.
        tolerance: the Monte Carlo error at which to stop; None: run all samples.
        num_draws: how many samples the posterior has; None: no limit.
        start: numbers of batches and images that came before, for messages.
    """

    readings: Sequence[Reading]
    limits: Sequence[int]
    tolerance: float | None
    num_draws: int | None
    start: tuple[int, int] = (0, 0)


# samples, batch, logits (samples, images, …)
Chunk = tuple[range, Batch, Tensor]


def averages(
    chunks: Iterable[Chunk], batches: Batches, task: Task, plan: Plan, bar: Progress | None
) -> tuple[list[Part], int]:
    """Return the averages of each reading, and the number of samples that were used."""
    layout = RowLayout(batches.labels, task)
    for reading in plan.readings:
        check_calibrator_kind(reading.calibrator, multilabel=layout.multilabel)
    limits, limit = plan.limits, max(plan.limits)
    largest = limits.index(limit)
    sums: list[SampleSums] = []
    used, checked, width, error = 0, 0, 0, None
    chunk_flags: list[Tensor] = []  # which samples of a chunk held NaN, batch by batch
    unchecked: list[Tensor] = []  # the same (samples, batches) since the last check
    for samples, batch, logits in chunks:
        rows = layout.rows(logits, batch)
        width = rows.shape[-1] if layout.multilabel else 0
        if not sums:
            total_rows = layout.total(batches.rows) * max(width, 1)
            sums = [SampleSums(total_rows, rows.device) for _ in plan.readings]
        row_range = layout.row_range(batch)
        row_range = slice(row_range.start * width, row_range.stop * width) if width else row_range
        for number, (total, reading, most) in enumerate(zip(sums, plan.readings, limits, strict=True)):
            if most > samples.start:
                some = rows[: most - samples.start]
                flags = total.add(row_range, probabilities(some, reading.calibrator, layout.multilabel))
                if number == largest:
                    chunk_flags.append(flags)
        if batch.rows.stop < batches.rows:
            continue
        used = samples.stop
        unchecked.append(torch.stack(chunk_flags, 1))
        chunk_flags.clear()
        # chunks of several samples take little time: one check after the last is enough
        automatic = plan.tolerance is not None
        if automatic or used == limit or (len(samples) == 1 and (used == 1 or used % CHECK_EVERY == 0)):
            refuse_nan(unchecked, checked, batches.size, batches.rows, plan.start)
            unchecked.clear()
            checked = used
        if automatic and used >= FEWEST_SAMPLES:
            error = monte_carlo_error(sums[0].probs, sums[0].squares, used)
        if bar is not None:
            bar.advance(len(samples), note="" if error is None else f"error {error:.4f}")
        if plan.tolerance is not None and error is not None and error <= plan.tolerance:
            break
    parts = [_part(total, layout, min(n, used), plan, width) for total, n in zip(sums, limits, strict=True)]
    return parts, used


def probabilities(logits: Tensor, calibrator: HasTransform | None, multilabel: bool = False) -> Tensor:
    """Return probabilities (S, M, C); the calibrator gets the logits of all samples as rows (samples × images, C).

    Of a multi-label model, the probabilities are (S, M × L, 2): no and yes for each decision.
    """
    if calibrator is not None:
        logits = calibrator.transform(logits.flatten(0, 1)).view(logits.shape)
    return (binary_rows(logits.flatten(1), "logits") if multilabel else logits).softmax(-1)


def _part(sums: SampleSums, layout: RowLayout, used: int, plan: Plan, width: int) -> Part:
    error = monte_carlo_error(sums.probs, sums.squares, used, plan.num_draws)
    probs, expected = sums.means(used)
    labels = layout.labels
    labels = torch.full((len(probs),), -1) if labels is None else labels.flatten()
    labels = labels.to(probs.device)
    return Part(probs, labels, expected, used, error, layout.shape, layout.positions, width)
