"""Real predictions for the tests of guarantees: digits of scikit-learn by a logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from avuc import Predictions


@pytest.fixture(scope="session")
def digits() -> Predictions:
    """1,497 rows that the model was not trained on; about 16 % errors."""
    data, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(data))
    data, labels = data[order] / 16, labels[order]
    # noise makes it hard enough that sets have several classes
    data = data + np.random.default_rng(1).normal(size=data.shape) * 0.25
    model = LogisticRegression(max_iter=500, C=3.0).fit(data[:300], labels[:300])
    return Predictions(model.predict_proba(data[300:]), labels[300:])
