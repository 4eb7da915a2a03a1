"""Compare two models on the same rows: the interval of the difference is narrower than two intervals suggest.

Both models are judged on the same 1,197 digits, so hard digits are hard for both. `paired_intervals` resamples rows
and takes the difference each time. The separate intervals of the two models overlap for some metrics, although the
interval of the difference does not contain 0. This says nothing about other training runs: for that, train several
seeds. We chose a pair that shows the effect; a forest and a logistic regression differ too much.

Topic: Measure
Picture: Metrics of two models with separate intervals on the left, and intervals of their differences with 0 on the
right.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.model_selection import train_test_split

from avuc import Predictions, metrics

x, y = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(x / 16, y, train_size=600, random_state=0)
models = {"forest": RandomForestClassifier(100, random_state=0), "extra": ExtraTreesClassifier(100, random_state=0)}
results = {name: Predictions(m.fit(train_x, train_y).predict_proba(test_x), test_y) for name, m in models.items()}

names = ["accuracy", "nll", "brier", "ece"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
for shift, (model, predictions) in zip((-0.1, 0.1), results.items(), strict=True):
    for place, (name, found) in enumerate(metrics.intervals(predictions, names).items()):
        color = "C0" if shift < 0 else "C1"
        left.plot([place + shift], [found.value], "o", color=color, label=None if place else model)
        left.vlines(place + shift, found.low, found.high, color=color)
        print(f"{model:7} {name:9} {found.value:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f}")
left.set(title="each model with its interval", ylim=(0, None))
left.legend()
for place, (name, found) in enumerate(metrics.paired_intervals(results["forest"], results["extra"], names).items()):
    right.plot([place], [found.value], "o", color="C2")
    right.vlines(place, found.low, found.high, color="C2")
    print(f"forest − extra {name:9} {found.value:+.3f}, 95 % interval {found.low:+.3f} to {found.high:+.3f}")
right.axhline(0, color="C4", linestyle=":")
right.set_title("forest − extra trees, on the same rows")
for ax in (left, right):
    ax.set_xticks(range(len(names)), names)
figure.savefig("compare_models.svg")
