"""What a study trains and evaluates: models, sets of images, and the order of the work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from avuc.core.errors import InputError
from avuc.core.text import did_you_mean

if TYPE_CHECKING:
    from avuc.study.recipe.config import MethodConfig, Recipe


@dataclass(frozen=True, order=True)
class ModelKey:
    """A trained model: the method that trains it, and the seed."""

    method: str
    seed: int


@dataclass(frozen=True, order=True)
class TestSet:
    """A set of images: "validation", "clean", a shift at a severity, or "ood:NAME". Only shifts have a severity > 0."""

    __test__ = False  # not for pytest
    shift: str
    severity: int = 0

    @property
    def outside(self) -> bool:
        """Whether these are out-of-distribution images."""
        return self.shift.startswith("ood:")

    def __str__(self) -> str:
        return f"{self.shift} {self.severity}" if self.severity else self.shift


VALIDATION, CLEAN = TestSet("validation"), TestSet("clean")
# (method, seed, shift, severity) of finished evaluations
Done = set[tuple[str, int, str, int]]


def all_sets(shifts: Iterable[str], severities: Sequence[int], others: Iterable[str]) -> list[TestSet]:
    """Return all sets of images in the order of their evaluation.

    Validation comes first, because temperatures and thresholds are learned there; then the clean images, which
    detection metrics compare with; then shifts and out-of-distribution data (`others`, by name).

    >>> [str(test_set) for test_set in all_sets(["fog"], [1, 5], ["svhn"])]
    ['validation', 'clean', 'fog 1', 'fog 5', 'ood:svhn']
    """
    shifted = [TestSet(name, severity) for name in shifts for severity in severities]
    return [VALIDATION, CLEAN, *shifted, *(TestSet(f"ood:{name}") for name in others)]


@dataclass(frozen=True)
class Plan:
    """The work of a recipe, in the order it is done.

    Args:
        recipe: the study.
        only: names of methods; plan only what these need. Empty for all.
    """

    recipe: Recipe
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [method.name for method in self.recipe.methods]
        for name in self.only:
            if name not in names:
                raise InputError(f"--only {name}: the recipe has no such method; {did_you_mean(name, names)}")

    def check_epochs(self) -> None:
        """Raise if a model that is planned would have too few epochs for its posterior, before anything is trained."""
        for name in dict.fromkeys(key.method for key in self.models):
            config = self.recipe.method(name)
            assert config.method is not None
            key, epochs = ("skip_training", 0) if config.skip_training else ("train.epochs", config.train.epochs)
            try:
                config.method.check_epochs(epochs)
            except InputError as error:
                raise InputError(f"methods.{name}.{key}: {error}") from error

    def methods(self, model: str) -> list[MethodConfig]:
        """Return the planned methods that use the model trained by `model`."""
        return [method for method in self.recipe.variants(model) if not self.only or method.name in self.only]

    @property
    def models(self) -> list[ModelKey]:
        """The models to train; those that others are initialised from come first."""
        needed = [method for method in self.recipe.trained if self.methods(method.name)]
        starts = {method.init_from for method in needed}
        trained = [method for method in self.recipe.trained if method in needed or method.name in starts]
        trained.sort(key=lambda method: bool(method.init_from))
        return [ModelKey(method.name, seed) for method in trained for seed in self.recipe.seeds(method)]

    @property
    def sets(self) -> list[TestSet]:
        """The sets of images, in the order of `all_sets`."""
        study = self.recipe.study
        return all_sets(study.shifts, study.severities, [other.name for other in study.others])

    def pending(self, key: ModelKey, test_set: TestSet, done: Done) -> list[MethodConfig]:
        """Return the methods of a model that are not evaluated on a set yet."""
        return [
            method
            for method in self.methods(key.method)
            if (method.name, key.seed, test_set.shift, test_set.severity) not in done
        ]

    def unfinished_sets(self, done: Done) -> set[TestSet]:
        """Return the sets on which a planned method is not evaluated yet."""
        return {test_set for test_set in self.sets if any(self.pending(key, test_set, done) for key in self.models)}

    def alike(self, key: ModelKey, test_set: TestSet, done: Done) -> int:
        """Return on how many sets of the same kind a model is not evaluated yet; shifted images may be larger."""
        if not test_set.severity:
            return 1
        return sum(bool(other.severity and self.pending(key, other, done)) for other in self.sets)

    def ready(self, key: ModelKey, test_set: TestSet, done: Done) -> bool:
        """Return whether a model has evaluations left on a set, and all evaluations they depend on are finished."""
        before = {VALIDATION: [], CLEAN: [VALIDATION]}.get(test_set, [VALIDATION, CLEAN])
        return bool(self.pending(key, test_set, done)) and not any(
            self.pending(key, earlier, done) for earlier in before
        )

    @property
    def evaluations(self) -> int:
        """How many evaluations there are in all."""
        return sum(len(self.methods(key.method)) for key in self.models) * len(self.sets)

    def groups(self, keys: Iterable[ModelKey], models_per_step: int | None = None) -> list[list[ModelKey]]:
        """Return groups of models that train together: equal settings, and none is initialised from another.

        Args:
            keys: the models.
            models_per_step: the most networks in a group; None to use their settings. Models with a frozen trunk always
                use their settings.
        """
        by_settings: dict[object, list[list[ModelKey]]] = {}
        for key in keys:
            method = self.recipe.method(key.method)
            assert method.method is not None
            # streams of files have an order for each seed, so models of different seeds cannot share batches
            own = key.seed if self.recipe.data.stream else None
            groups = by_settings.setdefault((bool(method.init_from), method.train, own), [[]])
            # models with a frozen trunk are always trained together, because they share its pass
            frozen = method.train.freeze_trunk
            limit = method.train.models_per_step if models_per_step is None or frozen else models_per_step
            members = sum(self.members(other) for other in groups[-1])
            if groups[-1] and members + method.method.members > limit:
                groups.append([])
            groups[-1].append(key)
        return [group for groups in by_settings.values() for group in groups]

    def members(self, key: ModelKey) -> int:
        """Return how many networks a model has."""
        method = self.recipe.method(key.method).method
        return 1 if method is None else method.members
