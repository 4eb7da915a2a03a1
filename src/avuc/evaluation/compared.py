"""What `compare` takes: a file of scores, predictions, or arrays of logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from avuc.calibration import logits_from_probs
from avuc.calibration.inputs import as_labels, as_logits
from avuc.calibration.layouts import fit_rows
from avuc.core.errors import InputError
from avuc.evaluation.files import ScoreFile
from avuc.predictions import MultiLabelPredictions, Predictions


class Compared(NamedTuple):
    """Labelled scores, on the CPU.

    Attributes:
        before: the predictions without a calibrator.
        logits: (M, C), or (S, M, C) with draws, of the same rows.
        names: of the classes, or None.
        path: the file, for messages; None: there is none.
    """

    before: Predictions
    logits: Tensor
    names: tuple[str, ...] | None = None
    path: Path | None = None

    def predictions(self, calibrator: Any) -> Predictions:
        """Return the predictions with a calibrator."""
        build = Predictions.from_samples if self.logits.ndim == 3 else Predictions.from_logits
        return build(self.logits, self.before.labels, calibrator=calibrator, check=False)

    def error(self, problem: InputError) -> InputError:
        """Return the error with the name of the file."""
        return problem if self.path is None else InputError(f"{self.path}: {problem}")


def compared(
    scores: ScoreFile | Predictions | Any, labels: Any, class_dim: int | None, ignore_index: int | None
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
        return Compared(scores.predictions(), scores.logits(), scores.names, scores.path)
    if isinstance(scores, Predictions):
        before = scores.to("cpu")
        if bool((before.labels < 0).any()):
            raise InputError("compare needs a label for each row; some of these predictions have none (−1)")
        return Compared(before, logits_from_probs(before.probs))
    if labels is None:
        raise InputError("compare needs a file from read_scores, Predictions, or logits with labels=")
    rows = fit_rows(scores, labels, None, class_dim=class_dim, ignore_index=ignore_index)
    logits = as_logits(rows.logits).detach().cpu()
    build = Predictions.from_samples if logits.ndim == 3 else Predictions.from_logits
    return Compared(build(logits, as_labels(rows.labels, logits), check=False), logits)
