"""Anybody's saved predictions: find the scores and the labels in a file, check them, and say what was found."""

from avuc.scores.file import FORMATS, KINDS, ScoreFile, describe, read_scores, reads_also, write_scores
from avuc.scores.names import LABEL_NAMES, SCORE_NAMES

__all__ = [
    "FORMATS",
    "KINDS",
    "LABEL_NAMES",
    "SCORE_NAMES",
    "ScoreFile",
    "describe",
    "read_scores",
    "reads_also",
    "write_scores",
]
