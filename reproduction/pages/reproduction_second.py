"""The second network: two corners of the factorial with ResNet-56, for docs/reproduction/when-avuc-helps.md.

The plan is in reproduction/factorial_more.py; `python reproduction/pages/make_reproduction.py` writes the table into
the page. ResNet-56 has three seeds, so nothing is claimed: the table shows the mean, the lowest and the highest seed,
and how many seeds point in the direction of ResNet-20.
"""

from __future__ import annotations

from collections.abc import Mapping

from reproduction_factorial import NAME, NOT_MEASURED, PRIMARY, Comparison, cell, complete, corners, title
from reproduction_seeds import by_seed, check_same_shifts, shared_difference, signed
from reproduction_tables import NOT_RUN, Study, markdown

SECOND = "factorial-resnet56"
FIGURES = (*PRIMARY, ("accuracy", "clean"))


def second_network(studies: Mapping[str, Study]) -> str:
    """Return AvUC as printed − none for each corner of the second network, below the same corner of ResNet-20."""
    first, second = studies.get(NAME), studies.get(SECOND)
    if first is None or second is None:
        return NOT_RUN
    check_same_shifts(second, first)
    head = ["training, posterior", "temperature", "network", "seeds", *(title(*figure) for figure in FIGURES)]
    lines = []
    for corner in corners(second):
        comparison = Comparison(corner, "AvUC", "none")
        for temperature in (True, False):
            names = comparison.names(temperature=temperature)
            shown = [corner, "yes" if temperature else "no"]
            measured = all(complete(first, name) for name in names)
            cells = [cell(first, names, metric, where) for metric, where in FIGURES]
            lines.append([*shown, "ResNet-20", _seeds(first, names) if measured else "–", *cells])
            measured = all(complete(second, name) for name in names)
            cells = [_range(first, second, names, metric, where) for metric, where in FIGURES]
            lines.append([*shown, "ResNet-56", _seeds(second, names) if measured else "–", *cells])
    return markdown(head, lines).replace("|---|---:|---:|", "|---|---|---|", 1)


def _seeds(study: Study, names: tuple[str, str]) -> str:
    """Return the number of seeds that both methods have."""
    return str(_difference(study, names, "nll", "5")[1])


def _difference(study: Study, names: tuple[str, str], metric: str, where: str) -> tuple[float, int]:
    """Return the mean difference over the seeds that both methods have, and the number of these seeds."""
    difference, seeds = shared_difference(*(by_seed(study, name, metric, where) for name in names))
    return difference.value, seeds


def _range(first: Study, second: Study, names: tuple[str, str], metric: str, where: str) -> str:
    """Return the mean difference of `second`, its lowest and highest seed, and in how many seeds it has the sign of
    `first`.
    """
    if not all(complete(second, name) for name in names):
        return NOT_MEASURED
    with_loss, without = (by_seed(second, name, metric, where) for name in names)
    gaps = [with_loss[seed] - without[seed] for seed in sorted(with_loss.keys() & without.keys())]
    if not gaps:
        return NOT_MEASURED
    low, mean, high = (signed(value, metric) for value in (min(gaps), sum(gaps) / len(gaps), max(gaps)))
    text = f"{mean} ({low} … {high})"
    expected, seeds = _difference(first, names, metric, where)
    if not seeds:
        return text
    same = sum(gap * expected > 0 for gap in gaps)
    return f"{text}; same direction in {same} of {len(gaps)} seeds"
