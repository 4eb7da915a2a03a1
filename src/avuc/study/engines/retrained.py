"""Networks that a study trains again, because their results are stored but their weights are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from avuc.study.grid import Done, ModelKey, Plan

# figures of an epoch that differ between two runs of one program
TIMES = ("seconds", "images_per_second")
# published copies keep five digits
TOLERANCE = 2e-5


def comparison(key: ModelKey, stored: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> str:
    """Return a line that says whether a repeated training gave the network that the stored results come from.

    Args:
        key: the model.
        stored: the stored record of each epoch, with "member" and "epoch"; copies of a study may hold fewer figures.
        now: the records of the new training.

    >>> record = {"member": 0, "epoch": 7, "accuracy": 0.9, "seconds": 2.0}
    >>> comparison(ModelKey("Vanilla", 0), [record], [{**record, "seconds": 3.0}])
    'trained Vanilla (seed 0) again: its epochs have the stored figures'
    >>> comparison(ModelKey("Vanilla", 0), [record], [{**record, "accuracy": 0.8}])
    'trained Vanilla (seed 0) again, not exactly as before: epoch 8 has accuracy 0.8, stored is 0.9'
    """
    begin = f"trained {key.method} (seed {key.seed}) again"
    before = {(record["member"], record["epoch"]): record for record in stored}
    differences = [
        (record["epoch"], name, record[name], old[name])
        for record in now
        if (old := before.get((record["member"], record["epoch"]))) is not None
        for name in sorted(set(record) & set(old) - set(TIMES))
        if not _same(record[name], old[name])
    ]
    if not before:
        return f"{begin}: no epoch of its first training is stored, so the two cannot be compared"
    if not differences:
        return f"{begin}: its epochs have the stored figures"
    last = max(each[0] for each in differences)
    in_last_epoch = [each for each in differences if each[0] == last]
    epoch, name, new, old = next((each for each in in_last_epoch if each[1] == "accuracy"), in_last_epoch[0])
    return f"{begin}, not exactly as before: epoch {epoch + 1} has {name} {_short(new)}, stored is {_short(old)}"


def to_train(plan: Plan, trained: set[ModelKey], held: set[ModelKey], done: Done) -> list[ModelKey]:
    """Return the models to train, and trained models with missing weights that evaluations or other models need.

    Args:
        plan: the work.
        trained: models with a stored training.
        held: models whose weights are available.
        done: finished evaluations.
    """
    missing = [
        key
        for key in plan.models
        if key not in trained or (key not in held and any(plan.pending(key, test_set, done) for test_set in plan.sets))
    ]
    starts = {ModelKey(plan.recipe.method(key.method).init_from, key.seed) for key in missing}
    return [key for key in plan.models if key in missing or (key in starts and key not in held)]


def _same(new: Any, old: Any) -> bool:
    if not isinstance(new, float | int) or not isinstance(old, float | int):
        return bool(new == old)
    # two NaN count as equal
    return new == old or (new != new and old != old) or abs(new - old) <= TOLERANCE * max(abs(new), abs(old))


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
