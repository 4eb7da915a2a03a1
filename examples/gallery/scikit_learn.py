"""A random forest is underconfident, and one wrapper calibrates it.

A forest averages the votes of its trees, so it rarely gives a probability close to 1 even where it is always right.
`CalibratedClassifier` fits the forest and a temperature by cross-validation on the training data, and behaves like any
other scikit-learn classifier. A temperature below 1 makes probabilities more extreme.

Topic: Calibrate
Picture: Reliability of a random forest before and after calibration; before, the accuracy is above the confidence.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import avuc
from avuc import Predictions, metrics
from avuc.sklearn import CalibratedClassifier

x, y = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.5, random_state=0, stratify=y)
forest = RandomForestClassifier(50, random_state=0)
models = {
    "forest": forest,
    "calibrated": CalibratedClassifier(forest, method="temperature", cv=3),
}

figure, ax = plt.subplots()
for name, model in models.items():
    predictions = Predictions(model.fit(train_x, train_y).predict_proba(test_x), test_y)
    avuc.plot.reliability(predictions, label=name, ax=ax)
    values = metrics.evaluate(predictions)
    print(f"{name:10}", ", ".join(f"{key} {values[key]:.3f}" for key in ("accuracy", "ece", "uce", "nll")))
print(f"temperature {models['calibrated'].calibrator_.temperature_:.2f}")
figure.savefig("scikit_learn.svg")
