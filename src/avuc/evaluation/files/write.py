"""Write a copy of saved predictions with new scores."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from avuc.core.atomic import atomic_path
from avuc.evaluation.files.find import FORMATS
from avuc.evaluation.files.layout import as_numbers
from avuc.evaluation.files.messages import file_error
from avuc.evaluation.files.score_file import ScoreFile


def write_scores(file: ScoreFile, scores: Tensor, destination: str | Path) -> None:
    """Write a copy of the file with new scores, in the same format; everything else is kept.

    Logits that are too large for the type of the file are shifted so that the largest logit of their row is 0, which
    changes no probability. NaN and infinity are an error.

    Args:
        file: the file, from `read_scores`.
        scores: new scores of the same shape and kind, for example `file.calibrated(calibrator)`.
        destination: path of the copy.

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation.files import read_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", logits=[[4.0, 0.0]], labels=[0])
    ...     file = read_scores(f"{folder}/a.npz")
    ...     write_scores(file, file.scores / 2, f"{folder}/b.npz")
    ...     read_scores(f"{folder}/b.npz").scores.tolist()
    [[2.0, 0.0]]
    """
    if scores.shape != file.scores.shape:
        raise file_error(
            file.path, f"has scores of shape {tuple(file.scores.shape)}, not {tuple(scores.shape)}", "keep the shape"
        )
    new, layout = scores.detach().cpu(), file.raw.layout
    if layout is not None and layout.left_out:
        problem = f"{layout.left_out:,} rows without a label were left out"
        raise file_error(file.path, problem, "read it with needs_labels=False, which keeps every row")
    if layout is not None and layout.binary:
        new = as_numbers(new, file.kind, file.dtype)
    new = as_file_dtype(file.path, new * file.scale if file.scale != 1 else new, file.dtype, file.kind)
    new = new if layout is None else layout.back(new)
    with atomic_path(destination) as temporary:
        FORMATS[file.path.suffix.lower()].write(file.path, temporary, file.raw, new)


def as_file_dtype(path: Path, scores: Tensor, dtype: torch.dtype, kind: str) -> Tensor:
    """Return the scores in the type of the file; raise if some are not finite.

    Rows of logits that are too large for the type are shifted so that the largest is 0, and clipped where softmax is 0
    anyway. Their probabilities stay the same.
    """
    cast = scores.to(dtype)
    overflow = (cast.isinf() & scores.isfinite()).any(-1, keepdim=True)
    if kind == "logits" and bool(overflow.any()):
        below = (scores - scores.amax(-1, keepdim=True)).clamp(min=torch.finfo(dtype).min)
        cast = torch.where(overflow, below.to(dtype), cast)
    if not bool(cast.isfinite().all()):
        raise file_error(path, "the new scores contain NaN or infinity", "check the calibrator")
    return cast
