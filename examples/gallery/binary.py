"""One score per row is enough for a binary classifier.

Naive Bayes counts the same evidence many times, so its probabilities for breast tumours are far too close to 0 and 1.
`TemperatureScaling` takes its logits as they are, (N,), and learns one number from held-out patients. No
predicted class changes, only the confidence.

Topic: Calibrate
Picture: Histogram of the probabilities before and after scaling; before, nearly all are close to 0 or 1.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

from avuc import Predictions, TemperatureScaling, metrics

x, y = load_breast_cancer(return_X_y=True)
train_x, rest_x, train_y, rest_y = train_test_split(x, y, train_size=0.3, random_state=0)
held_x, test_x, held_y, test_y = train_test_split(rest_x, rest_y, test_size=0.5, random_state=0)
model = GaussianNB().fit(train_x, train_y)


def logits(rows: np.ndarray) -> np.ndarray:
    log_probs = model.predict_log_proba(rows)
    return log_probs[:, 1] - log_probs[:, 0]


calibrator = TemperatureScaling().fit(logits(held_x), held_y)
results = {
    "naive Bayes": Predictions.from_logits(logits(test_x), test_y),
    f"T = {calibrator.temperature_:.1f}": Predictions.from_logits(logits(test_x), test_y, calibrator=calibrator),
}
figure, ax = plt.subplots()
bins = np.linspace(0, 1, 21)
for name, predictions in results.items():
    ax.hist(predictions.probs[:, 1].numpy(), bins, histtype="step", linewidth=1.8, label=name)
    values = metrics.evaluate(predictions)
    print(f"{name:12}", ", ".join(f"{key} {values[key]:.3f}" for key in ("accuracy", "nll", "brier", "ece")))
ax.set(xlabel="probability of a benign tumour", ylabel="test patients")
ax.legend()
figure.savefig("binary.svg")
