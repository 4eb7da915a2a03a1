"""How much of the factorial experiment (reproduction/factorial.py) is finished, for docs/reproduction/tables.md."""

from __future__ import annotations

from collections.abc import Mapping

from reproduction_tables import NOTHING, Study

NAME = "factorial"
FACTORS = 3  # a method is called "training, posterior, loss", with " + TS" if it has a temperature


def progress(studies: Mapping[str, Study]) -> str:
    """Return one line: networks that are trained, and the combinations of training and posterior that are complete.

    The experiment is not analysed on the pages before all of it is finished.
    """
    study = studies.get(NAME)
    if study is None:
        return NOTHING
    recipe = study.recipe
    networks = sum(len(recipe.seeds(method)) for method in recipe.trained)
    corners: dict[str, bool] = {}
    for method in recipe.methods:
        corner = ", ".join(method.name.split(", ")[: FACTORS - 1])
        found = method.name in study.results.names and study.get(method.name, "nll", "5").seeds
        corners[corner] = corners.get(corner, True) and found == len(recipe.seeds(method))
    complete = [corner for corner, finished in corners.items() if finished]
    text = f"**{study.effort.models} of {networks} networks are trained.**"
    if len(complete) == len(corners):
        return text
    if not complete:
        return f"{text} No combination of training and posterior is complete yet."
    return f"{text} Complete with all losses and seeds: {'; '.join(complete)}."
