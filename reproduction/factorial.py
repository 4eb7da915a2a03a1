"""When does AvUC help? A factorial experiment on CIFAR-10: its recipes, written before the first run, and its analysis.

    python reproduction/factorial.py                   # writes recipes/factorial-pilot.toml and recipes/factorial.toml
    python reproduction/factorial.py --match STUDY     # after the pilot: prints the matched strength of the penalty
                                                       # and writes results/factorial-pilot.csv
    python reproduction/factorial.py --analyse STUDY   # prints the tables of whatever is finished

ResNet-20, training {Adam, SGD with weight decay, SGD with weight decay and AugMix} × posterior {none, weight noise
without KL, MOPED with δ = 0.1 tuned for 30 epochs} × loss {none, AvUC as printed, `monotone`, confidence penalty}, five
paired seeds, each with and without temperature scaling.

**Primary figures**, for each training × posterior: the difference of each loss from "none" after temperature scaling,
in NLL, ECE, AURC and AvU-AUC (mean over the sixteen shifts at intensity 5), and in AUROC (SVHN, CIFAR-100).
Each is the mean over five paired seeds with the 95 % interval of Student's t. An effect is claimed if its interval
excludes zero. There are 9 × 3 comparisons per figure, so about one in twenty excludes zero by chance; the page says so.
AvUC is said to help *beyond lower confidence* where its interval against the confidence penalty excludes zero, too.
The secondary figure is the gain plotted against the remaining training error (1 − training accuracy of "none").

**Matched strength.** The confidence penalty subtracts β·(mean entropy) from the loss. Its β is chosen for each training
× posterior by the pilot, before the experiment: one seed that is not used again, 60 epochs, held-out training images
only. It takes the strength in `PENALTIES` whose mean confidence on the clean held-out images is nearest to that of AvUC
as printed. `MATCHED` holds the chosen strengths, results/factorial-pilot.csv the figures that they were chosen by.

**What the pilot showed** (one seed, so no claim): with SGD and without a posterior, AvUC as printed ends with a mean
confidence of 0.15 (AugMix: 0.17) and 61 % (65 %) of the images right, "none" with 0.95 (0.93) and 92 % (93 %). No
penalty in `PENALTIES` goes below 0.50 there, so the match is the largest one and not a match in confidence. With MOPED,
AvUC leaves the network more confident than every penalty, so the match is the smallest one. The experiment was not
changed after this; its page must say so.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"
PILOT = Path(__file__).parent / "results" / "factorial-pilot.csv"
PILOT_EPOCHS = Path(__file__).parent / "results" / "factorial-pilot-epochs.csv"
PILOT_LOGGED = ("accuracy", "avu", "nll", "avuc", "total")
PILOT_METRICS = ("mean_confidence", "accuracy", "ece", "nll")
PENALTIES = (0.05, 0.1, 0.2, 0.4, 0.8)
# (training, posterior) → β of the confidence penalty, from the pilot
MATCHED: dict[tuple[str, str], float] = {
    ("Adam", "none"): 0.1,
    ("Adam", "noise"): 0.4,
    ("Adam", "MOPED"): 0.05,
    ("SGD", "none"): 0.8,
    ("SGD", "noise"): 0.8,
    ("SGD", "MOPED"): 0.05,
    ("AugMix", "none"): 0.8,
    ("AugMix", "noise"): 0.4,
    ("AugMix", "MOPED"): 0.05,
}

TRAININGS = {
    "Adam": {},
    "SGD": {
        "optimizer": '"sgd"',
        "learning_rate": "0.1",
        "nesterov": "true",
        "weight_decay": "5e-4",
        "milestones": "[100, 150, 180]",
        "factors": "[0.2, 0.04, 0.008]",
    },
}
TRAININGS["AugMix"] = {**TRAININGS["SGD"], "augmentation": '"augmix"'}
# MOPED is tuned as in cifar10-best
TUNING = {
    "epochs": "30",
    "learning_rate": "3e-4",
    "milestones": "[15, 22, 27]",
    "factors": "[0.3, 0.1, 0.03]",
    "validate_every": "10",
    "checkpoint_every": "10",
}
NOISE = '{ kind = "svi", prior_std = 1.0, initial_std = 0.1269280110429725 }'
MOPED = '{ kind = "svi", moped = true, delta = 0.1 }'
POSTERIORS = ("none", "noise", "MOPED")
LOSSES = ("none", "AvUC", "monotone", "penalty")

HEAD = """\
# {comment}
# Written by reproduction/factorial.py, which explains the experiment. Do not edit.
[study]
name = "{name}"
seeds = [{seeds}]
samples = 32
{study}precision = "bfloat16"

[data]
source = "cifar10"
validation = 5000
{data}
[net]
name = "resnet20"
mean = [0.4914, 0.4822, 0.4465]
std = [0.247, 0.2435, 0.2616]

[train]
epochs = {epochs}
batch_size = 107
optimizer = "adam"
learning_rate = 1.189e-3
milestones = {milestones}
factors = [0.1, 0.01, 0.001, 0.0005]
pad = 4
flip = true
precision = "bfloat16"
validate_every = 20
checkpoint_every = 20
models_per_step = 10
"""


def name_of(training: str, posterior: str, loss: str) -> str:
    """Return the name of a method of the experiment."""
    return f"{training}, {posterior}, {loss}"


def objective(posterior: str, loss: str, beta: float, warmup: int) -> str:
    """Return the recipe's `objective` table: the loss, and the weight of the KL term for this posterior."""
    kl = {"none": [], "noise": ["kl_gradient = false"], "MOPED": ["kl_weight = 0.1"]}[posterior]
    terms = {
        "none": [],
        "AvUC": ['kind = "avuc"', "beta = 3.0", 'variant = "paper"', f"warmup_epochs = {warmup}"],
        "monotone": ['kind = "avuc"', "beta = 3.0", 'variant = "monotone"', f"warmup_epochs = {warmup}"],
        "penalty": ['kind = "confidence_penalty"', f"beta = {beta}"],
    }[loss]
    return "{ " + ", ".join([*terms, *kl]) + " }" if terms or kl else ""


def method_table(training: str, posterior: str, loss: str, *, share: float, beta: float, name: str = "") -> str:
    """Return the [[methods]] table of one network.

    Args:
        training: a key of `TRAININGS`.
        posterior: one of `POSTERIORS`.
        loss: one of `LOSSES`.
        share: number of epochs, as a fraction of 200.
        beta: strength of the confidence penalty; other losses ignore it.
        name: name of the method; by default that of `name_of`.
    """
    settings = dict(TRAININGS[training])
    if "milestones" in settings and share != 1:
        settings["milestones"] = "[" + ", ".join(str(round(epoch * share)) for epoch in (100, 150, 180)) + "]"
    if posterior == "MOPED":
        settings = {key: value for key, value in settings.items() if key == "augmentation"} | TUNING
    kind = {"none": '"vanilla"', "noise": NOISE, "MOPED": MOPED}[posterior]
    lines = ["[[methods]]", f'name = "{name or name_of(training, posterior, loss)}"', f"method = {kind}"]
    if text := objective(posterior, loss, beta, warmup=2 if posterior == "MOPED" else 5):
        lines.append(f"objective = {text}")
    if settings:
        lines.append("train = { " + ", ".join(f"{key} = {value}" for key, value in settings.items()) + " }")
    if posterior == "MOPED":
        lines.append(f'init_from = "{name_of(training, "none", "none")}"')
    return "\n".join(lines)


def temperature_table(name: str) -> str:
    """Return the [[methods]] table that adds temperature scaling to the method `name`."""
    return f'[[methods]]\nname = "{name} + TS"\nreuse_model = "{name}"\ncalibrator = "temperature"'


def recipe_text(head: str, tables: Sequence[str]) -> str:
    """Return a recipe: its head and its [[methods]] tables, with an empty line between them."""
    return "\n\n".join([head.rstrip(), *tables]) + "\n"


def pilot() -> str:
    """Return the recipe that matches the confidence penalty to AvUC, without test data."""
    head = HEAD.format(
        comment="Which confidence penalty lowers confidence as much as AvUC does? Held-out training images only.",
        name="factorial-pilot",
        seeds="100",
        study='shifts = ["jpeg_compression"]\nseverities = [3]\n',
        data="evaluate_on_validation = true\n",
        epochs=60,
        milestones="[24, 36, 48, 54]",
    )
    tables = []
    for training in TRAININGS:
        tables.append(method_table(training, "none", "none", share=0.3, beta=0))
        for posterior in POSTERIORS:
            tables.append(method_table(training, posterior, "AvUC", share=0.3, beta=0))
            for beta in PENALTIES:
                name = f"{name_of(training, posterior, 'penalty')} {beta}"
                tables.append(method_table(training, posterior, "penalty", share=0.3, beta=beta, name=name))
    return recipe_text(head, tables)


def experiment(matched: dict[tuple[str, str], float]) -> str:
    """Return the recipe of the experiment: 36 networks for each of five seeds, without and with temperature scaling."""
    head = HEAD.format(
        comment="When does AvUC help? Training × posterior × loss, five paired seeds, each also with a temperature.",
        name="factorial",
        seeds="0, 1, 2, 3, 4",
        study='severities = [3, 5]\nood = [{ name = "svhn", first = 10000 }, "cifar100"]\n',
        data="",
        epochs=200,
        milestones="[80, 120, 160, 180]",
    )
    tables = []
    for training in TRAININGS:
        for posterior in POSTERIORS:
            for loss in LOSSES:
                name = name_of(training, posterior, loss)
                tables.append(method_table(training, posterior, loss, share=1, beta=matched[training, posterior]))
                tables.append(temperature_table(name))
    return recipe_text(head, tables)


def match(folder: Path) -> dict[tuple[str, str], float]:
    """Write the figures of the finished pilot to `PILOT` and `PILOT_EPOCHS`; return its `nearest_penalties`."""
    from avuc.core.atomic import atomic_path
    from avuc.report.study.paper_comparison import figure
    from avuc.report.study.results import read_results
    from avuc.study import Store

    results = read_results(Store(folder, create=False))
    with atomic_path(PILOT) as path, path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["method", *PILOT_METRICS])
        for name in results.names:
            table.writerow([name, *(f"{figure(results, name, metric, 'clean').value:.5f}" for metric in PILOT_METRICS)])
    with atomic_path(PILOT_EPOCHS) as path, path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["method", "epoch", *PILOT_LOGGED])
        for training in TRAININGS:  # shows how AvUC as printed trains a plain network
            name = name_of(training, "none", "AvUC")
            for record in results.methods[results.names.index(name)].history[0]:
                values = ["" if record.get(key) is None else f"{record[key]:.5g}" for key in PILOT_LOGGED]
                table.writerow([name, record["epoch"] + 1, *values])
    return nearest_penalties(read_pilot().__getitem__)


def read_pilot() -> dict[str, float]:
    """Return the mean confidence of every method of the pilot on the clean held-out images, from `PILOT`."""
    with PILOT.open(encoding="utf-8", newline="") as file:
        return {line["method"]: float(line["mean_confidence"]) for line in csv.DictReader(file)}


def nearest_penalties(confidence: Callable[[str], float]) -> dict[tuple[str, str], float]:
    """Return for each training × posterior the penalty with the mean confidence nearest to that of AvUC as printed.

    Args:
        confidence: name of a method → its mean confidence on the clean held-out images.
    """
    matched = {}
    for training in TRAININGS:
        for posterior in POSTERIORS:
            target = confidence(name_of(training, posterior, "AvUC"))
            candidates = {beta: confidence(f"{name_of(training, posterior, 'penalty')} {beta}") for beta in PENALTIES}
            if not all(math.isfinite(value) for value in (target, *candidates.values())):
                raise SystemExit(f"{training} × {posterior} is not complete; run the pilot to its end")
            matched[training, posterior] = min(candidates, key=lambda beta: abs(candidates[beta] - target))
    return matched


def analyse(folder: Path) -> str:
    """Return a Markdown table for each primary figure, with all comparisons that are finished."""
    sys.path.insert(0, str(Path(__file__).parent / "pages"))
    import reproduction_factorial
    from make_reproduction import read_study

    return reproduction_factorial.analyse(read_study("factorial", folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", metavar="STUDY", type=Path, help="folder of the finished pilot")
    parser.add_argument("--analyse", metavar="STUDY", type=Path, help="folder of the experiment")
    args = parser.parse_args()
    if args.match:
        print("MATCHED =", match(args.match))
    elif args.analyse:
        print(analyse(args.analyse))
    else:
        (RECIPES / "factorial-pilot.toml").write_text(pilot(), encoding="utf-8")
        if MATCHED:
            (RECIPES / "factorial.toml").write_text(experiment(MATCHED), encoding="utf-8")
        else:
            print("factorial.toml is not written: MATCHED is empty; run the pilot first", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
