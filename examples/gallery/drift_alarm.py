"""Conformal coverage is a drift alarm whose rate of false alarms you know.

Each week 60 digits are labelled, and `check` compares their coverage with its 99 % interval. As long as nothing
changes, about one week in a hundred raises a false alarm. From week 11 on the camera loses contrast a little more each
week, and the alarm follows. Small weekly samples make wide intervals: the first weeks of a slow drift stay unnoticed.

Topic: Select and guarantee
Picture: Weekly coverage with its interval; it leaves the interval some weeks after the drift began, and points turn
orange.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from avuc.conformal import ConformalClassifier

x, y = load_digits(return_X_y=True)
train_x, rest_x, train_y, rest_y = train_test_split(x / 16, y, train_size=400, random_state=0)
held_x, new_x, held_y, new_y = train_test_split(rest_x, rest_y, train_size=400, random_state=0)
model = LogisticRegression(max_iter=1000).fit(train_x, train_y)
conformal = ConformalClassifier("threshold", coverage=0.9).fit(model.predict_proba(held_x), held_y)

weeks, rng = range(1, 21), np.random.default_rng(0)
checks = []
for week in weeks:
    rows = rng.choice(len(new_y), 60, replace=False)
    contrast = 1 - 0.09 * max(0, week - 10)
    checks.append(conformal.check(model.predict_proba(contrast * new_x[rows]), new_y[rows], level=0.99))
    if checks[-1].drift:
        print(f"week {week}: contrast {contrast:.2f}, coverage {checks[-1].coverage:.2f}, alarm")

figure, ax = plt.subplots()
ax.fill_between(weeks, [c.low for c in checks], [c.high for c in checks], color="C4", alpha=0.15, label="99 % interval")
ax.plot(weeks, [c.coverage for c in checks], color="C4", linewidth=1)
for alarm, colour in ((False, "C0"), (True, "C1")):
    shown = [(week, c.coverage) for week, c in zip(weeks, checks, strict=True) if c.drift is alarm]
    ax.scatter(*zip(*shown, strict=True), color=colour, zorder=3, label="alarm" if alarm else "no alarm")
ax.axvline(10.5, color="C4", linestyle=":")
ax.set(xlabel="week (the drift begins at the dotted line)", ylabel="coverage of the sets", ylim=(0, 1.03))
ax.legend()
figure.savefig("drift_alarm.svg")
