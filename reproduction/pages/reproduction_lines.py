"""The comparisons of docs/when-to-use-avuc.md: pairs of methods that differ in one thing, and what to use if it helps.

The rule that decides is in reproduction_decision.py; `python reproduction/pages/make_reproduction.py` writes the page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

# figures, as (metric, where it is measured)
DETECTED = (("auroc", "svhn"), ("auroc", "cifar100"))
JUDGED = (("ece", "5"), ("nll", "5"))
RANKED = (("aurc", "5"), ("auroc", "svhn"))


@dataclass(frozen=True)
class Line:
    """A situation, and two methods of a study that differ in one thing.

    Args:
        have: what you have.
        study: name of the study.
        first: the method that may be better.
        second: the method that it is compared with.
        compared: what the first method has and the second has not.
    """

    have: str
    study: str
    first: str
    second: str
    compared: str = ""


@dataclass(frozen=True)
class Decision:
    """A line of the decision table: what is compared, in one or several cases, and what to use.

    Args:
        have: what you have.
        compared: what is compared.
        cases: the comparisons.
        if_helps: what to use if it helps in every case.
        otherwise: what to use otherwise.
        if_fails: what to use if a network fails in a case; empty: `otherwise`.
        aims: figures of which at least one must be clearly better.
    """

    have: str
    compared: str
    cases: tuple[Line, ...]
    if_helps: str
    otherwise: str
    if_fails: str = ""
    aims: tuple[tuple[str, str], ...] = JUDGED


TS = "temperature scaling"
AVUC = "AvUC as printed, β = 3"
REPAIRED = "AvUC `monotone`, β = 3"
REPLACED, BOTH = "`monotone` instead of the printed loss", "both with a temperature"
TRAININGS = {"Adam": "Adam", "SGD": "SGD with weight decay", "AugMix": "SGD with weight decay and AugMix"}
AROUND = "posterior around a trained network"
POSTERIORS = {"none": "plain network", "noise": "noise on all weights, no KL", "MOPED": AROUND}


def corner(training: str, posterior: str) -> Line:
    """Return the printed loss against none for a training and posterior of the factorial, after temperature scaling."""
    prefix, have = f"{training}, {posterior}", f"{POSTERIORS[posterior]}; {TRAININGS[training]}"
    return Line(have, "factorial", f"{prefix}, AvUC + TS", f"{prefix}, none + TS", f"AvUC as printed, {BOTH}")


def trainings(first: str, second: str) -> tuple[Line, ...]:
    """Return the same comparison for every training of the factorial experiment."""
    return tuple(Line(name, "factorial", f"{name}, {first}", f"{name}, {second}") for name in TRAININGS)


def avuc(have: str, loss: str, cases: tuple[Line, ...], **options: Any) -> Decision:
    """Return the line of a loss against none, after temperature scaling.

    Args:
        have: what you have.
        loss: "AvUC" or "monotone".
        cases: the comparisons.
        options: further arguments of `Decision`.
    """
    compared, recommended = {"AvUC": ("AvUC as printed", AVUC), "monotone": ("`monotone`", REPAIRED)}[loss]
    return Decision(have, f"{compared}, {BOTH}", cases, f"{recommended}, and {TS}", f"{TS}; no AvUC", **options)


def noise(*names: str) -> tuple[Line, ...]:
    """Return a comparison with noise on all weights, trained by Adam, in both studies that have it.

    Args:
        names: two methods of `cifar10-code`, which has raw pixels, and two losses of the factorial experiment, which
            has standardised pixels.
    """
    first, second, first_loss, second_loss = names
    return (
        Line("raw pixels", "code", first, second),
        Line("standardised", "factorial", f"Adam, noise, {first_loss}", f"Adam, noise, {second_loss}"),
    )


CORNERS = {(training, posterior): corner(training, posterior) for posterior in POSTERIORS for training in TRAININGS}
NOISE = Line(
    "noise on all weights, no KL; Adam; as the paper's code (`cifar10-code`)",
    "code",
    "SVI-AvUC",
    "SVI",
    "AvUC as printed, both without a temperature",
)
# as NOISE, with one thing changed
NOISE_REPAIRED = Line("the same", "code", "SVI-AvUC, monotone", "SVI-AvUC", REPLACED)
NOISE_TEMPERATURE = Line("the same", "code", "SVI-TS", "SVI", "a temperature, no AvUC")
BEST = Line(f"{AROUND}; AugMix (`cifar10-best`)", "best", "MOPED-AvUC + TS", "MOPED-SVI + TS", f"`monotone`, {BOTH}")
FEW_PRINTED, FEW_REPAIRED, WRONG_PRINTED, WRONG_REPAIRED = (
    Line(have, study, f"Adam, none, {loss} + TS", "Adam, none, none + TS")
    for have, study in (("few images", "factorial-tenth"), ("wrong labels", "factorial-noisy-labels"))
    for loss in ("AvUC", "monotone")
)
AUGMIX = Line("SGD", "factorial", "AugMix, none, none + TS", "SGD, none, none + TS")

WITH_NOISE = "noise on all weights, trained from scratch by Adam"
TEMPERATURE = Decision(
    "a plain network that is trained",
    "a temperature",
    trainings("none, none + TS", "none, none"),
    f"{TS}, or [`auto`](guide/choose-a-calibrator.md)",
    "nothing",
)
AUGMENTED = Decision(
    "a plain network that you train by SGD", f"AugMix, {BOTH}", (AUGMIX,), f"AugMix, then {TS}", f"{TS}; no AugMix"
)
DROPOUT = Decision(
    "a deep network that you train with AugMix (ResNet-56), and time for 32 passes in each prediction",
    f"dropout in training and prediction, {BOTH}",
    (Line("AugMix", "past", "Dropout + TS", "SGD + TS"),),
    f"dropout (rate 0.055), then {TS}",
    f"{TS}; no dropout",
)
POSTERIOR = Decision(
    "a plain network that you can tune further, or other data to detect",
    f"a posterior (MOPED) instead of none, {BOTH}",
    trainings("MOPED, none + TS", "none, none + TS"),
    f"a posterior around it, then {TS}",
    f"{TS}; no posterior",
    aims=(*JUDGED, *DETECTED),
)
PRINTED = avuc(
    "a plain network that you train",
    "AvUC",
    (*trainings("none, AvUC + TS", "none, none + TS"), FEW_PRINTED, WRONG_PRINTED),
    if_fails=f"{TS}; **not** AvUC as printed",
)
MONOTONE = avuc(
    "a plain network that you train on many images with right labels",
    "monotone",
    trainings("none, monotone + TS", "none, none + TS"),
)
FEW_IMAGES = avuc("a plain network that you train on few images (a tenth)", "monotone", (FEW_REPAIRED,), aims=RANKED)
WRONG_LABELS = replace(
    avuc("a plain network that you train on wrong labels (20 %)", "monotone", (WRONG_REPAIRED,)),
    # results/wrong-labels.csv: it helped with SGD, and cost accuracy with Adam
    if_helps=f"try {REPAIRED}, and {TS}: on digits it helped with SGD, not with Adam",
)
AROUND_PRINTED = avuc(f"a {AROUND}", "AvUC", trainings("MOPED, AvUC + TS", "MOPED, none + TS"))
AROUND_MONOTONE = avuc(f"a {AROUND}", "monotone", trainings("MOPED, monotone + TS", "MOPED, none + TS"))
NOISE_PRINTED = Decision(
    WITH_NOISE,
    "AvUC as printed, no temperature",
    noise("SVI-AvUC", "SVI", "AvUC", "none"),
    AVUC,
    "`monotone` instead (next line)",
)
NOISE_MONOTONE = Decision(
    WITH_NOISE,
    "`monotone`, no temperature",
    noise("SVI-AvUC, monotone", "SVI", "monotone", "none"),
    f"{REPAIRED}; no temperature",
    "no AvUC",
)
NOISE_BOTH = avuc(
    "noise on all weights, trained from scratch",
    "AvUC",
    tuple(
        Line(training, "factorial", f"{training}, noise, AvUC + TS", f"{training}, noise, none + TS")
        for training in ("Adam", "SGD")
    ),
    if_fails="**not** AvUC as printed",
)
TABLE = (
    TEMPERATURE,
    AUGMENTED,
    DROPOUT,
    POSTERIOR,
    PRINTED,
    MONOTONE,
    FEW_IMAGES,
    WRONG_LABELS,
    Decision(f"a {AROUND}", "a temperature", trainings("MOPED, none + TS", "MOPED, none"), TS, "no temperature"),
    AROUND_PRINTED,
    AROUND_MONOTONE,
    NOISE_PRINTED,
    NOISE_MONOTONE,
    Decision(WITH_NOISE, NOISE_TEMPERATURE.compared, noise("SVI-TS", "SVI", "none + TS", "none"), TS, "no temperature"),
    NOISE_BOTH,
)
# the lines that decide; the page shows the others below them
SHORT_TABLE = (
    TEMPERATURE,
    AUGMENTED,
    DROPOUT,
    POSTERIOR,
    MONOTONE,
    FEW_IMAGES,
    WRONG_LABELS,
    AROUND_MONOTONE,
    NOISE_MONOTONE,
)
# the repaired loss against the printed one, for every training that has both
VARIANTS = (
    replace(NOISE_REPAIRED, have=NOISE.have),
    Line(
        f"{POSTERIORS['noise']}; Adam",
        "factorial",
        "Adam, noise, monotone",
        "Adam, noise, AvUC",
        f"{REPLACED}, both without a temperature",
    ),
    *(
        replace(line, first=line.first.replace("AvUC", "monotone"), second=line.first, compared=f"{REPLACED}, {BOTH}")
        for line in CORNERS.values()
    ),
)
NO_TRAINING = replace(
    TEMPERATURE.cases[0],
    have="a trained plain network that you cannot train again",
    compared="a temperature (plain network, Adam)",
)
LINES = (NO_TRAINING, NOISE, NOISE_REPAIRED, NOISE_TEMPERATURE, *CORNERS.values(), BEST)
