"""What there is to train and to judge: models, sets, cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from avuc.core.errors import InputError
from avuc.study.recipe import Recipe, Row
from avuc.study.tables import did_you_mean

__all__ = ["CLEAN", "VALIDATION", "Done", "ModelKey", "Plan", "TestSet"]


@dataclass(frozen=True, order=True)
class ModelKey:
    """A trained model: the row that trains it, and the seed."""

    method: str
    seed: int


@dataclass(frozen=True, order=True)
class TestSet:
    """The images of a cell: "validation", "clean", a shift at a severity, or "ood:NAME"; severity 0 but for shifts."""

    __test__ = False  # not for pytest
    shift: str
    severity: int = 0

    @property
    def outside(self) -> bool:
        return self.shift.startswith("ood:")

    def __str__(self) -> str:
        return f"{self.shift} {self.severity}" if self.severity else self.shift


VALIDATION, CLEAN = TestSet("validation"), TestSet("clean")
Done = set[tuple[str, int, str, int]]


@dataclass(frozen=True)
class Plan:
    """The work of a recipe, in the order it is done; all of it, or what `only` these rows need."""

    recipe: Recipe
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [row.name for row in self.recipe.methods]
        for name in self.only:
            if name not in names:
                raise InputError(f"--only {name}: the recipe has no such row; {did_you_mean(name, names)}")

    def rows(self, model: str) -> list[Row]:
        """The rows that read a model, of those that are to be judged."""
        return [row for row in self.recipe.variants(model) if not self.only or row.name in self.only]

    @property
    def models(self) -> list[ModelKey]:
        """Rows that others start from come first."""
        needed = [row for row in self.recipe.trained if self.rows(row.name)]
        starts = {row.start for row in needed}
        rows = [row for row in self.recipe.trained if row in needed or row.name in starts]
        rows.sort(key=lambda row: bool(row.start))
        return [ModelKey(row.name, seed) for row in rows for seed in self.recipe.seeds(row)]

    @property
    def sets(self) -> list[TestSet]:
        """Validation first, for temperatures and thresholds; then clean, which detection is measured against."""
        study = self.recipe.study
        shifted = [TestSet(name, severity) for name in study.shifts for severity in study.severities]
        return [VALIDATION, CLEAN, *shifted, *(TestSet(f"ood:{other.name}") for other in study.others)]

    def pending(self, key: ModelKey, test_set: TestSet, done: Done) -> list[Row]:
        """The rows of a model that have no results on a set yet."""
        return [
            row for row in self.rows(key.method) if (row.name, key.seed, test_set.shift, test_set.severity) not in done
        ]

    def ready(self, key: ModelKey, test_set: TestSet, done: Done) -> bool:
        """Whether a model has something left to do on a set, and knows what its cells there are judged by."""
        before = {VALIDATION: [], CLEAN: [VALIDATION]}.get(test_set, [VALIDATION, CLEAN])
        return bool(self.pending(key, test_set, done)) and not any(self.pending(key, one, done) for one in before)

    @property
    def cells(self) -> int:
        """How many there are in all."""
        return sum(len(self.rows(key.method)) for key in self.models) * len(self.sets)

    def groups(self, keys: Iterable[ModelKey], at_once: int | None = None) -> list[list[ModelKey]]:
        """Models that train side by side: equal settings, and nobody waits for a start inside a group."""
        found: dict[object, list[list[ModelKey]]] = {}
        for key in keys:
            row = self.recipe.row(key.method)
            assert row.method is not None
            # streams of files have an order for each seed, and so their own data
            own = key.seed if self.recipe.data.stream else None
            groups = found.setdefault((bool(row.start), row.train, own), [[]])
            limit = at_once or row.train.at_once
            members = sum(self.members(other) for other in groups[-1])
            if groups[-1] and members + row.method.members > limit:
                groups.append([])
            groups[-1].append(key)
        return [group for groups in found.values() for group in groups]

    def members(self, key: ModelKey) -> int:
        """How many networks a model is."""
        method = self.recipe.row(key.method).method
        return 1 if method is None else method.members
