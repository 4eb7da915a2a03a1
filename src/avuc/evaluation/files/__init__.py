"""Anybody's saved predictions: find the scores and the labels in a file, check them, and say what was found."""

from avuc.evaluation.files.file import KINDS, ScoreFile, describe, read_scores, write_scores
from avuc.evaluation.files.formats import FORMATS, reads_also
from avuc.evaluation.files.names import LABEL_NAMES, SCORE_NAMES
from avuc.evaluation.files.stream import ScoreStream, open_scores

__all__ = [
    "FORMATS",
    "KINDS",
    "LABEL_NAMES",
    "SCORE_NAMES",
    "ScoreFile",
    "ScoreStream",
    "describe",
    "open_scores",
    "read_scores",
    "reads_also",
    "write_scores",
]
