"""Calibrate a random forest with scikit-learn, and select a model by its calibration. Needs avuc[sklearn].

python examples/scikit_learn.py
"""

from __future__ import annotations

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split

from avuc import metrics
from avuc.sklearn import SCORERS, CalibratedClassifier


def main() -> None:
    X, y = load_digits(return_X_y=True)
    y = [f"digit {number}" for number in y]  # labels may be text
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    forest = RandomForestClassifier(40, random_state=0)

    models = {
        "forest alone": clone(forest),
        "avuc, temperature": CalibratedClassifier(forest, method="temperature", cv=3),
        "avuc, avuts": CalibratedClassifier(forest, method="avuts", cv=3),
        "avuc, vector": CalibratedClassifier(forest, method="vector", cv=3),
        "scikit-learn, sigmoid": CalibratedClassifierCV(forest, cv=3, ensemble=False),
    }
    print(f"{'on held-out digits':24}{'accuracy':>9}{'ECE':>8}{'UCE':>8}{'NLL':>8}")
    for name, model in models.items():
        model.fit(X_train, y_train)
        probs = model.predict_proba(X_test)
        numbers = [list(model.classes_).index(label) for label in y_test]
        figures = [metrics.ece(probs, numbers), metrics.uce(probs, numbers), metrics.nll(probs, numbers)]
        print(f"{name:24}{metrics.accuracy(probs, numbers):9.3f}" + "".join(f"{figure:8.3f}" for figure in figures))
    fitted = models["avuc, temperature"]
    print(f"a forest is underconfident: T = {fitted.calibrator_.temperature_:.2f}")

    scores = cross_val_score(CalibratedClassifier(forest, cv=3), X_train, y_train, cv=3, scoring=SCORERS["neg_ece"])
    print(f"cross-validated ECE: {-scores.mean():.3f}")
    search = GridSearchCV(
        CalibratedClassifier(forest, cv=3),
        {"estimator__max_features": ["sqrt", 4]},
        scoring=SCORERS["neg_nll"],
        cv=3,
    ).fit(X_train, y_train)
    print(f"best by NLL: {search.best_params_}")


if __name__ == "__main__":
    main()
