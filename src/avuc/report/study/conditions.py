"""What two studies must share so that their figures can be compared: test data, shifts and bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from avuc.report.study.result_arrays import CLEAN, SetKey
from avuc.study.recipe.portable import without_folder

if TYPE_CHECKING:
    from avuc.study.store.recipe import StoredRecipe
    from avuc.study.store.store import Store

BINS = "the number of bins"
SHIFTS = {"profile": "the profile of the shifts", "shift_seed": "the seed of the shifts", "shift_size": "shift_size"}
SOURCE, RELEASED = "the test data", "whether shifted images are generated or read from files"
DIGEST = "digest of "


def conditions_of(store: Store, recipe: StoredRecipe) -> dict[str, str]:
    """Return what the results of a study depend on besides its methods, by name; digests for data."""
    study, data = (recipe.tables.get(name) or {} for name in ("study", "data"))
    stored = {BINS: study.get("bins")} | {text: study.get(key) for key, text in SHIFTS.items()}
    conditions = {name: str(value) for name, value in stored.items() if value is not None}
    held_out = ", held out from the training data" if recipe.data.evaluate_on_validation else ""
    conditions[SOURCE] = without_folder(recipe.data.source) + held_out
    conditions[RELEASED] = "files" if data.get("corruptions_dir") or data.get("released") else "generated"
    if store.select("SELECT 1 FROM sqlite_master WHERE type='table' AND name='data'"):  # not in files of version 0.1.0
        conditions |= {f"{DIGEST}{name}": str(digest) for name, digest in store.select("SELECT name, digest FROM data")}
    return conditions


def different_conditions(first: Mapping[str, str], second: Mapping[str, str], test_sets: Sequence[SetKey]) -> list[str]:
    """Return a warning, in a list, if two studies differ in more than their methods; else an empty list.

    Args:
        first, second: as `conditions_of` returns them; conditions that only one of them has are not compared.
        test_sets: the test sets that both studies have.
    """
    parts = []
    other = {
        shift
        for shift, severity in test_sets
        if _differ(first, second, f"{DIGEST}{shift} {severity}" if severity else f"{DIGEST}{shift}")
    }
    clean = f"{DIGEST}{CLEAN[0]}"
    if CLEAN[0] in other or (not (clean in first and clean in second) and _differ(first, second, SOURCE)):
        parts.append(SOURCE)
    parts += [f"the data {shift!r}" for shift in sorted(other - {CLEAN[0]})]
    shifted = list(dict.fromkeys(shift for shift, severity in test_sets if severity))
    parts += [f"the code of {shift!r}" for shift in shifted if _differ(first, second, f"{DIGEST}code of {shift}")]
    for name in (BINS, *((*SHIFTS.values(), RELEASED) if shifted else ())):
        if _differ(first, second, name):
            parts.append(f"{name} ({first[name]} and {second[name]})")
    if not parts:
        return []
    return [
        f"The two studies differ in {', '.join(parts)}: differences between their results may come from that, not from "
        "the methods."
    ]


def _differ(first: Mapping[str, str], second: Mapping[str, str], name: str) -> bool:
    return name in first and name in second and first[name] != second[name]
