"""Data and one thread for the tests of the scikit-learn adapter."""

from __future__ import annotations

import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """BLAS threads that wait for one another cost more than these small fits."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def digits():
    """Training and test rows of scikit-learn's digits: X_train, X_test, y_train, y_test."""
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)


@pytest.fixture(scope="session")
def cancer():
    """Training and test rows of the breast cancer data with text labels."""
    data = load_breast_cancer()
    return train_test_split(data.data, data.target_names[data.target], test_size=0.5, random_state=0)
