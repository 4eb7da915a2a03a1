"""Answers with a guarantee: sets that contain the true digit, and answers of which at most 5 % are wrong."""

from __future__ import annotations

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from avuc import Predictions
from avuc.conformal import ConformalClassifier, SelectiveClassifier

images, digits = load_digits(return_X_y=True)
images, rest, digits, rest_digits = train_test_split(images / 16, digits, train_size=200, random_state=0)
model = LogisticRegression(max_iter=1000).fit(images, digits)

# two parts that the model has not seen: one to fit the guarantee, one as the future
held_out, future, held_digits, future_digits = train_test_split(rest, rest_digits, test_size=0.5, random_state=0)
fit = Predictions(model.predict_proba(held_out), held_digits)
new = Predictions(model.predict_proba(future), future_digits)

conformal = ConformalClassifier("aps", coverage=0.95).fit(fit)
print(conformal.check(new).sentence)
print("first sets:", [row.nonzero()[:, 0].tolist() for row in conformal.predict_sets(new)[:5]])

selective = SelectiveClassifier(risk=0.05).fit(fit)
print(selective.check(new).sentence)
