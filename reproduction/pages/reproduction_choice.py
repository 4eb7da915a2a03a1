"""Rehearsals for docs/reproduction/index.md: candidates compared on held-out training images, without a test image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reproduction_tables import NOT_RUN, Study, markdown, ours

from avuc.core.errors import InputError
from avuc.report.metric_text import metric_text
from avuc.study.config import MethodConfig

CALIBRATOR = "temperature"


def rehearsals(studies: Mapping[str, Study]) -> str:
    """A table for each study whose folder's name begins with `choice`: every network, alone and with a temperature."""
    found = [study for name, study in studies.items() if name.startswith("choice")]
    return "\n\n".join(_table(study) for study in found) if found else NOT_RUN


def _table(study: Study) -> str:
    if not study.recipe.data.evaluate_on_validation:
        raise InputError(
            f"{study.name}: expected a rehearsal (data.evaluate_on_validation), found a study judged on test images"
        )
    rows = {row.name: row for row in study.recipe.methods if row.name in study.results.names}
    scaled = _scaled(rows.values(), own=False)
    top = str(max(study.results.severities))
    shifts = f"{', '.join(name.replace('_', ' ') for name in study.results.shifts)} at intensity {top}"
    head = ["", "accuracy, clean", "ECE, clean", "accuracy", "confidence", "ECE", "UCE", "NLL", "Brier"]
    head += [f"{title}, scaled" for title in ("ECE, clean", "ECE", "UCE", "NLL", "Brier")]
    lines = []
    for name in (name for name, row in rows.items() if row.method is not None):
        line = [name]
        for metric, where in (("accuracy", "clean"), ("ece", "clean"), ("accuracy", top), ("mean_confidence", top)):
            share = metric != "ece"
            line.append(ours(study.get(name, metric, where), metric, digits=1 if share else None, percent=share))
        line += [ours(study.get(name, metric, top), metric, digits=3) for metric in ("ece", "uce", "nll", "brier")]
        if name in scaled:
            line.append(ours(study.get(scaled[name], "ece", "clean")))
            for metric in ("ece", "uce", "nll", "brier"):
                line.append(ours(study.get(scaled[name], metric, top), metric, digits=3))
        else:
            line += ["–"] * 5
        lines.append(line)
    told = f"Held-out training images, clean and under {shifts}; {study.recipe.train.epochs} epochs"
    text = f"*{told}; not comparable with any table above.*\n\n{markdown(head, lines)}"
    own = _scaled(rows.values(), own=True)
    return f"{text}\n\n{_own_statistics(study, scaled, own, top)}" if own else text


def _scaled(rows: Iterable[MethodConfig], own: bool) -> dict[str, str]:
    """The row with a temperature for each network, with the draws' own statistics of batch normalisation or not."""
    return {
        row.reuse_model: row.name
        for row in rows
        if row.calibrator and row.calibrator.kind == CALIBRATOR and bool(row.bn_images) == own
    }


def _own_statistics(study: Study, scaled: Mapping[str, str], own: Mapping[str, str], top: str) -> str:
    """What batch normalisation measured again for each draw changes; both with a temperature."""
    columns = (("accuracy", "clean"), ("ece", "clean"), ("accuracy", top), ("ece", top), ("nll", top))
    head = [""]
    for metric, where in columns:
        title = f"{metric_text(metric).title}, {'clean' if where == 'clean' else where}"
        head += [f"{title}: running averages", "own"]
    lines = []
    for name in own:
        line = [name]
        for metric, where in columns:
            percent = metric == "accuracy"
            digits = 1 if percent else 3
            for row in (scaled.get(name, ""), own[name]):
                line.append(ours(study.get(row, metric, where), metric, digits=digits, percent=percent))
        lines.append(line)
    return f"*Batch normalisation by running averages, or measured again for each draw:*\n\n{markdown(head, lines)}"
