"""Set a limit on the error rate of future answers.

`SelectiveClassifier(risk=0.05)` learns from held-out digits above which confidence it may answer, so that with 95 %
probability at most 5 % of all future answers are wrong. The error rates that come out are below the limit, because 748
held-out digits leave some doubt. For a smaller risk, fewer digits are answered. One split is shown.

Topic: Select and guarantee
Picture: Share of answered digits and error rate of the answers by the limit that was asked for; the errors stay below
it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from avuc import Predictions
from avuc.conformal import SelectiveClassifier

x, y = load_digits(return_X_y=True)
x = x / 16 + 0.3 * np.random.default_rng(0).normal(size=x.shape)  # so that there are mistakes
train_x, rest_x, train_y, rest_y = train_test_split(x, y, train_size=300, random_state=0)
held_x, new_x, held_y, new_y = train_test_split(rest_x, rest_y, test_size=0.5, random_state=0)
model = LogisticRegression(max_iter=1000).fit(train_x, train_y)
held_out = Predictions(model.predict_proba(held_x), held_y)
new = Predictions(model.predict_proba(new_x), new_y)

limits, answered, wrong = [0.03, 0.05, 0.075, 0.1, 0.15], [], []
for risk in limits:
    selective = SelectiveClassifier(risk=risk, level=0.95).fit(held_out)
    answers = selective.answers(new)
    answered.append(float(answers.float().mean()))
    wrong.append(float((~new.correct[answers]).float().mean()) if answers.any() else 0.0)
    print(f"limit {risk:.3f}: answers {answered[-1]:.0%} of the new digits, {wrong[-1]:.3f} of the answers are wrong")
print(f"without a limit: error rate {float((~new.correct).float().mean()):.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
left.plot(limits, answered, "o-")
left.set(xlabel="limit of the error rate", ylabel="share of digits answered", ylim=(0, 1))
right.plot(limits, wrong, "o-", label="error rate of the answers")
right.plot(limits, limits, "C4:", label="the limit")
right.set(xlabel="limit of the error rate", ylim=(0, None))
right.legend()
figure.savefig("risk_control.svg")
