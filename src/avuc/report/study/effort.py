"""What a study took: its runs, and for each stage the time and the images a second. Store in, numbers out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avuc.study.store import Store

__all__ = ["Effort", "Run", "effort_of"]


@dataclass(frozen=True)
class Run:
    """One start of the study. `seconds` is None where it was ended from outside; `worked` is what its results took."""

    started: str
    seconds: float | None
    worked: float
    device: str
    hardware: str
    torch: str
    revision: str

    @property
    def at_least(self) -> float:
        return self.worked if self.seconds is None else self.seconds


@dataclass(frozen=True)
class Effort:
    runs: tuple[Run, ...]
    models: int  # networks that were trained, members of ensembles counted
    trained_images: int
    training_seconds: float
    cells: int
    judged_images: int  # images × draws
    judging_seconds: float

    @property
    def seconds(self) -> float:
        return sum(run.at_least for run in self.runs)

    @property
    def training_rate(self) -> float:
        return self.trained_images / self.training_seconds if self.training_seconds else 0.0

    @property
    def judging_rate(self) -> float:
        return self.judged_images / self.judging_seconds if self.judging_seconds else 0.0


def effort_of(store: Store) -> Effort:
    """Networks that train side by side note the same seconds for an epoch; those count once."""
    epochs: dict[tuple[int, float], int] = {}  # (epoch, seconds) -> the run it belongs to
    images = 0.0
    networks: set[tuple[str, int, int]] = set()
    query = "SELECT h.method, h.seed, h.member, h.epoch, h.data, m.run FROM history h JOIN models m USING(method, seed)"
    for method, seed, member, epoch, text, run in store.select(query):
        record: dict[str, Any] = json.loads(text)
        networks.add((method, seed, member))
        if "seconds" in record:
            epochs[epoch, record["seconds"]] = run
            images += record.get("images_per_second", 0.0) * record["seconds"]
    # rows that read one model share its draws: of a model and a set, the most draws were computed
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
        len(networks),
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
