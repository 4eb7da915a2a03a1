"""A third collection of prediction sets for bench_posthoc.py: tables and texts that no choice was made on.

The rule was fixed before any set was calibrated: all CSV files of github.com/jbrownlee/Datasets with numbers only and
the class in the last column, without the data of scikit-learn (iris, wine, breast cancer); of
github.com/AcademiaSinicaNLPLab/sentiment_dataset the data that the second collection does not have. One split with
seed 200, models that the first two collections do not have, and linear models and trees on words.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from posthoc_sets import PredictionSet, trained

SEED = 200
# more rows are sampled; classes with fewer rows than the second number are left out
MOST_ROWS, LEAST_ROWS = 6_000, 10
TABLES = (
    "banknote_authentication",
    "ecoli",
    "glass",
    "haberman",
    "ionosphere",
    "mammography",
    "new-thyroid",
    "oil-spill",
    "phoneme",
    "pima-indians-diabetes",
    "sonar",
    "wheat-seeds",
    "winequality-red",
    "winequality-white",
)
TEXTS = {"trec": "TREC.train.all", "subj": "subj.all", "movie-reviews": "rt-polarity.all"}


def table_sets(folder: Path) -> Iterator[PredictionSet]:
    """Models of scikit-learn on the tables and texts of a folder.

    Args:
        folder: has the files of TABLES (with the suffix .csv) and of TEXTS.
    """
    from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, HistGradientBoostingClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    def words(model: Any) -> Any:
        return make_pipeline(TfidfVectorizer(ngram_range=(1, 2), min_df=2), model)

    models = {
        "kernel": lambda seed: make_pipeline(Nystroem(n_components=60, random_state=seed), LogisticRegression(C=100)),
        "bagging": lambda seed: BaggingClassifier(n_estimators=30, random_state=seed),
        "deep-mlp": lambda seed: MLPClassifier((64, 64, 64), max_iter=200, random_state=seed),
        "ridge": lambda seed: RidgeClassifier(),
        "long-boosting": lambda seed: HistGradientBoostingClassifier(max_iter=100, random_state=seed),
        "near-neighbours": lambda seed: KNeighborsClassifier(15, weights="distance"),
    }
    on_words = {
        "logistic": lambda seed: words(LogisticRegression(C=30, max_iter=500)),
        "bayes": lambda seed: words(MultinomialNB(alpha=0.1)),
        "svm": lambda seed: words(LinearSVC()),
        "extra-trees": lambda seed: words(ExtraTreesClassifier(50, random_state=seed)),
    }
    for name in TABLES:
        x, labels = numbers(folder / f"{name}.csv")
        yield from trained(name, *some(x, labels), models, range(SEED, SEED + 1))
    for name, file in TEXTS.items():
        lines = [line.split(" ", 1) for line in (folder / file).read_text(encoding="latin-1").splitlines()]
        x, labels = np.array([line[-1] for line in lines], dtype=object), np.array([line[0] for line in lines])
        yield from trained(name, *some(x, labels), on_words, range(SEED, SEED + 1), scale=False)


def numbers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns but the last, and the last one, of a file without a header; a header is skipped."""
    with path.open(newline="", encoding="utf-8") as file:
        dialect = ";" if ";" in file.readline() else ","
        file.seek(0)
        rows = [row for row in csv.reader(file, delimiter=dialect) if row]
    if not rows[0][0].replace(".", "").replace("-", "").isdigit():
        del rows[0]
    return np.array([row[:-1] for row in rows], dtype=np.float64), np.array([row[-1].strip() for row in rows])


def some(x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most MOST_ROWS rows, with class numbers."""
    if len(labels) > MOST_ROWS:
        kept = np.sort(np.random.default_rng(SEED).permutation(len(labels))[:MOST_ROWS])
        x, labels = x[kept], labels[kept]
    names, counts = np.unique(labels, return_counts=True)
    enough = np.isin(labels, names[counts >= LEAST_ROWS])
    return x[enough], np.unique(labels[enough], return_inverse=True)[1]
