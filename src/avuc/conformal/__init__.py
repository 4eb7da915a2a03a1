"""Guarantees from held-out predictions: sets that contain the true class, and answers whose error rate is limited.

classifier.py      ConformalClassifier: sets of classes with a coverage
selective.py       SelectiveClassifier: answer only where the error rate is at most a limit
scores.py          threshold, APS and RAPS scores, and the sets they give
coverage.py        coverage and set sizes on labelled rows, with the interval that the law of coverage gives
images.py          the same for pixels, tokens and rows of groups, which are not independent
betting.py         error rates of their answers: tests and intervals that count images
distributions.py   binomial, beta and beta-binomial distributions
saved.py           JSON files;  inputs.py: what is accepted

Names are loaded when they are first used, so `distributions` can be imported without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avuc.conformal.classifier import ConformalClassifier
    from avuc.conformal.selective import SelectiveClassifier

__all__ = ["ConformalClassifier", "SelectiveClassifier"]

_HOME = {"ConformalClassifier": "classifier", "SelectiveClassifier": "selective"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
