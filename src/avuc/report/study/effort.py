"""How long a study took: its runs, and the time and images per second of training and of evaluation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avuc.study.store.store import Store


@dataclass(frozen=True)
class Run:
    """One run of the study: `seconds` is None if it was killed; `worked` is the time spent on its results."""

    started: str
    seconds: float | None
    worked: float
    device: str
    hardware: str
    torch: str
    revision: str

    @property
    def at_least(self) -> float:
        """The time of the run, or of its results if it was killed."""
        return self.worked if self.seconds is None else self.seconds


@dataclass(frozen=True)
class Effort:
    """The time and the work of all runs."""

    runs: tuple[Run, ...]
    models: int  # trained networks; each network of an ensemble counts
    trained_images: int
    training_seconds: float
    cells: int  # evaluations: one method with one seed on one test set
    judged_images: int  # images × samples
    judging_seconds: float

    @property
    def seconds(self) -> float:
        """The time of all runs."""
        return sum(run.at_least for run in self.runs)

    @property
    def training_rate(self) -> float:
        """Training images per second."""
        return self.trained_images / self.training_seconds if self.training_seconds else 0.0

    @property
    def judging_rate(self) -> float:
        """Evaluated images × samples per second."""
        return self.judged_images / self.judging_seconds if self.judging_seconds else 0.0


def effort_of(store: Store) -> Effort:
    """Return the time and the work of a study.

    Networks that train together record the same seconds for an epoch; these count once. So does a network that is also
    a member of an ensemble: its epochs are the same, digit by digit.
    """
    epochs: dict[tuple[int, float], int] = {}  # (epoch, seconds) -> the run it belongs to
    histories: dict[tuple[str, int, int], dict[int, str]] = {}  # network -> what each epoch recorded
    images = 0.0
    query = "SELECT h.method, h.seed, h.member, h.epoch, h.data, m.run FROM history h JOIN models m USING(method, seed)"
    for method, seed, member, epoch, text, run in store.select(query):
        record: dict[str, Any] = json.loads(text)
        known = {name: value for name, value in record.items() if name != "member"}
        histories.setdefault((method, seed, member), {})[epoch] = json.dumps(known, sort_keys=True)
        if "seconds" in record:
            epochs.setdefault((epoch, record["seconds"]), run)
    members = {(method, seed) for method, seed, member in histories if member}
    single = [history for (*model, _), history in histories.items() if tuple(model) not in members]
    trained_here = [
        history for (*model, _), history in histories.items() if tuple(model) not in members or history not in single
    ]
    for history in trained_here:
        for text in history.values():
            record = json.loads(text)
            images += record.get("images_per_second", 0.0) * record.get("seconds", 0.0)
    # methods that reuse a model share its samples, so the largest number of samples is what was computed
    shared = {row.name: row.reuse_model or row.name for row in store.stored_recipe().methods}
    passes: dict[tuple[str, int, str, int], int] = {}
    judged: dict[int, float] = {}
    cells = store.select("SELECT method, seed, shift, severity, rows, samples, seconds, run FROM cells")
    for method, seed, shift, severity, rows, samples, seconds, run in cells:
        key = shared.get(method, method), seed, shift, severity
        passes[key] = max(passes.get(key, 0), rows * samples)
        judged[run] = judged.get(run, 0.0) + (seconds or 0.0)
    trained: dict[int, float] = {}
    for (_, seconds), run in epochs.items():
        trained[run] = trained.get(run, 0.0) + seconds
    runs = tuple(_run(each, trained.get(each["id"], 0.0) + judged.get(each["id"], 0.0)) for each in store.runs())
    return Effort(
        runs,
        len(trained_here),
        round(images),
        sum(trained.values()),
        len(cells),
        sum(passes.values()),
        sum(judged.values()),
    )


def _run(run: dict[str, Any], worked: float) -> Run:
    hardware, versions = run["hardware"], run["versions"]
    gpus = hardware.get("gpus") or []
    named = ", ".join(dict.fromkeys(gpus)) if gpus else hardware.get("processor") or hardware.get("machine", "")
    return Run(
        run["started"],
        run["seconds"],
        worked,
        run["device"],
        f"{len(gpus)} × {named}" if len(gpus) > 1 else named,
        versions.get("torch", ""),
        run["revision"] or "",
    )
