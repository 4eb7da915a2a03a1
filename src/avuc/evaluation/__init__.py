"""Evaluate saved predictions, and compare them before and after a calibrator.

    from avuc.evaluation import compare, evaluate
    from avuc.evaluation.files import read_scores

    file = read_scores("test.npz")                       # .npz, .npy, .safetensors, .parquet or .csv
    result = evaluate(file.predictions())                # metrics, intervals, curves
    calibrator, comparison = compare(file, "temperature")

result.py     EvaluationResult and its JSON document
evaluate.py   metric_values, which studies call too; evaluate
large.py      evaluate_large: the same for files that are read in blocks of rows
streaming.py  evaluate_streaming: the same with memory that does not grow with the rows
compare.py    compare: fit a calibrator and evaluate it on held-out rows; compare_inputs.py: what it takes;
              compare_result.py: what it returns
files/        read and write saved predictions of any format
"""

from avuc.evaluation.compare import Comparison, compare
from avuc.evaluation.evaluate import evaluate
from avuc.evaluation.evaluate import metric_values as metric_values
from avuc.evaluation.large import evaluate_large
from avuc.evaluation.result import EvaluationResult
from avuc.evaluation.streaming import evaluate_streaming

__all__ = [
    "Comparison",
    "EvaluationResult",
    "compare",
    "evaluate",
    "evaluate_large",
    "evaluate_streaming",
]
