"""Warnings about methods whose training failed: they are at chance level, or their AvUC term was never active."""

from __future__ import annotations

import math

import numpy as np

from avuc.report.study.result_arrays import CLEAN, Array, Results

MOST_NAMED = 4
# a method that has learned something has an NLL below this share of that of the class frequencies
LEARNED = 0.98


def no_choice(results: Results, best: int) -> str:
    """Return why no method can be recommended, if the method with the best NLL only guesses; else an empty text."""
    if best not in guessing(results):
        return ""
    return (
        f"No method can be recommended: {results.names[best]} has the best NLL, but only guesses. Its accuracy on "
        f"clean {results.units}, {100 * results.mean('accuracy', CLEAN)[best]:.1f} %, is not better than that of the "
        f"most frequent class, {100 * _class_shares(results).max():.1f} %, and its NLL not below that of the class "
        "frequencies."
    )


def guessing_alarm(results: Results) -> list[str]:
    """Return a warning about the methods that have learned nothing."""
    indices = guessing(results)
    if not indices:
        return []
    names = _listed([results.names[index] for index in indices])
    verb = "has" if len(indices) == 1 else "have"
    who = "Every method has" if len(indices) == len(results.methods) else f"{names} {verb}"
    return [
        f"{who} an accuracy on clean "
        f"{results.units} that the most frequent class alone would have ({100 * _class_shares(results).max():.1f} %), "
        "and no lower NLL than the class frequencies: nothing was learned, so calibration means nothing there. Train "
        "longer, or look at the learning rate and the data."
    ]


def never_active(results: Results) -> list[str]:
    """Return a warning about methods whose AvUC term was 0 in every epoch of every seed."""
    unused = [
        method
        for method in results.methods
        if method.beta and method.history and all(_without_term(epochs) for epochs in method.history)
    ]
    if not unused:
        return []
    epochs = max(len(epochs) for method in unused for epochs in method.history)
    return [
        f"The AvUC term of {_listed([method.name for method in unused])} was 0 in all {epochs} epochs of the training, "
        "because the warm-up never ended: the results are those of a training without it. Lower "
        "objective.warmup_epochs, or train longer."
    ]


def guessing(results: Results) -> list[int]:
    """Return the methods that know no more about clean data than the frequencies of the classes.

    Their accuracy is at most two standard errors above that of the most frequent class. With unbalanced classes, that
    of a good method can be, too, but its NLL is below that of the frequencies.
    """
    shares = _class_shares(results)
    if not len(shares):
        return []
    limit = shares.max() + 2 * math.sqrt(shares.max() * (1 - shares.max()) / max(1, results.rows))
    entropy = -np.sum(shares * np.log(np.where(shares > 0, shares, 1)))
    figures = zip(results.mean("accuracy", CLEAN), results.mean("nll", CLEAN), strict=True)
    return [
        index
        for index, (accuracy, nll) in enumerate(figures)
        if accuracy <= limit and not nll < LEARNED * entropy  # an unknown NLL says nothing
    ]


def _class_shares(results: Results) -> Array:
    """Return the share of each class in the clean test data; none if they are not known."""
    tables = () if results.coverage is None else results.coverage.clean.values()
    for table in tables:
        rows = np.asarray(table)[:, :, 0]
        rows = rows[np.isfinite(rows).all(1)]
        if len(rows) and rows[0].sum() > 0:
            shares: Array = rows[0] / rows[0].sum()
            return shares
    return np.empty(0)


def _without_term(epochs: tuple[dict[str, object], ...]) -> bool:
    return bool(epochs) and all(epoch.get("avuc") == 0 for epoch in epochs)


def _listed(names: list[str]) -> str:
    named = names if len(names) <= MOST_NAMED + 1 else [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
