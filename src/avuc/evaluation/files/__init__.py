"""Read and write saved predictions of any framework: .npz, .npy, .safetensors, .parquet, .csv and .tsv.

The way from a file to checked scores:

1. open           find.py chooses the reader in formats/ by the suffix: arrays.py (.npz, .npy, .safetensors), parquet.py
                  with arrow.py, csv.py with csv_header.py. The result is `RawScores` (names.py).
2. find           Arrays are found by name (names.py), columns of a table by columns/choose.py with the rules in
                  columns/rules.py, and columns/unprefixed.py where names do not begin like scores. Labels may come from
                  a second file (find.py, columns/match_rows.py).
3. lay out        decision/find_layout.py finds the classes of dense and binary scores, layout.py turns them into rows,
                  decision/class_order.py gives classes the names of text labels.
4. summarise      decision/summary.py computes a `Summary` of all rows, block by block.
5. check, decide  decision/checks.py checks shapes, finite scores and labels; kinds.py decides logits, probabilities or
                  percentages, binary.py the same for one number per row. The result is a `Decision`.
6. blocks         read.py, with the options in reading.py, returns a `ScoreFile` in memory, or a `ScoreStream` that
                  reads blocks (score_file.py, sources.py). write.py writes a copy with new scores; row_groups.py says
                  which rows belong to one image or group.

Whatever is ambiguous is refused with an `InputError` that names the option to pass (messages.py).
"""

from avuc.evaluation.files.read import open_scores, read_scores
from avuc.evaluation.files.score_file import ScoreFile, ScoreStream, describe
from avuc.evaluation.files.write import write_scores

__all__ = ["ScoreFile", "ScoreStream", "describe", "open_scores", "read_scores", "write_scores"]
