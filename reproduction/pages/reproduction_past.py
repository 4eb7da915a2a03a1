"""Past the paper: the chosen ResNet-56 compared with its targets and opponents, for docs/reproduction/tables.md.

The plan is in reproduction/past.py; `python reproduction/pages/make_reproduction.py` writes the tables into the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from reproduction_best import OTHER_DATA, OTHERS, Target, best_single, same_network
from reproduction_seeds import by_seed, difference_text
from reproduction_tables import NOT_RUN, PERCENT, Study, markdown, number, ours

NAME, CHOICE = "past", "past-choice"
START = "SGD + TS"  # the same network without a posterior
OPPONENTS = ("Ensemble + TS", "Dropout + TS")
SVHN_AUROC = 0.96


def targets(studies: Mapping[str, Study], chosen: str) -> list[Target]:
    """Return the targets that were set before the first run: four new bounds, the others as for `cifar10-best`."""
    other_studies = (*OTHERS, "baselines", "factorial", NAME)

    def is_ours(study: Study, method: str) -> bool:
        return study.name == NAME and same_network(study, method, chosen)

    best = {name: best_single(studies, other_studies, name, is_ours) for name in OTHER_DATA}
    return [
        Target("ECE, intensity 5", "ece", "5", 0.04),
        Target("UCE, intensity 5", "uce", "5", 0.080),
        Target("NLL, intensity 5", "nll", "5", 0.80),
        Target("Brier score, intensity 5", "brier", "5", 0.62),
        Target("accuracy, intensity 5", "accuracy", "5", 0.72),
        Target("ECE, clean", "ece", "clean", 0.015),
        Target("ρ of ECE", "ece", "", 0.6, "spearman"),
        Target("AUROC, SVHN", "auroc", "svhn", SVHN_AUROC),
        *(
            Target(f"AUROC, {OTHER_DATA[name]}", "auroc", name, bound, about=about, strict=True)
            for name, (bound, about) in best.items()
        ),
    ]


def past(studies: Mapping[str, Study], chosen: str) -> str:
    """Return the chosen method beside its targets, the network that it starts from, and its opponents."""
    study = studies.get(NAME)
    if study is None or chosen not in study.results.names:
        return NOT_RUN
    opponents = [name for name in OPPONENTS if name in study.results.names]
    head = ["", "target", f"{chosen} (chosen)", "met", START, f"chosen − {START} (95 % interval)", *opponents]
    lines = []
    for target in targets(studies, chosen):
        percent = target.metric in PERCENT
        digits = 2 if target.statistic == "spearman" else 1 if percent else None

        def show(name: str, target: Target = target, percent: bool = percent, digits: int | None = digits) -> str:
            figure = study.get(name, target.metric, target.where, target.statistic)
            return ours(figure, target.metric, percent=percent, digits=digits)

        value = study.get(chosen, target.metric, target.where, target.statistic).value
        bound = f"{target.sign} {number(target.bound, target.metric, percent=percent)}"
        change = "–"  # a t interval does not suit ρ, which is not a mean over seeds
        if target.statistic != "spearman":
            values = [by_seed(study, name, target.metric, target.where) for name in (chosen, START)]
            change = difference_text(values[0], values[1], target.metric)
        lines.append(
            [
                target.title,
                bound + (f" ({target.about})" if target.about else ""),
                show(chosen),
                "–" if math.isnan(target.bound) else "yes" if target.met(value) else "no",
                show(START),
                change,
                *(show(name) for name in opponents),
            ]
        )
    return markdown(head, lines)


def choice(studies: Mapping[str, Study], chosen: str) -> str:
    """Return the table of all candidates on held-out training images; the chosen one is bold."""
    study = studies.get(CHOICE)
    if study is None:
        return NOT_RUN
    head = ["candidate", "accuracy, clean", "ECE, clean", "accuracy, 5", "ECE, 5", "NLL, 5"]
    lines = []
    for name in study.results.names:
        cells = [f"**{name}**" if name == chosen else name]
        for metric, where in (("accuracy", "clean"), ("ece", "clean"), ("accuracy", "5"), ("ece", "5"), ("nll", "5")):
            percent = metric in PERCENT
            digits = 1 if percent else 4 if metric == "nll" else None
            cells.append(ours(study.get(name, metric, where), metric, percent=percent, digits=digits))
        lines.append(cells)
    return markdown(head, lines)
