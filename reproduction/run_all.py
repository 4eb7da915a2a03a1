"""Run all published CIFAR-10 studies again, one after another; `make reproduce DATA=FOLDER` calls this.

    python reproduction/run_all.py --data FOLDER --out out/reproduce [--minutes 60] [--ood LIST] -- [changes of recipes]

You can stop it at any time; the same command continues. With --minutes, each study stops after that time with exit code
75. Arguments after `--` are passed to every study, for example --set train.epochs=1.

In two studies, the members of the ensemble are the seeds of another method (ensemble_of_seeds.py). The study `past`
evaluates only the method that past.py chooses from `past-choice`, and the methods that it is compared with.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import past

from avuc.core.errors import InputError, run_script

HERE = Path(__file__).parent
FOLDER = "reproduction/recipes"
# folder of the study → name of a recipe of the package, or a recipe file; in the order in which they run
RECIPES = {
    "paper": "cifar10-paper",
    "code": "cifar10-code",
    "code-pretrained": f"{FOLDER}/cifar10-code-pretrained.toml",
    "code-switches": f"{FOLDER}/code-switches.toml",
    "code-49500": f"{FOLDER}/code-49500.toml",
    "beta": f"{FOLDER}/beta-ablation.toml",
    "ablation": f"{FOLDER}/cifar10-ablation.toml",
    "choice": f"{FOLDER}/cifar10-choice.toml",
    "best": "cifar10-best",
    "factorial": f"{FOLDER}/factorial.toml",
    "factorial-tenth": f"{FOLDER}/factorial-tenth.toml",
    "factorial-noisy-labels": f"{FOLDER}/factorial-noisy-labels.toml",
    "factorial-resnet56": f"{FOLDER}/factorial-resnet56.toml",
    "baselines": f"{FOLDER}/baselines.toml",
    "past-choice": f"{FOLDER}/past-choice.toml",
    "past": f"{FOLDER}/past.toml",
}
# studies on held-out training images, which have no out-of-distribution data
HELD_OUT = ("ablation", "choice", "past-choice")
# study → the method whose seeds are the members of its Ensemble
MEMBERS = {"baselines": "Vanilla", "past": "SGD"}


def commands(name: str, arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the commands of one study, each as a list of arguments."""
    recipe, folder = RECIPES[name], str(arguments.out / name)
    changes = ["--set", f"data.root={arguments.data}"]
    if arguments.ood and name not in HELD_OUT:
        changes += ["--set", f"study.ood={arguments.ood}"]
    study = [sys.executable, "-m", "avuc", "study", recipe, "--out", folder, *changes]
    study += ["--minutes", str(arguments.minutes)] * bool(arguments.minutes)
    study += arguments.changes
    if name in MEMBERS:
        yield [*study, "--only", MEMBERS[name], "--no-report"]
        ensemble = [sys.executable, str(HERE / "ensemble_of_seeds.py"), recipe, folder, MEMBERS[name], "Ensemble"]
        yield [*ensemble, *changes, *settings_of(arguments.changes)]
    if name == "past":
        for method in past.evaluated(past.choose(arguments.out / "past-choice")):
            study += ["--only", method]
    yield study


def settings_of(changes: Sequence[str]) -> list[str]:
    """Return the `--set KEY=VALUE` among the arguments of `avuc study`."""
    return [part for flag, value in pairwise(changes) if flag == "--set" for part in (flag, value)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="folder that holds cifar-10-batches-py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the studies")
    parser.add_argument("--ood", default="", help='out-of-distribution data, like ["svhn", "textures.npy"]')
    parser.add_argument("--minutes", type=float, default=0.0, help="stop each study after this time, with exit code 75")
    parser.add_argument("--only", action="append", choices=tuple(RECIPES), help="a study; default: all of them")
    parser.add_argument("changes", nargs="*", help="passed to every study, after --")
    args = parser.parse_args(arguments)
    if not Path(args.data).is_dir():
        raise InputError(f"{args.data}: no such folder; --data names the folder that holds cifar-10-batches-py")
    for name in args.only or RECIPES:
        for command in commands(name, args):
            code = subprocess.run(command, check=False).returncode
            if code:
                return code
    return 0


if __name__ == "__main__":
    run_script(main)
