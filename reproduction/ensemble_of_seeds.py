"""Make an ensemble of networks that a study has trained with several seeds, instead of training its members again.

    avuc study reproduction/recipes/baselines.toml --out OUT --only Vanilla ...
    python reproduction/ensemble_of_seeds.py reproduction/recipes/baselines.toml OUT Vanilla Ensemble ...
    avuc study reproduction/recipes/baselines.toml --out OUT ...

The members are the seeds of the first method in the order of the recipe; there must be as many as the ensemble has
members, trained with the same settings. This writes the checkpoint of a finished training, so the last command only
evaluates the ensemble. Further arguments are changes of the recipe: --set KEY=VALUE, as for `avuc study`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from avuc.core.errors import InputError, run_script
from avuc.methods import Ensemble
from avuc.study.grid import ModelKey
from avuc.study.recipe import load_recipe
from avuc.study.worker import StudyWorker
from avuc.training.checkpoint import Checkpoint, latest, save


def assemble(recipe_path: str, folder: Path, single: str, ensemble: str, changes: Sequence[str] = ()) -> Path:
    """Write the checkpoint of the ensemble and return its path."""
    recipe = load_recipe(recipe_path, list(changes))
    first, second = recipe.method(single), recipe.method(ensemble)
    seeds, made = recipe.seeds(first), second.method
    if not isinstance(made, Ensemble) or made.member != first.method or made.members != len(seeds):
        raise InputError(f"{ensemble}: expected an ensemble of {len(seeds)} models like {single}, one for each seed")
    if (first.train, first.objective) != (second.train, second.objective):
        raise InputError(f"{ensemble} and {single} have different settings of training")
    if len(recipe.seeds(second)) != 1:
        raise InputError(f"{ensemble}: expected one seed; the members are those of {single}")
    worker = StudyWorker(recipe, folder, "cpu", progress=False)
    tensors, history, seconds = {}, [], 0.0
    for member, seed in enumerate(seeds):
        job = worker._job(ModelKey(single, seed))
        assert job.directory is not None
        found = latest(job.directory, job.identity(), lambda line: print(line, file=sys.stderr))
        if found is None or found.epoch != first.train.epochs:
            raise InputError(f"{job.directory}: {single} with seed {seed} is not trained to its end; run it first")
        for name, tensor in found.tensors.items():
            kind, _, rest = name.partition(".")
            if kind != "optimizer":
                tensors[".".join([kind, str(member), *rest.split(".")[1:]])] = tensor
        history += [{**record, "member": member} for record in found.history]
        seconds = max(seconds, found.seconds)
    history.sort(key=lambda record: (record["epoch"], record["member"]))
    job = worker._job(ModelKey(ensemble, recipe.seeds(second)[0]))
    assert job.directory is not None
    return save(job.directory, Checkpoint(first.train.epochs, history, job.identity(), tensors, seconds=seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("folder", type=Path, help="of the study")
    parser.add_argument("single", help="the method whose seeds are the members")
    parser.add_argument("ensemble", help="the method that gets them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    args = parser.parse_args()
    print(assemble(args.recipe, args.folder, args.single, args.ensemble, args.changes))
    return 0


if __name__ == "__main__":
    run_script(main)
