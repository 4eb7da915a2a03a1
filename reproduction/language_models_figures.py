"""The figures of the language-model study: `figures` computes those of one text, `write_tables` writes the CSV files.

`python reproduction/language_models.py table OUT RESULTS` calls `write_tables`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError
from avuc.metrics import detection
from avuc.metrics.selective import risk_area, risk_curve
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.suite import from_statistics
from avuc.metrics.ties import group_ties

METRICS = ("accuracy", "nll", "ece", "uce", "mean_entropy")
COVERAGES = (0.5, 0.8)
# folder of the runs → CSV file of their figures
FILES = {"choice": "choice.csv", "test": "rows.csv"}


def figures(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return all figures of the predictions of a text; entropy ranks the tokens from certain to uncertain."""
    statistics = prediction_statistics(logits.softmax(-1), labels)
    entropy, right = statistics.entropy, statistics.correct
    values = from_statistics(statistics, names=METRICS)
    has_both = right.any() and not right.all()
    values["auroc"] = detection(entropy[right], entropy[~right])["auroc"] if has_both else math.nan
    groups = group_ties(-entropy, right)
    values["aurc"] = float(risk_area(groups))
    curve = risk_curve(groups)
    for coverage in COVERAGES:
        index = int(np.searchsorted(curve.coverage, coverage - 1e-12))
        values[f"accuracy_{100 * coverage:.0f}"] = float(1 - curve.risk[index])
    return values


def write_tables(study: Path, out: Path) -> None:
    """Write a study's figures: the validation figures of the choice, the figures of all texts, and every run.

    Args:
        study: the folder that `language_models.py` wrote.
        out: folder for choice.csv, rows.csv, runs.csv and choice.json.
    """
    if not (study / "choice.json").is_file():
        raise InputError(f"{study}: no choice.json; give the folder that 'choose' and 'tune' wrote to")
    out.mkdir(parents=True, exist_ok=True)
    runs = [{"part": "pretrain", **_flat(_read(path))} for path in sorted((study / "pretrain").glob("*.json"))]
    for part, name in FILES.items():
        records = [_read(path) for path in sorted((study / part).glob("*.json"))]
        rows = [
            {**record["run"], **_rounded(row)}
            for record in records
            for row in record["rows"] or ({"text": "diverged"},)
        ]
        _write(out / name, rows)
        runs += [{"part": part, **_flat(record)} for record in records]
    _write(out / "runs.csv", runs)
    (out / "choice.json").write_text((study / "choice.json").read_text(encoding="utf-8") + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as one row, without its figures."""
    flat = {**run, **run.get("run", {}), **run.get("trained", {}), **run["about"]}
    return _rounded({key: value for key, value in flat.items() if key not in ("run", "trained", "rows", "about")})


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with floats of seven significant digits."""
    return {key: float(f"{value:.7g}") if isinstance(value, float) else value for key, value in row.items()}


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to a CSV file; its columns are all keys of the rows."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_path(path) as temporary_path, open(temporary_path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
