"""The factorial experiment on other data and with another network: its recipes, written before the first run.

    python reproduction/factorial_more.py                                            # writes the recipes below
    python reproduction/factorial_more.py --corner "AugMix, noise" --corner "SGD, none"  # second network: other corners

A corner is one training and one posterior of the factorial.

| recipe | what differs from factorial.toml |
|---|---|
| `factorial-tenth` | one corner; 4,500 training images |
| `factorial-noisy-labels` | the same corner; 20 % of the training labels are wrong |
| `factorial-resnet56` | ResNet-56, 100 epochs, three seeds; two corners: where AvUC helps most and harms most |

**Remaining training errors.** AvUC sees training images only. The corner is "Adam, none" (`ERRORS_CORNER`). Its
networks get 99.3 % of the training images right, so AvUC has little to learn from and no clear effect. If that is the
reason, AvUC should help with noisy labels, where training errors remain, and not with few images, which leave fewer
errors. This was written before either study was run. The confidence penalty has the same strength as in the factorial.

**Second network.** The corners are chosen by ΔNLL of the printed loss at intensity 5 after temperature scaling in the
factorial. Of the eight that are measured, "Adam, noise" has the lowest (−0.10) and "SGD, none" the highest (+2.07).
"AugMix, noise" was not run when the second network was trained.

ResNet-56 costs about three times as much as ResNet-20, so its networks train for half the epochs, with the
steps of the learning rate at half the epochs, too (`SECOND_SHARE`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from factorial import (
    LOSSES,
    MATCHED,
    RECIPES,
    TRAININGS,
    experiment,
    method_table,
    name_of,
    recipe_text,
    temperature_table,
)

ERRORS_CORNER = ("Adam", "none")
SECOND_CORNERS = (("Adam", "noise"), ("SGD", "none"))
SECOND_SHARE = 0.5  # of the epochs of the factorial
TENTH = 4500


def corner_recipe(
    name: str,
    comment: str,
    corners: Sequence[tuple[str, str]],
    losses: Sequence[str] = LOSSES,
    share: float = 1,
) -> str:
    """Return factorial.toml with some of its corners, each method without and with temperature scaling.

    Args:
        name: name of the study.
        comment: first line of the recipe.
        corners: (training, posterior) of the networks.
        losses: losses of each corner.
        share: number of epochs, as a fraction of those of the factorial.
    """
    head = experiment(MATCHED).partition("[[methods]]")[0].rstrip()
    if share != 1:
        epochs, steps = round(200 * share), [round(epoch * share) for epoch in (80, 120, 160, 180)]
        head = replaced(replaced(head, "epochs = 200", f"epochs = {epochs}"), "[80, 120, 160, 180]", str(steps))
    lines = head.splitlines()
    lines[:2] = [
        f"# {comment}",
        "# Written by reproduction/factorial_more.py, which explains the experiment. Do not edit.",
    ]
    head = "\n".join(lines).replace('name = "factorial"', f'name = "{name}"')
    combinations = [(training, posterior, loss) for training, posterior in corners for loss in losses]
    initial_networks = [(training, "none", "none") for training, posterior in corners if posterior == "MOPED"]
    tables = []
    for training, posterior, loss in dict.fromkeys([*initial_networks, *combinations]):
        method = name_of(training, posterior, loss)
        tables.append(method_table(training, posterior, loss, share=share, beta=MATCHED[training, posterior]))
        tables.append(temperature_table(method))
    return recipe_text(head, tables)


def replaced(text: str, old: str, new: str) -> str:
    """Return `text` with the first `old` replaced; raise if it is not there."""
    if old not in text:
        raise ValueError(f"{old!r} is not in the recipe")
    return text.replace(old, new, 1)


def recipes(second_corners: Sequence[tuple[str, str]] = SECOND_CORNERS) -> dict[str, str]:
    """Return the text of each recipe by its name."""
    tenth = corner_recipe("factorial-tenth", "A tenth of the training images: does AvUC help?", [ERRORS_CORNER])
    noisy = corner_recipe(
        "factorial-noisy-labels", "A fifth of the training labels is wrong: does AvUC help?", [ERRORS_CORNER]
    )
    noisy_data = 'source = "noisy_labels:load"\nvalidation_split = "val"'
    resnet56 = corner_recipe(
        "factorial-resnet56",
        "ResNet-56: where AvUC helps most and where it harms most. Half the epochs of factorial.toml.",
        second_corners,
        ("none", "AvUC"),
        SECOND_SHARE,
    )
    resnet56 = replaced(resnet56, "seeds = [0, 1, 2, 3, 4]", "seeds = [0, 1, 2]")
    return {
        "factorial-tenth": replaced(tenth, "validation = 5000", f"validation = 5000\ntrain_images = {TENTH}"),
        "factorial-noisy-labels": replaced(noisy, 'source = "cifar10"\nvalidation = 5000', noisy_data),
        "factorial-resnet56": replaced(resnet56, 'name = "resnet20"', 'name = "resnet56"'),
    }


def parse_corner(text: str) -> tuple[str, str]:
    """Return (training, posterior) of the command-line value "training, posterior"."""
    training, _, posterior = text.partition(", ")
    if (training, posterior) not in MATCHED:
        known = "; ".join(map(", ".join, MATCHED))
        raise argparse.ArgumentTypeError(f"no corner {text!r}; there are {known}")
    return training, posterior


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    trainings = ", ".join(TRAININGS)
    parser.add_argument(
        "--corner",
        action="append",
        type=parse_corner,
        help=f'a corner of the second network: "training, posterior" ({trainings})',
    )
    args = parser.parse_args(arguments)
    for name, text in recipes(args.corner or SECOND_CORNERS).items():
        (RECIPES / f"{name}.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
