"""Read and write saved predictions of any framework: .npz, .npy, .safetensors, .parquet and .csv.

The way from a file to checked scores:

1. open           find.py chooses the reader by the suffix: arrays.py (.npz, .npy, .safetensors), parquet.py with
                  arrow.py, csv.py with csv_header.py. The result is `RawScores` (names.py).
2. find           Arrays are found by name (names.py), columns of a table by choose_columns.py with the rules in
                  column_rules.py and columns.py. Labels may come from a second file (find.py).
3. summarise      summary.py computes a `Summary` of all rows, block by block.
4. check, decide  checks.py checks shapes, finite scores and labels; kinds.py decides logits, probabilities or
                  percentages. The result is a `Decision`.
5. blocks         read.py returns a `ScoreFile` in memory, or a `ScoreStream` that reads blocks (score_file.py,
                  sources.py).

Whatever is ambiguous is refused with an `InputError` that names the option to pass (messages.py).
"""

from avuc.evaluation.files.read import open_scores, read_scores, write_scores
from avuc.evaluation.files.score_file import ScoreFile, ScoreStream, describe

__all__ = ["ScoreFile", "ScoreStream", "describe", "open_scores", "read_scores", "write_scores"]
