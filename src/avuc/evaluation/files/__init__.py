"""Read and write saved predictions."""

from avuc.evaluation.files.read import open_scores, read_scores, write_scores
from avuc.evaluation.files.score_file import ScoreFile, ScoreStream, describe

__all__ = ["ScoreFile", "ScoreStream", "describe", "open_scores", "read_scores", "write_scores"]
