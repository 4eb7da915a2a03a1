"""Build an ensemble from networks that a study has already trained with several seeds, without training again.

    avuc study reproduction/recipes/baselines.toml --out OUT --only Vanilla ...
    python reproduction/ensemble_of_seeds.py reproduction/recipes/baselines.toml OUT Vanilla Ensemble ...
    avuc study reproduction/recipes/baselines.toml --out OUT ...

Each seed of the first method becomes one member, in the order of the recipe. The method needs as many seeds as the
ensemble has members, and both methods need the same training settings. The script writes the checkpoint of a finished
training, so the last command only evaluates the ensemble. --set KEY=VALUE changes the recipe, as in `avuc study`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from avuc.core.errors import InputError, run_script
from avuc.methods import Ensemble
from avuc.study.grid import ModelKey
from avuc.study.recipe.load import load_recipe
from avuc.study.worker import StudyWorker
from avuc.training.checkpoint import Checkpoint, latest, save


def assemble(recipe_path: str, folder: Path, single: str, ensemble: str, changes: Sequence[str] = ()) -> Path:
    """Write the checkpoint of the ensemble and return its path.

    Args:
        recipe_path: a recipe file, or the name of a recipe of the package.
        folder: the folder of the study, with the checkpoints of the members.
        single: the method whose seeds become the members.
        ensemble: the method that is an ensemble of them.
        changes: settings "KEY=VALUE" that replace those of the recipe.
    """
    recipe = load_recipe(recipe_path, list(changes))
    first, second = recipe.method(single), recipe.method(ensemble)
    seeds, ensemble_method = recipe.seeds(first), second.method
    if (
        not isinstance(ensemble_method, Ensemble)
        or ensemble_method.member != first.method
        or ensemble_method.members != len(seeds)
    ):
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
        checkpoint = latest(job.directory, job.identity(), lambda line: print(line, file=sys.stderr))
        if checkpoint is None or checkpoint.epoch != first.train.epochs:
            raise InputError(f"{job.directory}: {single} with seed {seed} is not trained to its end; run it first")
        for name, tensor in checkpoint.tensors.items():
            kind, _, rest = name.partition(".")
            if kind != "optimizer":
                tensors[".".join([kind, str(member), *rest.split(".")[1:]])] = tensor
        history += [{**record, "member": member} for record in checkpoint.history]
        seconds = max(seconds, checkpoint.seconds)
    history.sort(key=lambda record: (record["epoch"], record["member"]))
    job = worker._job(ModelKey(ensemble, recipe.seeds(second)[0]))
    assert job.directory is not None
    return save(job.directory, Checkpoint(first.train.epochs, history, job.identity(), tensors, seconds=seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("folder", type=Path, help="folder of the study")
    parser.add_argument("single", help="the method whose seeds are the members")
    parser.add_argument("ensemble", help="the method that is an ensemble of them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    args = parser.parse_args()
    print(assemble(args.recipe, args.folder, args.single, args.ensemble, args.changes))
    return 0


if __name__ == "__main__":
    run_script(main)
