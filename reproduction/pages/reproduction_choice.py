"""Rehearsals for docs/reproduction/index.md: candidates compared on held-out training images, without test images.

`python reproduction/pages/make_reproduction.py` writes the tables into the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reproduction_tables import NOT_RUN, Study, markdown, ours

from avuc.core.errors import InputError
from avuc.report.metric_text import metric_text
from avuc.study.recipe.config import MethodConfig

CALIBRATOR = "temperature"


def rehearsals(studies: Mapping[str, Study]) -> str:
    """Return a table for each study whose folder begins with `choice`: every network, without and with temperature."""
    choice_studies = [study for name, study in studies.items() if name.startswith("choice")]
    return "\n\n".join(_table(study) for study in choice_studies) if choice_studies else NOT_RUN


def _table(study: Study) -> str:
    """Return the table of one rehearsal."""
    if not study.recipe.data.evaluate_on_validation:
        raise InputError(
            f"{study.name}: expected a rehearsal (data.evaluate_on_validation), found a study judged on test images"
        )
    methods = {method.name: method for method in study.recipe.methods if method.name in study.results.names}
    scaled = _scaled(methods.values(), own_statistics=False)
    top = str(max(study.results.severities))
    shifts = f"{', '.join(name.replace('_', ' ') for name in study.results.shifts)} at intensity {top}"
    head = ["", "accuracy, clean", "ECE, clean", "accuracy", "confidence", "ECE", "UCE", "NLL", "Brier"]
    head += [f"{title}, scaled" for title in ("ECE, clean", "ECE", "UCE", "NLL", "Brier")]
    lines = []
    for name in (name for name, method in methods.items() if method.method is not None):
        cells = [name]
        for metric, where in (("accuracy", "clean"), ("ece", "clean"), ("accuracy", top), ("mean_confidence", top)):
            percent = metric != "ece"
            cells.append(ours(study.get(name, metric, where), metric, digits=1 if percent else None, percent=percent))
        cells += [ours(study.get(name, metric, top), metric, digits=3) for metric in ("ece", "uce", "nll", "brier")]
        if name in scaled:
            cells.append(ours(study.get(scaled[name], "ece", "clean")))
            for metric in ("ece", "uce", "nll", "brier"):
                cells.append(ours(study.get(scaled[name], metric, top), metric, digits=3))
        else:
            cells += ["–"] * 5
        lines.append(cells)
    caption = f"Held-out training images, clean and under {shifts}; {study.recipe.train.epochs} epochs"
    text = f"*{caption}; not comparable with any table above.*\n\n{markdown(head, lines)}"
    with_own_statistics = _scaled(methods.values(), own_statistics=True)
    return f"{text}\n\n{_own_statistics(study, scaled, with_own_statistics, top)}" if with_own_statistics else text


def _scaled(methods: Iterable[MethodConfig], own_statistics: bool) -> dict[str, str]:
    """Return network → its method with temperature scaling.

    Args:
        methods: the methods to search.
        own_statistics: whether batch normalisation is measured again for each draw.
    """
    return {
        method.reuse_model: method.name
        for method in methods
        if method.calibrator and method.calibrator.kind == CALIBRATOR and bool(method.bn_images) == own_statistics
    }


def _own_statistics(study: Study, scaled: Mapping[str, str], own_statistics: Mapping[str, str], top: str) -> str:
    """Return what changes if batch normalisation is measured again for each draw, both with temperature scaling.

    Args:
        study: the rehearsal.
        scaled: network → its method with running averages.
        own_statistics: network → its method with statistics of each draw.
        top: the strongest intensity.
    """
    columns = (("accuracy", "clean"), ("ece", "clean"), ("accuracy", top), ("ece", top), ("nll", top))
    head = [""]
    for metric, where in columns:
        title = f"{metric_text(metric).title}, {'clean' if where == 'clean' else where}"
        head += [f"{title}: running averages", "own"]
    lines = []
    for name in own_statistics:
        cells = [name]
        for metric, where in columns:
            percent = metric == "accuracy"
            digits = 1 if percent else 3
            for method in (scaled.get(name, ""), own_statistics[name]):
                cells.append(ours(study.get(method, metric, where), metric, digits=digits, percent=percent))
        lines.append(cells)
    return f"*Batch normalisation by running averages, or measured again for each draw:*\n\n{markdown(head, lines)}"
