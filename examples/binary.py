"""A binary classifier with one score per row: breast cancer with naive Bayes, which is far too sure of itself.

python examples/binary.py
"""

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

from avuc import Predictions, TemperatureScaling, metrics
from avuc.calibration import check_calibrator
from avuc.evaluation import evaluate

data = load_breast_cancer()
train_x, rest_x, train_y, rest_y = train_test_split(data.data, data.target, test_size=0.6, random_state=0)
held_x, test_x, held_y, test_y = train_test_split(rest_x, rest_y, test_size=0.5, random_state=0)
model = GaussianNB().fit(train_x, train_y)


def logits(rows):
    """Return one logit per row, log p − log (1 − p)."""
    log_probs = model.predict_log_proba(rows)
    return log_probs[:, 1] - log_probs[:, 0]


# one logit (N,) or (N, 1) is binary: no need for two columns
calibrator = TemperatureScaling().fit(logits(held_x), held_y)
check = check_calibrator(calibrator, logits(held_x), held_y)
print(f"temperature {calibrator.temperature_:.1f}; worse than no calibrator: {check.worse}")

before = Predictions.from_logits(logits(test_x), test_y)
after = Predictions.from_logits(logits(test_x), test_y, calibrator=calibrator)
for name, predictions in (("naive Bayes", before), ("calibrated", after)):
    result = evaluate(predictions, replicates=500)
    nll, (low, high) = result.metrics["nll"], result.intervals["nll"]
    print(
        f"{name}: accuracy {result.metrics['accuracy']:.3f}, ece {result.metrics['ece']:.3f}, nll {nll:.3f} "
        f"({low:.3f} to {high:.3f})"
    )

# one probability per row works in every metric, too
p = after.probs[:, 1]
print(f"from probabilities (N,): nll {metrics.nll(p, test_y):.3f}, Brier score {metrics.brier(p, test_y):.3f}")
