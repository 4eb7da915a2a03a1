"""The files of a published study as data, and how results of a later run are added to them.

A study may need more time than a rented machine is there for, and its models go away with the machine. With
`run_study.py NAME --publish-only --out OUT --add` the published results stay, and those that they lack are added:

    published:  network as it is, last layers      the later run:  fine-tuned networks, network as it is
    afterwards: network as it is and last layers as published, fine-tuned networks of the later run
"""

from __future__ import annotations

import copy
import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from avuc.core.atomic import write_text
from avuc.core.errors import InputError
from avuc.study.recipe.parser import parse_recipe
from avuc.study.recipe.resumable import check_resumable
from avuc.study.recipe.toml import document
from avuc.study.store.recipe import StoredRecipe

KEY = ("method", "seed", "shift", "severity")
COUNTS = ("rows", "samples")
MODELS = ("method", "seed", "epochs", "seconds", "threshold")

Row = dict[str, str]


@dataclass(frozen=True)
class Publication:
    """What is published of a study.

    Args:
        rows: one for each evaluation, with its counts and metrics as text.
        models: one for each method and seed that a model was trained for.
        facts: the content of study.json.
        recipe: the recipe that was run, in TOML.
    """

    rows: Sequence[Row]
    models: Sequence[Row]
    facts: Mapping[str, Any]
    recipe: str

    @classmethod
    def read(cls, folder: Path) -> Publication:
        """Read the files of a published study."""
        try:
            rows, models = ((folder / name).read_text(encoding="utf-8") for name in ("rows.csv", "models.csv"))
            facts = json.loads((folder / "study.json").read_text(encoding="utf-8"))
            recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{folder}: no published study to add to ({error}); publish without --add") from error
        return cls(_read_csv(rows), _read_csv(models), facts, recipe)

    def write(self, folder: Path) -> int:
        """Write the files, and return the size of the rows in bytes."""
        metrics = sorted({name for row in self.rows for name in row} - {*KEY, *COUNTS})
        text = _csv((*KEY, *COUNTS, *metrics), sorted(self.rows, key=_evaluation))
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "rows.csv", text)
        write_text(folder / "models.csv", _csv(MODELS, sorted(self.models, key=_model)))
        write_text(folder / "study.json", json.dumps(self.facts, indent=1, ensure_ascii=False) + "\n")
        write_text(folder / "recipe.toml", self.recipe)
        return len(text.encode())

    def with_new(self, later: Publication, source: Path) -> Publication:
        """Return these results, and those of a later run that they lack. Nothing published is replaced.

        Args:
            later: the later run; its recipe may have other seeds, shifts, severities and methods.
            source: its folder, for messages.
        """
        recipes = [parse_recipe(each.recipe, "the published recipe") for each in (self, later)]
        check_resumable(*recipes, source)
        joined = StoredRecipe.parse(join_recipes(self.recipe, later.recipe))
        rows = {_evaluation(row): row for row in (*later.rows, *self.rows)}
        models = {_model(row): row for row in (*later.models, *self.models)}
        published = {_model(row) for row in self.models}
        again = [row for row in later.models if _model(row) in published and int(row["epochs"])]
        # a later run may have gone on with a copy that has runs of this publication
        runs = [*self.facts["runs"], *(run for run in later.facts["runs"] if run not in self.facts["runs"])]
        facts = {
            **self.facts,
            "evaluations": len(rows),
            "missing": joined.missing(set(rows)),
            "models": self.facts["models"]
            + later.facts["models"]
            - sum(getattr(recipes[1].method(row["method"]).method, "members", 1) for row in again),
            "minutes": minutes_of(runs),
            "runs": runs,
        }
        return Publication(tuple(rows.values()), tuple(models.values()), facts, joined.to_toml())


def minutes_of(runs: Sequence[Mapping[str, Any]]) -> float:
    """Return the minutes in which at least one of the runs worked: those of one study may be side by side."""
    seconds, end = 0.0, 0.0
    for started, length in sorted((datetime.fromisoformat(run["started"]).timestamp(), run["seconds"]) for run in runs):
        seconds += max(0.0, started + length - max(started, end))
        end = max(end, started + length)
    return round(seconds / 60, 2)


def join_recipes(first: str, second: str) -> str:
    """Return a recipe with the methods, seeds, shifts and severities of both.

    A part of a study is often run with some of its seeds, or at its largest severity, first.
    """
    recipes = [StoredRecipe.parse(text) for text in (first, second)]
    # first | second | first: what both have is as in the first, and its order comes first
    tables, others = (copy.deepcopy(dict(recipe.tables)) for recipe in recipes)
    study, more = tables["study"], others["study"]
    for key in ("seeds", "severities"):
        study[key] = sorted({*study[key], *more[key]})
    study["shifts"] = list(dict.fromkeys([*study["shifts"], *more["shifts"]]))
    first_ood, second_ood = (
        {other.name: entry for other, entry in zip(recipe.study.others, each.get("ood", []), strict=True)}
        for recipe, each in zip(recipes, (study, more), strict=True)
    )
    study["ood"] = list((first_ood | second_ood | first_ood).values())
    named = [{method["name"]: method for method in each["methods"]} for each in (tables, others)]
    methods = named[0] | named[1] | named[0]
    for name, table in methods.items():
        seeds = {
            seed
            for recipe, known in zip(recipes, named, strict=True)
            if name in known
            for seed in recipe.seeds(recipe.method(name))
        }
        if "reuse_model" not in table and sorted(seeds) != study["seeds"]:
            table["seeds"] = sorted(seeds)
        else:
            table.pop("seeds", None)
    tables["methods"] = list(methods.values())
    return document(tables)


def _evaluation(row: Row) -> tuple[str, int, str, int]:
    return row["method"], int(row["seed"]), row["shift"], int(row["severity"])


def _model(row: Row) -> tuple[str, int]:
    return row["method"], int(row["seed"])


def _read_csv(text: str) -> list[Row]:
    return list(csv.DictReader(io.StringIO(text)))


def _csv(names: Sequence[str], rows: Sequence[Row]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
