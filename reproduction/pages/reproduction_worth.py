"""Whether AvUC helps: pairs of methods that differ in it alone, paired over seeds; for docs/reproduction/tables.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reproduction_decision import POSTERIORS, TRAININGS
from reproduction_seeds import FEWEST_SEEDS, by_seed, difference_text
from reproduction_tables import NOT_RUN, PERCENT, SCORES, Study, markdown, number

from avuc.report.metric_text import metric_text

# AURC and the area under AvU are what the AvUC loss aims at
FIGURES = ("accuracy", *SCORES, "aurc", "avu_auc")
PRINTED, REPAIRED = "printed", "`monotone`"
CODE = "noise on all weights, no KL; Adam; as the code"
OURS = "posterior around a trained network; AugMix; `cifar10-best`"


@dataclass(frozen=True)
class Pair:
    """Two methods of a study, with AvUC and without; the training and the loss in words."""

    study: str
    method: str
    other: str
    training: str
    loss: str


def _experiment(study: str, training: str, posterior: str, data: str = "") -> list[Pair]:
    """Return the pairs of one training and posterior of the experiment, without a temperature."""
    told, base = f"{POSTERIORS[posterior]}; {TRAININGS[training]}{data}", f"{training}, {posterior}"
    return [
        Pair(study, f"{base}, {name}", f"{base}, none", told, loss)
        for name, loss in (("AvUC", PRINTED), ("monotone", REPAIRED))
    ]


EXPERIMENT = [
    *(
        pair
        for posterior in POSTERIORS
        for training in TRAININGS
        for pair in _experiment("factorial", training, posterior)
    ),
    *_experiment("factorial-tenth", "Adam", "none", ", a tenth of the images"),
]
# β is 3 where the loss names no other
PAIRS = (
    Pair("code", "SVI-AvUC", "SVI", CODE, PRINTED),
    Pair("code", "SVI-AvUC, monotone", "SVI", CODE, REPAIRED),
    Pair("code", "SVI-AUAvUC", "SVI", CODE, "AUAvUC"),
    *EXPERIMENT,
    Pair("code-switches", "SVI-AvUC, new Adam each epoch", "SVI, new Adam each epoch", f"{CODE}, new Adam", PRINTED),
    Pair("code-switches", "SVI-AvUC, best epoch", "SVI, best epoch", f"{CODE}, best epoch", PRINTED),
    Pair("code-pretrained", "SVI-AvUC", "SVI", "noise on all weights, no KL; Adam; trained start", PRINTED),
    Pair("paper", "SVI-AvUC", "SVI", "noise on all weights, full KL; Adam; as the text", PRINTED),
    Pair("paper", "SVI-AUAvUC", "SVI", "noise on all weights, full KL; Adam; as the text", "AUAvUC"),
    Pair("paper", "Vanilla-AvUC", "Vanilla", "plain network; Adam; as the text", PRINTED),
    Pair("ablation", "base", "beta 0", "noise on all weights, light KL (held-out images)", f"{REPAIRED}, β = 1"),
    Pair("ablation", "beta 3", "beta 0", "noise on all weights, light KL (held-out images)", REPAIRED),
    Pair("ablation", "paper cells", "beta 0", "noise on all weights, light KL (held-out images)", f"{PRINTED}, β = 1"),
    Pair("best", "MOPED-AvUC", "MOPED-SVI", OURS, REPAIRED),
    Pair("best", "MOPED-AvUC + TS", "MOPED-SVI + TS", f"{OURS}, with a temperature", REPAIRED),
)


def shared_seeds(study: Study, pair: Pair) -> int:
    """Return how many seeds both methods have."""
    first, second = (by_seed(study, name, "ece", "5") for name in (pair.method, pair.other))
    return len(set(first) & set(second))


def measured(studies: Mapping[str, Study]) -> list[tuple[Pair, int]]:
    """Return the pairs that have results, with the number of seeds that both methods have."""
    found = [(pair, shared_seeds(studies[pair.study], pair)) for pair in PAIRS if pair.study in studies]
    return [(pair, seeds) for pair, seeds in found if seeds]


def worth(studies: Mapping[str, Study]) -> str:
    """Return two tables of differences at intensity 5, with AvUC − without: enough seeds for a claim, and fewer.

    Each is the mean over the seeds that both methods have, with the 95 % interval of Student's t.
    """
    pairs = measured(studies)
    enough = [(pair, seeds) for pair, seeds in pairs if seeds >= FEWEST_SEEDS]
    few = [(pair, seeds) for pair, seeds in pairs if seeds < FEWEST_SEEDS]
    parts = [
        f"*{told}*\n\n{_table(studies, chosen)}"
        for told, chosen in (
            (f"At least {FEWEST_SEEDS} paired seeds; bold: the interval excludes zero.", enough),
            (f"Fewer than {FEWEST_SEEDS} paired seeds: no effect is claimed.", few),
        )
        if chosen
    ]
    return "\n\n".join(parts) or NOT_RUN


def _table(studies: Mapping[str, Study], pairs: Sequence[tuple[Pair, int]]) -> str:
    head = ["with AvUC − without, intensity 5", "loss", "seeds"]
    head += [
        metric_text(metric).title.removesuffix(" score") + " in points" * (metric in PERCENT) for metric in FIGURES
    ]
    lines = []
    for pair, seeds in pairs:
        cells = [_cell(studies[pair.study], pair, metric) for metric in FIGURES]
        lines.append([pair.training, pair.loss, str(seeds), *cells])
    return markdown(head, lines).replace("|---|---:|", "|---|---|", 1)


def _cell(study: Study, pair: Pair, metric: str) -> str:
    first, second = (by_seed(study, name, metric, "5") for name in (pair.method, pair.other))
    shared = set(first) & set(second)
    if len(shared) != 1:
        return difference_text(first, second, metric)
    seed = shared.pop()  # one seed has no interval
    value = first[seed] - second[seed]
    text = number(abs(value), metric, percent=metric in PERCENT)
    return ("+" if value > 0 else "−" if value < 0 else "") + text
