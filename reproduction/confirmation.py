"""The claims of docs/when-to-use-avuc.md about AvUC, tested again: five new seeds, all intensities, 128 samples.

    python reproduction/confirmation.py                      # writes the recipes below
    python reproduction/confirmation.py --analyse FOLDER     # FOLDER/claims-noise and so on: prints every claim

The factorial (factorial.py, factorial_more.py) has seeds 0 to 4, intensities 3 and 5, and 32 samples. Its claims were
made after about a hundred comparisons, so some of them may be chance. Here each claim is tested on new networks, and
nothing else is compared.

| recipe | networks | claim |
|---|---|---|
| `claims-noise` | noise on all weights, Adam: none, `monotone` | `monotone` improves ECE and NLL, no temperature |
| `claims-printed` | plain, SGD: none, AvUC as printed, `monotone` | the printed loss fails, `monotone` does not |
| `claims-tenth` | plain, Adam, a tenth of the images: none, `monotone`, penalty | `monotone` ranks better |
| `claims-noisy-labels` | plain, Adam, 20 % wrong labels: none, `monotone`, penalty | `monotone` improves six figures |

**Rule, written before the first run.** `CLAIMS` has every figure that the decision page calls better or worse for these
networks, with its sign. A claim is confirmed if the 95 % interval of the paired difference over the five new seeds
(Student's t) excludes zero on that side. Figures "5" are means over the sixteen shifts at intensity 5, as before; the
mean over all five intensities is shown beside it and decides nothing. "`monotone` does not fail" is confirmed if its
accuracy on clean images is less than five points below that of "none", with its whole interval. Every claim is
reported, confirmed or not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from factorial import RECIPES
from factorial_more import ERRORS_CORNER, TENTH, corner_recipe, replaced

SEEDS = (5, 6, 7, 8, 9)
SAMPLES = 128
MOST_LOST = 0.05  # accuracy that a loss may cost before it fails


@dataclass(frozen=True)
class Claim:
    """A difference of two methods of one study that the decision page calls better or worse.

    Args:
        study: the recipe.
        first: a method.
        second: the method that it is compared with.
        metric: the figure.
        where: "5", "clean" or an out-of-distribution set.
        sign: of first − second; 0 if the claim is that not more than `MOST_LOST` is lost.
    """

    study: str
    first: str
    second: str
    metric: str
    where: str
    sign: int

    def confirmed(self, low: float, high: float) -> bool:
        """Return whether the interval of first − second, from `low` to `high`, confirms the claim."""
        if self.sign:
            return low > 0 if self.sign > 0 else high < 0
        return low > -MOST_LOST


def claims(study: str, first: str, second: str, *figures: tuple[str, str, int]) -> list[Claim]:
    """Return one claim for each of the `figures`: metric, where, sign."""
    return [Claim(study, first, second, *figure) for figure in figures]


BETTER_WITH_WRONG_LABELS = (("nll", "5", -1), ("aurc", "5", -1), ("auroc", "cifar100", 1))
CLAIMS = (
    *claims("claims-noise", "Adam, noise, monotone", "Adam, noise, none", ("ece", "5", -1), ("nll", "5", -1)),
    *claims("claims-printed", "SGD, none, AvUC", "SGD, none, none", ("accuracy", "clean", -1)),
    *claims("claims-printed", "SGD, none, monotone", "SGD, none, none", ("accuracy", "clean", 0)),
    *claims(
        "claims-tenth",
        "Adam, none, monotone + TS",
        "Adam, none, none + TS",
        ("aurc", "5", -1),
        ("auroc", "svhn", 1),
    ),
    *claims(
        "claims-tenth",
        "Adam, none, monotone + TS",
        "Adam, none, penalty + TS",
        ("avu_auc", "5", 1),
        ("auroc", "svhn", 1),
    ),
    *claims(
        "claims-noisy-labels",
        "Adam, none, monotone + TS",
        "Adam, none, none + TS",
        *BETTER_WITH_WRONG_LABELS,
        ("auroc", "svhn", 1),
        ("accuracy", "clean", 1),
    ),
    *claims("claims-noisy-labels", "Adam, none, monotone", "Adam, none, none + TS", ("nll", "5", -1)),
    *claims(
        "claims-noisy-labels",
        "Adam, none, monotone + TS",
        "Adam, none, penalty + TS",
        *BETTER_WITH_WRONG_LABELS,
        ("avu_auc", "5", 1),
    ),
)


def recipe(name: str, comment: str, corner: tuple[str, str], losses: Sequence[str]) -> str:
    """Return one corner of the factorial with new seeds, all intensities and more samples."""
    text = corner_recipe(name, comment, [corner], losses)
    text = replaced(text, "reproduction/factorial_more.py", "reproduction/confirmation.py")
    text = replaced(text, "seeds = [0, 1, 2, 3, 4]", f"seeds = {list(SEEDS)}")
    return replaced(replaced(text, "samples = 32", f"samples = {SAMPLES}"), "severities = [3, 5]\n", "")


def recipes() -> dict[str, str]:
    """Return the text of each recipe by its name."""
    controls = ("none", "monotone", "penalty")
    tenth = recipe("claims-tenth", "A tenth of the training images, new seeds.", ERRORS_CORNER, controls)
    noisy = recipe(
        "claims-noisy-labels", "A fifth of the training labels is wrong, new seeds.", ERRORS_CORNER, controls
    )
    noisy_data = 'source = "noisy_labels:load"\nvalidation_split = "val"'
    return {
        "claims-noise": recipe(
            "claims-noise", "Noise on all weights, new seeds.", ("Adam", "noise"), ("none", "monotone")
        ),
        "claims-printed": recipe(
            "claims-printed",
            "The printed loss on plain networks, new seeds.",
            ("SGD", "none"),
            ("none", "AvUC", "monotone"),
        ),
        "claims-tenth": replaced(tenth, "validation = 5000", f"validation = 5000\ntrain_images = {TENTH}"),
        "claims-noisy-labels": replaced(noisy, 'source = "cifar10"\nvalidation = 5000', noisy_data),
    }


def analyse(folder: Path) -> str:
    """Return a table with a line for each claim, from the studies in `folder`; unfinished ones are named."""
    sys.path.insert(0, str(Path(__file__).parent / "pages"))
    from make_reproduction import read_study
    from reproduction_seeds import by_seed, difference_text, shared_difference
    from reproduction_tables import markdown

    studies = {
        name: read_study(name, folder / name) for name in recipes() if (folder / name / "study.sqlite").is_file()
    }
    lines = []
    for claim in CLAIMS:
        line = [claim.study, f"{claim.first} − {claim.second}", f"{claim.metric}, {claim.where}", f"{claim.sign:+d}"]
        study = studies.get(claim.study)
        values = (
            [by_seed(study, name, claim.metric, claim.where) for name in (claim.first, claim.second)] if study else []
        )
        if not study or any(set(each) != set(SEEDS) for each in values):
            lines.append([*line, "not finished", "", ""])
            continue
        difference, _ = shared_difference(*values)
        everywhere = ""
        if claim.where == "5":
            means = [by_seed(study, name, claim.metric, "shifted") for name in (claim.first, claim.second)]
            everywhere = difference_text(*means, claim.metric).strip("*")
        answer = "yes" if claim.confirmed(difference.low, difference.high) else "no"
        lines.append([*line, difference_text(*values, claim.metric).strip("*"), everywhere, answer])
    head = ["study", "difference", "figure", "claim", "five new seeds", "all intensities", "confirmed"]
    return markdown(head, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--analyse", metavar="FOLDER", type=Path, help="folder that holds the studies")
    args = parser.parse_args(arguments)
    if args.analyse:
        print(analyse(args.analyse))
        return
    for name, text in recipes().items():
        (RECIPES / f"{name}.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
