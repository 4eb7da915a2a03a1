"""`PredictionParts`: predictions that come one part after the other, in the form of a file that is read in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from torch import Tensor

from avuc.core.errors import InputError
from avuc.predictions import MultiLabelPredictions, Predictions

AnyPredictions = Predictions | MultiLabelPredictions


class PredictionPart(NamedTuple):
    """One part, with the methods of a `ScoreFile` that a streaming evaluation uses."""

    rows: Predictions

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def predictions(self) -> Predictions:
        """Return the labelled rows."""
        if bool((self.rows.labels < 0).any()):
            raise InputError("some of these predictions have no label (−1); give labels, or leave these rows out")
        return self.rows

    def entropy(self) -> Tensor:
        """Return the entropies in nats."""
        return self.rows.entropy


class PredictionParts:
    """Predictions in parts; each is read once and then released. All decisions of a multi-label model become rows.

    Args:
        parts: predictions, or any iterable of them, such as `Predictor.stream` returns.

    >>> PredictionParts([Predictions([0.9, 0.2], [1, 0])]).num_classes
    2
    """

    path = "these predictions"

    def __init__(self, parts: AnyPredictions | Iterable[AnyPredictions]) -> None:
        if not isinstance(parts, Iterable) and not isinstance(parts, AnyPredictions):
            raise InputError(f"a path, a file from open_scores or Predictions are needed; found {type(parts).__name__}")
        rest = iter([parts] if isinstance(parts, AnyPredictions) else parts)
        first = next(rest, None)
        if first is None:
            raise InputError("there are no predictions to evaluate")
        self._rest: Iterator[AnyPredictions] = chain([first], rest)
        rows = _rows(first)
        self.num_classes: int = rows.num_classes
        self.samples: int = rows.samples
        self.num_rows: int = 0

    def check_labelled(self) -> None:
        """Do nothing: each part is checked when it is read."""

    def parts(self) -> Iterator[PredictionPart]:
        """Yield the parts that have rows; `num_rows` counts them."""
        for part in self._rest:
            rows = _rows(part)
            if rows.num_classes != self.num_classes:
                raise InputError(
                    f"all predictions must have the same classes, found {self.num_classes} and {rows.num_classes}"
                )
            self.num_rows += len(rows)
            if len(rows):
                yield PredictionPart(rows)


def _rows(part: AnyPredictions) -> Predictions:
    if not isinstance(part, AnyPredictions):
        raise InputError(f"predictions in parts must be Predictions, found {type(part).__name__}")
    return (part.flatten() if isinstance(part, MultiLabelPredictions) else part).to("cpu")
