"""Most of the calibration error can come from one group.

Tumours are grouped by their mean radius, which the doctor knows before asking the model. Naive Bayes is judged within
each group, with intervals. It is too sure everywhere, but most of the calibration error is in the third quarter:
tumours between the clearly small and the clearly large ones. The figure for all patients hides this.

Topic: Measure
Picture: Mean confidence and accuracy with intervals for four groups of tumours from small to large.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_predict
from sklearn.naive_bayes import GaussianNB

from avuc import Predictions, metrics
from avuc.evaluation.groups import evaluate_groups

data = load_breast_cancer()
probs = cross_val_predict(GaussianNB(), data.data, data.target, cv=10, method="predict_proba")
predictions = Predictions(probs, data.target)
radius = data.data[:, list(data.feature_names).index("mean radius")]
edges = np.quantile(radius, [0.25, 0.5, 0.75])
names = np.array(["1: small", "2: medium", "3: large", "4: very large"])[np.searchsorted(edges, radius)]

figure, ax = plt.subplots()
groups = evaluate_groups(predictions, names)
for place, group in enumerate(groups):
    accuracy = group.metrics["accuracy"]
    ax.errorbar(
        [place], [accuracy.value], [[accuracy.value - accuracy.low], [accuracy.high - accuracy.value]], fmt="C0o"
    )
    ax.plot([place], [group.confidence], "C1s")
    ece = group.metrics["ece"]
    print(
        f"{group.name:14} {group.rows} rows, accuracy {accuracy.value:.3f}, confidence {group.confidence:.3f}, ", end=""
    )
    print(f"ECE {ece.value:.3f} ({ece.low:.3f} to {ece.high:.3f})")
print(f"all rows: ECE {metrics.ece(predictions.probs, predictions.labels):.3f}")
ax.plot([], [], "C0o", label="accuracy, 95 % interval")
ax.plot([], [], "C1s", label="mean confidence")
ax.set_xticks(range(len(groups)), [group.name for group in groups])
ax.set_xlabel("mean radius of the tumour, quarters")
ax.legend()
figure.savefig("groups.svg")
