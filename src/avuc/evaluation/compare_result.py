"""Comparison: what a calibrator changes, on the same rows; `compare` returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from avuc.calibration import CalibratorCheck
from avuc.core.display import Displayed, data_frame, text
from avuc.evaluation.changes import Change
from avuc.evaluation.result import EvaluationResult, Series, json_value


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """Metrics before and after a calibrator, on the same rows. `compare` returns it.

    Args:
        method: name of the calibration method.
        temperature: the fitted temperature; None for methods without one.
        how: which rows the metrics come from, as text.
        before: result without the calibrator.
        after: result with the calibrator.
        change: after − before of every metric: (value, low, high).
        warnings: what the user must know before using the calibrator.
        curve: the loss at each temperature that was tried; empty for methods without a temperature.
        check: whether the fitted calibrator is worse than none.
        notes: remarks about the fit.
        refused: the comparison of the fitted calibrator, if it was rejected as worse than none.
        candidates: with the method "auto", what each calibrator did in cross-validation; else empty.
        groups: number of images or groups, if rows of one are not independent: these were held out as a whole, and the
            intervals resample them. None if rows are independent.
        mixed: whether the calibrator mixes the scaled probabilities with others, as "smoothed" and "ets" do.

    >>> import tempfile, numpy as np
    >>> from avuc.evaluation import compare
    >>> from avuc.evaluation.files import read_scores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", logits=np.tile([[9.0, 0.0], [0.0, 9.0]], (20, 1)), labels=[0, 1, 1, 0] * 10)
    ...     _, comparison = compare(read_scores(f"{folder}/a.npz"), "temperature", replicates=0)
    >>> comparison.change["nll"][0] < 0, comparison.refused
    (True, None)
    """

    method: str
    temperature: float | None
    how: str
    before: EvaluationResult
    after: EvaluationResult
    change: dict[str, Change]
    warnings: list[str]
    curve: Series
    check: CalibratorCheck
    notes: list[str] = field(default_factory=list)
    refused: Comparison | None = None
    candidates: list[dict[str, Any]] = field(default_factory=list)
    groups: int | None = None
    mixed: bool = False

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each metric: metric, before, after, change, low, high."""
        header, rows = self._table()
        return data_frame({name: [row[column] for row in rows] for column, name in enumerate(header)})

    def _table(self) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        before, after = self.before.metrics, self.after.metrics
        rows = [(name, before[name], after[name], *self.change[name]) for name in before if name in self.change]
        return ("metric", "before", "after", "change", "low", "high"), rows

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"method": self.method}
        if self.temperature is not None:
            facts["temperature"] = self.temperature
        for name in ("nll", "ece"):
            facts[name] = f"{text(self.before.metrics[name])} → {text(self.after.metrics[name])}"
        return facts | ({"refused": True} if self.refused else {})

    @property
    def shown(self) -> Comparison:
        """The comparison that tables and charts show: that of the fitted calibrator, even if it was rejected."""
        return self.refused or self

    def as_json(self) -> dict[str, Any]:
        """Return the document that `avuc calibrate --json` writes."""
        refused = self.refused
        document: dict[str, Any] = json_value(
            self.after.as_json()
            | {
                "method": self.method,
                "temperature": self.temperature,
                "evaluated_on": self.how,
                "before": self.before.metrics,
                "after": self.after.metrics,
                "before_intervals": self.before.intervals,
                "change": self.change,
                "warnings": self.warnings,
                "check": self.check.as_json(),
                "refused": refused
                and {
                    "method": refused.method,
                    "temperature": refused.temperature,
                    "reasons": self.check.reasons,
                    "before": refused.before.metrics,
                    "after": refused.after.metrics,
                    "change": refused.change,
                },
            }
        )
        more = {"candidates": json_value(self.candidates)} if self.candidates else {}
        return document | more | ({} if self.groups is None else {"groups": self.groups})


def with_warning(result: Comparison) -> Comparison:
    """Return the comparison of a calibrator that is kept although it is worse than none."""
    return replace(result, warnings=[*result.check.warnings[:1], *result.warnings])


def rejected(fitted: Comparison) -> Comparison:
    """Return the comparison for a calibrator that changes nothing, used instead of the fitted one."""
    temperature = f" at temperature {fitted.temperature:.4g}" if fitted.temperature is not None else ""
    warning = (
        f"{fitted.check.warnings[0]}. The calibrator fitted{temperature} was rejected and the scores stay unchanged "
        "(temperature 1); --keep-worse (in Python keep_worse=True) keeps the fitted calibrator"
        + ("" if fitted.method == "auto" or fitted.before.per_label else "; --method auto looks for one that helps")
    )
    return replace(
        fitted,
        temperature=1.0,
        after=fitted.before,
        change=dict.fromkeys(fitted.change, (0.0, 0.0, 0.0)),
        warnings=[warning, *fitted.warnings],
        notes=[],
        refused=fitted,
    )
