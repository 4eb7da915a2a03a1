"""Your own metric is a function of probabilities and labels, and gets an interval like all others.

Missing a malignant tumour costs more than a false alarm. The function below returns the mean cost of the best decision
that the probabilities allow. `bootstrap` gives its interval, and `paired_bootstrap` the interval of a difference
between two models on the same patients.

Topic: Extend
Picture: Mean cost per patient by the cost of a missed tumour for two models, with 95 % bands.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from avuc import metrics


def mean_cost(probs: np.ndarray, labels: np.ndarray, miss: float) -> float:
    """Return the mean cost if class 0 (malignant) costs `miss` when it is missed, and a false alarm costs 1."""
    probs, labels = np.asarray(probs), np.asarray(labels)
    alarm = probs[:, 0] * miss > probs[:, 1]  # the decision with the smaller expected cost
    return float(np.where(labels == 0, miss * ~alarm, alarm).mean())


x, y = load_breast_cancer(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.5, random_state=0, stratify=y)
models = {"naive Bayes": GaussianNB(), "logistic regression": make_pipeline(StandardScaler(), LogisticRegression())}
probs = {name: model.fit(train_x, train_y).predict_proba(test_x) for name, model in models.items()}

figure, ax = plt.subplots()
misses = [1, 2, 5, 10, 20, 50]
for name, p in probs.items():
    found = [metrics.bootstrap(lambda p, y, m=m: mean_cost(p, y, m), p, test_y, replicates=300) for m in misses]
    (line,) = ax.plot(misses, [each.value for each in found], "o-", label=name)
    ax.fill_between(misses, [e.low for e in found], [e.high for e in found], color=line.get_color(), alpha=0.18)
difference = metrics.paired_bootstrap(lambda p, y: mean_cost(p, y, 10), *probs.values(), test_y, replicates=300)
print(f"missed tumour costs 10: naive Bayes − logistic {difference.value:+.3f} per patient, ", end="")
print(f"95 % interval {difference.low:+.3f} to {difference.high:+.3f}")
ax.set(xlabel="cost of a missed malignant tumour (a false alarm costs 1)", ylabel="mean cost per patient", xscale="log")
ax.legend()
figure.savefig("own_metric.svg")
