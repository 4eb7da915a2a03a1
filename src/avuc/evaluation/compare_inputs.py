"""What `compare` takes: a file of scores, predictions, or arrays of logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from avuc.calibration import logits_from_probs
from avuc.calibration.inputs import as_labels, as_logits
from avuc.calibration.layouts import fit_groups, fit_rows
from avuc.core.errors import InputError
from avuc.core.row_groups import Array, images_or_groups
from avuc.evaluation.files import ScoreFile
from avuc.evaluation.files.row_groups import file_groups
from avuc.predictions import MultiLabelPredictions, Predictions


class Compared(NamedTuple):
    """Labelled scores, on the CPU.

    Attributes:
        before: the predictions without a calibrator.
        logits: (M, C), or (S, M, C) with draws, of the same rows.
        names: of the classes, or None.
        path: the file, for messages; None: there is none.
        groups: (M,) the number of the image or group of each row; None: rows are independent.
    """

    before: Predictions
    logits: Tensor
    names: tuple[str, ...] | None = None
    path: Path | None = None
    groups: Array | None = None

    def predictions(self, calibrator: Any) -> Predictions:
        """Return the predictions with a calibrator."""
        build = Predictions.from_samples if self.logits.ndim == 3 else Predictions.from_logits
        return build(self.logits, self.before.labels, calibrator=calibrator, check=False)

    def error(self, problem: InputError) -> InputError:
        """Return the error with the name of the file."""
        return problem if self.path is None else InputError(f"{self.path}: {problem}")


def compared(
    scores: ScoreFile | Predictions | Any,
    labels: Any,
    class_dim: int | None,
    ignore_index: int | None,
    groups: Any = None,
) -> Compared:
    """Return the scores that `compare` was given.

    Of `Predictions` only the mean over samples is known, so the calibrator acts on its logarithm.

    >>> compared([[2.0, 0.0], [0.0, 1.0]], [0, -100], None, -100).before.labels
    tensor([0])
    """
    if isinstance(scores, MultiLabelPredictions):
        raise InputError(
            "compare is for one class of many; for a multi-label model use check_calibrator(MultiLabelCalibrator(), "
            "logits, labels)"
        )
    if labels is not None and isinstance(scores, Predictions | ScoreFile):
        raise InputError("these scores have labels of their own; leave `labels` out")
    if isinstance(scores, ScoreFile):
        units = file_groups(scores, groups)
        return Compared(scores.predictions(), scores.logits(), scores.names, scores.path, units)
    if isinstance(scores, Predictions):
        before = scores.to("cpu")
        if bool((before.labels < 0).any()):
            raise InputError("compare needs a label for each row; some of these predictions have none (−1)")
        units = images_or_groups(before.shape, before.positions, len(before), groups)
        return Compared(before, logits_from_probs(before.probs), groups=units)
    if labels is None:
        raise InputError("compare needs a file from read_scores, Predictions, or logits with labels=")
    rows = fit_rows(scores, labels, None, class_dim=class_dim, ignore_index=ignore_index)
    logits = as_logits(rows.logits).detach().cpu()
    build = Predictions.from_samples if logits.ndim == 3 else Predictions.from_logits
    before = build(logits, as_labels(rows.labels, logits), check=False)
    units = fit_groups(scores, labels, groups, class_dim=class_dim, ignore_index=ignore_index)
    return Compared(before, logits, groups=units)
