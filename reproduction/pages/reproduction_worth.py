"""Does AvUC help? Pairs of methods that differ only in AvUC, paired over seeds; for docs/reproduction/tables.md.

`python reproduction/pages/make_reproduction.py` writes the tables into the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reproduction_decision import POSTERIORS, TRAININGS
from reproduction_seeds import FEWEST_SEEDS, by_seed, difference_text, signed
from reproduction_tables import NOT_RUN, PERCENT, SCORES, Study, markdown, short_title

# the AvUC loss aims at AURC and at the area under AvU
FIGURES = ("accuracy", *SCORES, "aurc", "avu_auc")
PRINTED, REPAIRED = "printed", "`monotone`"
CODE = "noise on all weights, no KL; Adam; as the code"
OURS = "posterior around a trained network; AugMix; `cifar10-best`"


@dataclass(frozen=True)
class Pair:
    """Two methods of a study that differ only in AvUC.

    Args:
        study: name of the study.
        method: the method with AvUC.
        other: the method without AvUC.
        training: description of the training.
        loss: description of the loss.
    """

    study: str
    method: str
    other: str
    training: str
    loss: str


def _experiment(study: str, training: str, posterior: str, data: str = "") -> list[Pair]:
    """Return the pairs of one training and posterior of the factorial experiment, without temperature scaling."""
    description, base = f"{POSTERIORS[posterior]}; {TRAININGS[training]}{data}", f"{training}, {posterior}"
    return [
        Pair(study, f"{base}, {name}", f"{base}, none", description, loss)
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
    *_experiment("factorial-noisy-labels", "Adam", "none", ", 20 % wrong labels"),
    *_experiment("factorial-resnet56", "Adam", "noise", ", ResNet-56, 100 epochs")[:1],  # the printed loss alone
    *_experiment("factorial-resnet56", "SGD", "none", ", ResNet-56, 100 epochs")[:1],
]
# β is 3 unless the loss names another value
PAIRS = (
    Pair("code", "SVI-AvUC", "SVI", CODE, PRINTED),
    Pair("code", "SVI-AvUC, monotone", "SVI", CODE, REPAIRED),
    Pair("code", "SVI-AUAvUC", "SVI", CODE, "AUAvUC"),
    *EXPERIMENT,
    Pair("code-switches", "SVI-AvUC, new Adam each epoch", "SVI, new Adam each epoch", f"{CODE}, new Adam", PRINTED),
    Pair("code-switches", "SVI-AvUC, best epoch", "SVI, best epoch", f"{CODE}, best epoch", PRINTED),
    Pair("code-switches", "SVI-AvUC, trained start", "SVI, trained start", f"{CODE}, trained start", PRINTED),
    Pair("code-49500", "SVI-AvUC", "SVI", f"{CODE}, 49,500 images", PRINTED),
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
    counted = [(pair, shared_seeds(studies[pair.study], pair)) for pair in PAIRS if pair.study in studies]
    return [(pair, seeds) for pair, seeds in counted if seeds]


def worth(studies: Mapping[str, Study]) -> str:
    """Return two tables of differences at intensity 5 (with AvUC − without): pairs with enough seeds, and with fewer.

    A difference is the mean over the seeds that both methods have, with the 95 % interval of Student's t.
    """
    pairs = measured(studies)
    enough = [(pair, seeds) for pair, seeds in pairs if seeds >= FEWEST_SEEDS]
    few = [(pair, seeds) for pair, seeds in pairs if seeds < FEWEST_SEEDS]
    parts = [
        f"*{caption}*\n\n{_table(studies, table_pairs)}"
        for caption, table_pairs in (
            (f"At least {FEWEST_SEEDS} paired seeds; bold: the interval excludes zero.", enough),
            (f"Fewer than {FEWEST_SEEDS} paired seeds: no effect is claimed.", few),
        )
        if table_pairs
    ]
    return "\n\n".join(parts) or NOT_RUN


def _table(studies: Mapping[str, Study], pairs: Sequence[tuple[Pair, int]]) -> str:
    """Return the table of some pairs, each with its number of seeds."""
    head = ["with AvUC − without, intensity 5", "loss", "seeds"]
    head += [short_title(metric) + " in points" * (metric in PERCENT) for metric in FIGURES]
    lines = []
    for pair, seeds in pairs:
        cells = [_cell(studies[pair.study], pair, metric) for metric in FIGURES]
        lines.append([pair.training, pair.loss, str(seeds), *cells])
    return markdown(head, lines).replace("|---|---:|", "|---|---|", 1)


def _cell(study: Study, pair: Pair, metric: str) -> str:
    """Return the difference of a pair, with its interval if there are several seeds."""
    first, second = (by_seed(study, name, metric, "5") for name in (pair.method, pair.other))
    shared = set(first) & set(second)
    if len(shared) != 1:
        return difference_text(first, second, metric)
    seed = shared.pop()  # one seed has no interval
    return signed(first[seed] - second[seed], metric)
