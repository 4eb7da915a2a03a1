"""The result of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from avuc.core.display import Displayed
from avuc.posterior import Posterior

SHOWN = ("nll", "accuracy", "validation_nll", "validation_accuracy")  # of the last epoch


@dataclass(frozen=True, eq=False, repr=False)
class Fitted(Displayed):
    """The result of training; `fit` and `fit_many` return it.

    Args:
        models: the trained networks, one per member of an ensemble.
        posterior: for `avuc.predict` and `avuc.Predictor`.
        history: one record per model and epoch, as in `log.jsonl`.
        threshold: the objective's uncertainty threshold, the mean over models if there are several.
        epochs: number of epochs trained; fewer than asked for after early stopping.
        seconds: training time.

    >>> from avuc.data import load_dataset
    >>> from avuc.methods import Vanilla
    >>> from avuc.nets import mlp
    >>> from avuc.train import TrainSettings, fit
    >>> data = load_dataset("mnist5k").subset(range(0, 4000, 40))
    >>> fitted = fit(Vanilla(), lambda g: mlp(generator=g), data, settings=TrainSettings(epochs=1), progress=False)
    >>> len(fitted.models), fitted.epochs, fitted.threshold
    (1, 1, None)
    """

    models: list[nn.Module]
    posterior: Posterior
    history: list[dict[str, Any]]
    threshold: float | None
    epochs: int
    seconds: float

    def _facts(self) -> Mapping[str, Any]:
        last = self.history[-1] if self.history else {}
        return {
            "models": len(self.models),
            "posterior": type(self.posterior).__name__,
            "epochs": self.epochs,
            **{name: last[name] for name in SHOWN if last.get(name) is not None},
            **({} if self.threshold is None else {"threshold": self.threshold}),
            "seconds": self.seconds,
        }
