"""Your own calibrator is any object with `transform`, and works wherever avuc takes one.

The calibrator below learns one bias for each class. This helps a model whose training data had other class
frequencies. Most of the training digits 0 to 4 are left out here, so the model says 5 to 9 too often. A temperature
halves the ECE and leaves the class-wise ECE as it was; a bias halves the class-wise ECE.

Topic: Extend
Picture: Mean probability of each digit minus its true share, as trained and with each calibrator.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from avuc import Predictions, TemperatureScaling, metrics


class ClassBias:
    """Calibrated logits are z + b: after the fit the mean probability of each class is its share of the labels."""

    def fit(self, logits: torch.Tensor, labels: torch.Tensor, steps: int = 100) -> "ClassBias":
        share = torch.bincount(labels, minlength=logits.shape[1]) / len(labels)
        self.bias_ = torch.zeros(logits.shape[1], dtype=logits.dtype)
        for _ in range(steps):
            self.bias_ += (share / (logits + self.bias_).softmax(-1).mean(0)).log()
        return self

    def transform(self, logits: torch.Tensor) -> torch.Tensor:
        return logits + self.bias_


x, y = load_digits(return_X_y=True)
x, order = x / 16 + 0.3 * np.random.default_rng(0).normal(size=x.shape), np.random.default_rng(1).permutation(len(y))
x, y = x[order], y[order]
kept = [row for row in range(600) if y[row] > 4 or row % 8 == 0]  # few of the digits 0 to 4
model = LogisticRegression(max_iter=1000).fit(x[kept], y[kept])
logits, labels = torch.tensor(model.predict_log_proba(x)), torch.tensor(y)

calibrators = {"as trained": None, "temperature": TemperatureScaling(), "class bias": ClassBias()}
figure, ax = plt.subplots()
for place, (name, calibrator) in enumerate(calibrators.items()):
    if calibrator:
        calibrator.fit(logits[600:1000], labels[600:1000])
    p = Predictions.from_logits(logits[1000:], labels[1000:], calibrator=calibrator)
    values = metrics.evaluate(p)
    print(f"{name:12}", ", ".join(f"{key} {values[key]:.3f}" for key in ("accuracy", "nll", "ece", "classwise_ece")))
    surplus = p.probs.mean(0) - torch.bincount(p.labels, minlength=10) / len(p)
    ax.bar(np.arange(10) + 0.27 * (place - 1), surplus, 0.25, label=name)
ax.set(xlabel="digit", ylabel="mean probability − true share", xticks=range(10))
ax.legend()
figure.savefig("own_calibrator.svg")
