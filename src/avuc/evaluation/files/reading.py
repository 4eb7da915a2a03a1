"""Reading: what the user says about the content of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avuc.core.errors import InputError
from avuc.evaluation.files.decision.checks import Decision, decide
from avuc.evaluation.files.decision.find_layout import TASKS, find_layout
from avuc.evaluation.files.decision.summary import Summary
from avuc.evaluation.files.layout import Layout
from avuc.evaluation.files.messages import file_error, listing
from avuc.evaluation.files.names import RawScores

KINDS = ("auto", "logits", "probs", "percent")


@dataclass(frozen=True)
class Reading:
    """What the user says about the content of a file."""

    kind: str = "auto"
    first_label: int | None = None
    task: str = "auto"
    class_dim: int | None = None
    ignore_index: int | None = None
    positive: str | None = None
    like: Layout | None = None  # layout of another file of the same model
    # whether labels that are not needed mark positions of dense scores to leave out; `MARK`: any rows, which stay
    padding: bool | str = False
    order_unknown: bool = True  # False: the user or an earlier file gave the order of the columns
    fitted: tuple[str, ...] | None = None  # class names of a fit that the file belongs to

    @property
    def first_of_columns(self) -> int | None:
        """The label of the first column if labels are numbers; None if the order of the columns is known."""
        return (self.first_label or 0) if self.order_unknown else None

    def check(self, path: Path) -> None:
        if self.kind not in KINDS:
            raise file_error(path, f"unknown kind {self.kind!r}", f"use one of {listing(KINDS)}")
        if self.task not in TASKS[:3]:
            raise file_error(path, f"unknown task {self.task!r}", f"use one of {listing(TASKS[:3])}")

    def layout(self, path: Path, raw: RawScores, needs_labels: bool) -> Layout:
        """Return the layout of the scores; labels that are not needed help to find it, but are not checked.

        The layout says how many classes there are, and with it whether an array `classes` has one entry for each.
        """
        layout = self._layout(path, raw, needs_labels)
        names, classes = raw.class_array, layout.flat[-1]
        if not raw.labels_named and raw.class_names is None and names is not None and len(names) == classes > 1:
            raw.class_names = names
        return layout

    def _layout(self, path: Path, raw: RawScores, needs_labels: bool) -> Layout:
        scores = (tuple(raw.scores.shape), raw.scores.dtype)
        options: dict[str, Any] = {"class_dim": self.class_dim, "ignore_index": self.ignore_index, "like": self.like}
        if raw.labels is not None:
            labels = (f"labels from {raw.labels_from}", tuple(raw.labels.shape), raw.labels.dtype)
            try:
                return find_layout(path, raw.scores_from, scores, labels, task=self.task, **options)
            except InputError:
                if needs_labels:
                    raise
        return find_layout(path, raw.scores_from, scores, None, task=self.task, **options)

    def decide(self, path: Path, raw: RawScores, summary: Summary) -> Decision:
        if self.positive is not None and summary.scores.classes != 1:
            problem = f"{raw.scores_from} has {summary.scores.classes} scores per row"
            raise file_error(path, problem, "leave out --positive, which is for one number per row")
        return decide(path, raw, summary, self.kind, self.first_label, self.positive, self.fitted)
