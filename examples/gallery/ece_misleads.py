"""A model that knows nothing can have an ECE of zero.

The first model always answers with the frequencies of the classes. Its confidence is right on average, so its ECE is
nearly 0, but it cannot tell a benign tumour from a malignant one. NLL and the Brier score are proper scores and see
the difference, and AURC shows that its confidence does not rank its mistakes. Report them with ECE.

Topic: Measure
Picture: Bars of five metrics for a constant model and a real one; only ECE prefers the constant one.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from avuc import Predictions, metrics

x, y = load_breast_cancer(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.5, random_state=0, stratify=y)
frequencies = np.bincount(train_y) / len(train_y)
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(train_x, train_y)
models = {
    "constant": Predictions(np.tile(frequencies, (len(test_y), 1)), test_y),
    "logistic": Predictions(model.predict_proba(test_x), test_y),
}

names = {"ece": "ECE", "nll": "NLL", "brier": "Brier score", "accuracy": "accuracy", "aurc": "AURC"}
figure, axes = plt.subplots(1, len(names), figsize=(9, 3.2), layout="constrained")
for model, predictions in models.items():
    values = metrics.evaluate(predictions)
    print(f"{model:9}", ", ".join(f"{title} {values[name]:.3f}" for name, title in names.items()))
    for ax, (name, title) in zip(axes, names.items(), strict=True):
        ax.bar(model, values[name])
        ax.set_title(f"{title}\n{'higher' if name == 'accuracy' else 'lower'} is better")
figure.savefig("ece_misleads.svg")
