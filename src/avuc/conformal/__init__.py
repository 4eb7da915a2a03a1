"""Guarantees from held-out predictions: sets that contain the true class, and answers whose error rate is limited.

classifier.py      ConformalClassifier: sets of classes with a coverage
selective.py       SelectiveClassifier: answer only where the error rate is at most a limit
scores.py          threshold, APS and RAPS scores, and the sets they give
coverage.py        coverage and set sizes on labelled rows, with the interval that the law of coverage gives
distributions.py   binomial, beta and beta-binomial distributions
saved.py           JSON files;  inputs.py: what is accepted
"""

from avuc.conformal.classifier import ConformalClassifier
from avuc.conformal.selective import SelectiveClassifier

__all__ = ["ConformalClassifier", "SelectiveClassifier"]
