"""The decision page: when a line recommends something, what it shows, and that all of it comes from the rows."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
import re
import sqlite3
import statistics
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import factorial_more
import make_reproduction as make
import pytest
import reproduction_chart as chart
import reproduction_decision as page
import reproduction_factorial as factorial
import reproduction_lines as pairs
from reproduction_seeds import by_seed

from avuc.core.errors import InputError
from avuc.methods import Dropout, Vanilla
from avuc.report.study.paired import over_seeds
from avuc.report.study.paper_comparison import Figure
from avuc.training.meters import all_uncertain
from avuc.training.model_trainer import TRAPPED

HOME = Path(__file__).parents[2]
PUBLISHED = HOME / "reproduction" / "results" / "cifar10"
SEEDS = (0, 1, 2, 3, 4)
ALL_CASES = [line for one in pairs.TABLE for line in one.cases]
GOOD = {"nll": "lower", "ece": "lower", "aurc": "lower", "avu_auc": "higher", "auroc": "higher", "accuracy": "higher"}


@pytest.fixture(scope="module")
def committed(published_studies):
    names = sorted(
        {line.study for line in (*pairs.LINES, *ALL_CASES)}
        | {name for name in factorial.OTHER_DATA if (PUBLISHED / name).is_dir()}
    )
    return {name: published_studies[name] for name in names}


@dataclass
class MadeUp:
    """A study from values by (method, metric, where); every method of `recipe` should have five seeds."""

    values: dict[tuple[str, str, str], tuple[float, ...]]
    accuracy: float = 0.9
    methods: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = list(dict.fromkeys(method for method, _, _ in self.values))
        seeds = {name: max(len(v) for (m, _, _), v in self.values.items() if m == name) for name in found}
        rows = [SimpleNamespace(seeds=SEEDS[: seeds[name]]) for name in found]
        self.results = SimpleNamespace(names=found, methods=rows)
        planned = [SimpleNamespace(name=name) for name in self.methods or found]
        self.recipe = SimpleNamespace(
            methods=planned,
            trained=planned,
            seeds=lambda method: SEEDS,
            method=lambda name: next(one for one in planned if one.name == name),
        )
        self.effort = SimpleNamespace(models=len(found))

    def get(self, method: str, metric: str, where: str) -> Figure:
        values = self.values.get((method, metric, where), ())
        return Figure(values, SEEDS[: len(values)])

    def learned(self, method: str, what: str) -> Figure:
        return Figure((self.accuracy,) * 5)


def a_line(ece: tuple[float, ...], nll: tuple[float, ...], **more: tuple[float, ...]) -> tuple[dict, pairs.Line]:
    """A study and a comparison; `more` are figures by METRIC_WHERE."""
    figures = {("ece", "5"): ece, ("nll", "5"): nll}
    figures |= {tuple(name.rsplit("_", 1)): values for name, values in more.items()}
    values = {("a", *key): each for key, each in figures.items()}
    values |= {("b", *key): (0.0,) * len(each) for key, each in figures.items()}
    return {"made": MadeUp(values)}, pairs.Line("it", "made", "a", "b")


LOWER, HIGHER = (-0.03, -0.02, -0.04, -0.03, -0.02), (0.03, 0.02, 0.04, 0.03, 0.02)
UNCLEAR = (-0.03, 0.03, -0.02, 0.02, 0.001)


@pytest.mark.parametrize(
    ("ece", "nll", "said", "use"),
    [
        (LOWER, LOWER, "helps", "take it"),
        (LOWER, UNCLEAR, "helps", "take it"),
        (UNCLEAR, LOWER, "helps", "take it"),
        (UNCLEAR, UNCLEAR, "no clear effect", "leave it"),
        (LOWER, HIGHER, "mixed", "leave it"),
        (HIGHER, UNCLEAR, "harms", "leave it"),
        (LOWER[:4], LOWER[:4], page.FEW, f"leave it ({page.FEW})"),
    ],
)
def test_a_line_recommends_only_what_helps_over_five_seeds(ece, nll, said, use):
    studies, line = a_line(ece, nll)
    one = pairs.Decision("it", "a", (line,), "take it", "leave it")
    assert page.verdict(studies, line) == page.agreed(studies, one) == said
    assert page.use(studies, one) == use
    assert page.verdict({}, line) == page.NOT_MEASURED
    assert page.use({}, one) == "leave it (not measured)"


@pytest.mark.parametrize(
    ("ece", "aurc", "said"),
    [
        (UNCLEAR, LOWER, "helps"),
        (LOWER, UNCLEAR, "no clear effect"),  # ECE is not what it aims at
        (HIGHER, LOWER, "mixed"),
        (UNCLEAR, HIGHER, "harms"),
        (HIGHER, UNCLEAR, "harms"),
    ],
)
def test_other_aims_decide_but_ece_and_nll_must_not_get_worse(ece, aurc, said):
    studies, line = a_line(ece, UNCLEAR, aurc_5=aurc, auroc_svhn=UNCLEAR)
    assert page.verdict(studies, line, pairs.RANKED) == said
    studies, line = a_line(ece, UNCLEAR, aurc_5=UNCLEAR, auroc_svhn=tuple(-value for value in aurc))
    assert page.verdict(studies, line, pairs.RANKED) == said  # higher AUROC is better


def test_a_line_with_several_cases_recommends_only_what_helps_in_each():
    good, line = a_line(LOWER, LOWER, accuracy_clean=(-0.1, -0.11, -0.09, -0.12, -0.1))
    unclear = {"other": a_line(UNCLEAR, UNCLEAR)[0]["made"]}
    other = dataclasses.replace(line, study="other")
    one = pairs.Decision("it", "a", (line, line), "take it", "leave it")
    assert page.use(good, one) == "take it"
    two = dataclasses.replace(one, cases=(line, other))
    assert page.agreed(good | unclear, two) == "helps in 1 of 2"
    assert page.use(good | unclear, two) == "leave it"
    assert page.use(good, two) == "leave it (not measured)"
    assert page.use(good | unclear, dataclasses.replace(two, if_fails="never")) == "never"
    assert not page.fails(a_line(LOWER, LOWER, accuracy_clean=(-0.1, -0.11, 0.09, -0.12, -0.1))[0], line)
    assert not page.fails(a_line(LOWER[:4], LOWER[:4], accuracy_clean=(-0.1,) * 4)[0], line)


def test_every_line_names_methods_of_its_recipe_that_differ_in_one_thing(committed):
    for line in (*pairs.LINES, *ALL_CASES):
        recipe = committed[line.study].recipe
        first, second = (recipe.method(name) for name in (line.first, line.second))
        trained = [recipe.method(one.reuse_model) if one.reuse_model else one for one in (first, second)]
        if line in pairs.POSTERIOR.cases:  # the posterior is tuned from the plain network
            assert trained[0].init_from == trained[1].name
            assert (first.calibrator, trained[0].objective.kind) == (second.calibrator, trained[1].objective.kind)
            continue
        if line in pairs.DROPOUT.cases:
            assert isinstance(trained[0].method, Dropout)
            assert isinstance(trained[1].method, Vanilla)
            same = [dataclasses.replace(one, name="", method=Vanilla()) for one in trained]
            assert same[0] == same[1]
            assert first.calibrator == second.calibrator
            continue
        assert trained[0].method == trained[1].method
        if line in pairs.AUGMENTED.cases:
            assert dataclasses.replace(trained[0].train, augmentation="crop") == trained[1].train
            assert (first.calibrator, trained[0].objective) == (second.calibrator, trained[1].objective)
            continue
        assert trained[0].train == trained[1].train
        changed = (trained[0].objective != trained[1].objective) + (first.calibrator != second.calibrator)
        assert changed == 1, line


def rows(study: str, method: str, metric: str) -> dict[int, float]:
    """The mean over shifts at intensity 5, of each seed, by a plain loop over the rows."""
    folder = PUBLISHED / study
    with closing(sqlite3.connect(f"file:{folder / 'study.sqlite'}?mode=ro", uri=True)) as db:
        found = db.execute(
            "SELECT seed, value FROM rows WHERE method=? AND metric=? AND severity=5 AND shift NOT LIKE 'ood:%'",
            (method, metric),
        ).fetchall()
    seeds = sorted({seed for seed, _ in found})
    return {seed: sum(v for s, v in found if s == seed) / sum(1 for s, _ in found if s == seed) for seed in seeds}


@pytest.mark.parametrize(
    "line", [pairs.NO_TRAINING, pairs.NOISE, pairs.CORNERS["Adam", "none"]], ids=lambda one: one.have
)
@pytest.mark.parametrize("metric", ["ece", "nll"])
def test_differences_are_those_of_the_rows_by_student(committed, line, metric):
    from scipy.stats import ttest_rel

    first, second = (rows(line.study, name, metric) for name in (line.first, line.second))
    found, seeds = page.difference(committed[line.study], line, metric, "5")
    assert seeds == len(first) == len(second) >= 5
    reference = ttest_rel([first[s] for s in sorted(first)], [second[s] for s in sorted(first)])
    interval = reference.confidence_interval(0.95)
    assert found == pytest.approx((sum(first.values()) / seeds - sum(second.values()) / seeds, *interval), abs=1e-9)


def test_the_page_shows_every_line_and_says_what_is_not_measured(committed):
    table, _, told = page.all_decisions(committed).partition("\n\n")
    assert len(pairs.SHORT_TABLE) < 10
    assert [one for one in pairs.TABLE if one in pairs.SHORT_TABLE] == list(pairs.SHORT_TABLE)
    short = page.decision(committed).splitlines()
    assert set(short) < set(table.splitlines())
    cells = [[cell.strip() for cell in text.split("|")[1:-1]] for text in table.splitlines()[2:]]
    for row, one in zip(cells, pairs.TABLE, strict=True):
        assert all(len(cell.split(" / ")) == len(one.cases) for cell in row[3:])
        bold = [cell for cell in row[3:] if "**" in cell]
        assert not bold or int(re.search(r"(\d+) seeds", row[2])[1]) >= 5
    several = [line for one in pairs.TABLE for line in one.cases if len(one.cases) > 1]
    assert len(page.intervals(committed).splitlines()) - 2 == len(several)
    missing = [line for line in pairs.LINES if page.verdict(committed, line) == page.NOT_MEASURED]
    assert len(page.detection(committed).splitlines()) - 2 == len(pairs.LINES) - len(missing)
    assert all(part in told for line in missing for part in line.have.split("; "))
    assert "not measured" in page.decision({"code": committed["code"]})
    assert page.decision({}) == page.all_decisions({}) == page.detection({}) == page.intervals({}) == make.NOT_RUN


def test_the_pilots_failure_is_told_without_a_claim():
    with (HOME / "reproduction" / "results" / "factorial-pilot.csv").open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["method"] == "SGD, none, AvUC")
    text = " ".join((HOME / "docs" / "reproduction" / "when-avuc-helps.md").read_text(encoding="utf-8").split())
    right, sure = (f"{100 * float(row[key]):.0f} %" for key in ("accuracy", "mean_confidence"))
    assert (
        f"got {right} of the held-out training images right, with a mean confidence of {sure}. This is one seed;"
        in text
    )


def test_in_the_pilots_failure_every_training_prediction_is_uncertain():
    """AvU is then the error rate. With Adam it is not, and the loss falls."""
    with (HOME / "reproduction" / "results" / "factorial-pilot-epochs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for training, failed in (("Adam", False), ("SGD", True), ("AugMix", True)):
        epochs = [row for row in rows if row["method"] == f"{training}, none, AvUC"]
        assert len(epochs) == 60
        uncertain = math.isclose(float(epochs[-1]["avu"]), 1 - float(epochs[-1]["accuracy"]), abs_tol=1e-3)
        risen = float(epochs[-1]["total"]) > float(epochs[5]["total"])  # AvUC begins in the sixth
        assert (uncertain, risen) == (failed, failed), training


def test_with_sgd_the_printed_loss_fails_over_five_seeds_and_monotone_does_not(committed):
    """On training images of the last epoch; the page quotes the extremes."""
    ends = {}
    with closing(sqlite3.connect(f"file:{PUBLISHED / 'factorial' / 'study.sqlite'}?mode=ro", uri=True)) as db:
        for training, loss in itertools.product(("SGD", "AugMix"), ("none", "AvUC", "monotone")):
            query = "SELECT data FROM history WHERE method=? AND epoch=199 ORDER BY seed"
            found = db.execute(query, (f"{training}, none, {loss}",))
            ends[training, loss] = [json.loads(data) for (data,) in found]
    assert {len(rows) for rows in ends.values()} == {5}
    for (_, loss), rows in ends.items():  # AvU is the error rate if every prediction is uncertain
        trapped = [math.isclose(row["avu"], 1 - row["accuracy"], abs_tol=1e-3) for row in rows]
        assert all(trapped) if loss == "AvUC" else not any(trapped)
    text = " ".join((HOME / "docs" / "reference" / "printed-loss.md").read_text(encoding="utf-8").split())
    for loss, words in (
        ("monotone", "five networks have {} to {} % of the training images right"),
        ("AvUC", "those with the printed loss {} to {} %"),
        ("none", "those without AvUC {} to {} %"),
    ):
        right = sorted(100 * row["accuracy"] for row in ends["SGD", loss])
        assert words.format(f"{right[0]:.1f}", f"{right[-1]:.1f}") in text


def test_epochs_in_a_row_with_every_prediction_uncertain_tell_the_failures_from_the_rest():
    """The rule of the trainer's warning, on every epoch that was recorded (every tenth in `factorial`)."""
    failed = set()
    studies = ("beta", "best", "choice", "code", "code-49500", "code-switches")
    studies += ("factorial", "factorial-noisy-labels", "factorial-resnet56")
    for study in studies:
        row: dict[tuple[str, int], int] = {}
        with closing(sqlite3.connect(f"file:{PUBLISHED / study / 'study.sqlite'}?mode=ro", uri=True)) as db:
            for method, seed, data in db.execute("SELECT method, seed, data FROM history ORDER BY epoch"):
                record = json.loads(data)
                if record.get("threshold") is not None and "uncertainty_right" in record:
                    trapped = all_uncertain(record, record["threshold"])
                    row[method, seed] = row.get((method, seed), 0) + 1 if trapped else 0
                    if row[method, seed] == TRAPPED:
                        failed.add((study, method, seed))
    assert failed == {
        *(("factorial", f"{training}, none, AvUC", seed) for training in ("SGD", "AugMix") for seed in SEEDS),
        *(("factorial-noisy-labels", "Adam, none, AvUC", seed) for seed in SEEDS),
        ("factorial-resnet56", "SGD, none, AvUC", 2),
        *(("code-switches", "SVI-AvUC, threshold 1", seed) for seed in range(3)),
        *(("beta", f"SVI-AvUC β={beta}", 0) for beta in (5, 7, 10)),
    }


def test_the_temperature_of_the_failed_networks_is_at_its_limit_and_the_page_says_so(committed):
    """The effects "both with a temperature" are then those of this temperature: without one NLL is even lower."""
    with closing(sqlite3.connect(f"file:{PUBLISHED / 'factorial' / 'study.sqlite'}?mode=ro", uri=True)) as db:
        found = dict(db.execute("SELECT method || seed, data FROM calibrators"))
    corners = [pairs.CORNERS[training, "none"] for training in ("AugMix", "SGD")]
    failed = [f"{corner.first}{seed}" for corner in corners for seed in SEEDS]
    ends = [name for name, data in found.items() if json.loads(data)["learned"]["at_bound"]]
    assert sorted(ends) == failed
    assert all(json.loads(found[name])["learned"]["temperature"] == 0.05 for name in failed)
    bare = dataclasses.replace(pairs.CORNERS["SGD", "none"], first="SGD, none, AvUC", second="SGD, none, none")
    assert page.difference(committed["factorial"], bare, "nll", "5")[0][2] < 0
    text = " ".join((HOME / "docs" / "reproduction" / "when-avuc-helps.md").read_text(encoding="utf-8").split())
    assert "in all five seeds of both it ends at 0.05, the lower limit of its range" in text


def test_the_chart_is_made_from_the_rows_and_is_well_formed(committed):
    text = (HOME / "docs" / "figures" / make.CHART).read_text(encoding="utf-8")
    assert text == chart.flow_chart(committed), "run python reproduction/pages/make_reproduction.py"
    for studies in (committed, {}):
        root = ElementTree.fromstring(chart.flow_chart(studies))
        wide = max(len(node.text or "") for node in root.iter("{http://www.w3.org/2000/svg}text"))
        assert wide <= 58  # fits into a box
    addresses = re.findall(r"https?://[^\"]+", text)
    assert addresses == ["http://www.w3.org/2000/svg"]
    assert page.NOT_MEASURED in chart.flow_chart({})


# the analysis of the experiment


def experiment(**left_out: int) -> MadeUp:
    """Adam × {none, MOPED}: AvUC lowers NLL by .2 and ECE by .02, in every seed a little differently."""
    values, names = {}, []
    for corner in ("Adam, none", "Adam, MOPED"):
        for place, loss in enumerate(("none", "AvUC", "monotone", "penalty")):
            for end in ("", " + TS"):
                name = f"{corner}, {loss}{end}"
                names.append(name)
                seeds = range(left_out.get(loss, 5))
                for metric, where in factorial.PRIMARY:
                    step = {"nll": 0.2, "ece": 0.02}.get(metric, 0.01)
                    values[name, metric, where] = tuple(2 - step * place + 0.001 * seed * place for seed in seeds)
    return MadeUp({key: value for key, value in values.items() if value}, 0.9, names)


def test_a_comparison_is_measured_once_all_seeds_of_both_are_there():
    everything = experiment()
    assert len(list(factorial.comparisons(everything))) == 2 * 5
    assert factorial.progress({"factorial": everything}).startswith("**16 of 80")
    assert "not measured" not in factorial.effects({"factorial": everything})
    partly = experiment(monotone=4, penalty=0)
    assert [one.first for one in factorial.comparisons(partly)] == ["AvUC", "AvUC"]
    lines = factorial.effects({"factorial": partly}).splitlines()[2:]
    assert [line.split("|")[2].strip() for line in lines] == [
        "AvUC as printed − none",
        "AvUC as printed − none",
        "`monotone`, confidence penalty",
        "`monotone`, confidence penalty",
    ]
    assert lines[0].split("|")[3].strip() == "**−0.20 (−0.20 … −0.20)**"
    assert lines[2].count("not measured") == 6
    assert "every loss" in factorial.effects({"factorial": experiment(none=3)})
    assert factorial.effects({}) == make.NOT_RUN


def test_gains_are_positive_if_the_loss_is_better():
    found = factorial.gains(experiment(penalty=2))
    assert [(one.corner, one.loss) for one in found] == [
        (corner, loss) for corner in ("Adam, none", "Adam, MOPED") for loss in ("AvUC", "monotone")
    ]
    assert found[0].error == pytest.approx(0.1)
    assert found[0].gains["nll"].value == pytest.approx(0.2 - 0.001 * 2)
    assert found[1].gains["ece"].value == pytest.approx(0.04 - 0.001 * 4)
    assert all(math.isfinite(gain.low) and gain.low < gain.value < gain.high for gain in found[0].gains.values())


def test_gains_are_drawn(committed):
    assert factorial.gain_drawing({}) == {}
    drawn = factorial.gain_drawing({"factorial": experiment()})[factorial.GAIN_FIGURE].decode()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "Adam, MOPED, monotone: error 0.10000, nll 0.39600 0.3" in drawn
    figure = (HOME / "docs" / "figures" / factorial.GAIN_FIGURE).read_text(encoding="utf-8")
    told = factorial.gain_values(committed)
    assert told.count("Adam, none, AvUC: error") == told.count("Adam, none, AvUC, a tenth of the images: error") == 1
    assert figure.endswith(told), "run python reproduction/pages/make_reproduction.py"


def test_other_training_data_stand_beside_all_images():
    assert factorial.errors_left({}) == make.NOT_RUN
    lines = factorial.errors_left({"factorial": experiment(), "factorial-tenth": experiment(penalty=4)}).splitlines()[
        2:
    ]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[:3] for row in cells if "− none" in row[2]] == [
        ["all", "10.0 %", "AvUC as printed − none"],
        ["all", "10.0 %", "`monotone` − none"],
        ["all", "10.0 %", "confidence penalty − none"],
        ["a tenth of the images", "10.0 %", "AvUC as printed − none"],
        ["a tenth of the images", "10.0 %", "`monotone` − none"],
    ]
    assert cells[0][3] == "**−0.20 (−0.20 … −0.20)**"
    assert cells[-1] == ["20 % wrong labels", "not measured", "every loss", *["not measured"] * 7]
    points = factorial.all_gains({"factorial": experiment(), "factorial-tenth": experiment()})
    assert [one.data for one in points] == [""] * 6 + ["a tenth of the images"] * 6
    every = {name: experiment() for name in ("factorial", *factorial.OTHER_DATA)}
    table = factorial.errors_left(every)
    assert "not measured" not in table
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]].count("20 % wrong labels") == 5
    assert [one.data for one in factorial.all_gains(every)][-6:] == ["20 % wrong labels"] * 6
    drawn = factorial.gain_drawing(every)[factorial.GAIN_FIGURE].decode()
    assert "Adam, none, monotone, 20 % wrong labels: error 0.10000, nll 0.3" in drawn


def test_with_few_images_the_printed_loss_fails_and_monotone_ranks_better(committed):
    """Sentences of the page, from the rows; 5 paired seeds."""
    few = committed["factorial-tenth"]
    compared = {
        (loss, metric, where): over_seeds(
            *(tuple(page.by_seed(few, f"Adam, none, {one} + TS", metric, where).values()) for one in (loss, "none")),
            same_seeds=True,
        )
        for loss in ("AvUC", "monotone")
        for metric, where in (*factorial.PRIMARY, ("accuracy", "clean"))
    }
    assert compared["AvUC", "accuracy", "clean"].high < -0.05
    better = {key[1:] for key, one in compared.items() if key[0] == "monotone" and one.says(GOOD[key[1]]) == "better"}
    assert better == {("aurc", "5"), ("avu_auc", "5"), ("auroc", "svhn"), ("auroc", "cifar100")}
    assert not any(one.says(GOOD[key[1]]) == "worse" for key, one in compared.items() if key[0] == "monotone")


def test_with_wrong_labels_the_printed_loss_fails_and_monotone_helps(committed):
    """Sentences of the page, from the rows; 5 paired seeds."""
    study, figures = committed["factorial-noisy-labels"], (*factorial.PRIMARY, ("accuracy", "clean"))

    def said(first: str, second: str) -> dict[tuple[str, str], str]:
        return {
            (metric, where): over_seeds(
                *(tuple(page.by_seed(study, f"Adam, none, {one}", metric, where).values()) for one in (first, second)),
                same_seeds=True,
            ).says(GOOD[metric])
            for metric, where in figures
        }

    monotone = said("monotone + TS", "none + TS")
    assert [key for key, word in monotone.items() if word != "better"] == [("ece", "5")]
    assert monotone["ece", "5"] == "not significant"
    assert [key for key, word in said("monotone + TS", "penalty + TS").items() if word == "better"] == [
        ("nll", "5"),
        ("aurc", "5"),
        ("avu_auc", "5"),
        ("auroc", "cifar100"),
    ]
    alone = said("monotone", "none + TS")
    assert alone["ece", "5"] == alone["nll", "5"] == "better"
    assert said("monotone + TS", "monotone")["nll", "5"] == "worse"
    assert round(100 * statistics.mean(study.learned("Adam, none, none", "accuracy").by_seed)) == 81  # in words
    failed = page.difference(study, pairs.WRONG_PRINTED, "accuracy", "clean")[0]
    assert failed.high < -0.05
    assert f"{-100 * failed.value:.0f}" == "24"  # quoted in words


def test_what_the_page_says_of_the_second_network(published_studies):
    """Three seeds: directions only."""
    study = published_studies["factorial-resnet56"]

    def gaps(corner: str, metric: str, where: str, end: str = " + TS") -> list[float]:
        first, second = (page.by_seed(study, f"{corner}, {loss}{end}", metric, where) for loss in ("AvUC", "none"))
        return [first[seed] - second[seed] for seed in (0, 1, 2)]

    for metric in ("nll", "ece", "aurc"):
        assert statistics.mean(gaps("Adam, noise", metric, "5")) < 0
        assert (max(gaps("Adam, noise", metric, "5")) < 0) == (metric != "ece")
    for metric, where in (("auroc", "svhn"), ("auroc", "cifar100"), ("accuracy", "clean")):
        assert max(gaps("Adam, noise", metric, where)) < 0
    sure = page.by_seed(study, "SGD, none, AvUC", "mean_confidence", "clean")
    assert {seed: round(100 * value) for seed, value in sure.items()} == {0: 96, 1: 96, 2: 15}
    lost = gaps("SGD, none", "accuracy", "clean", "")
    assert [round(100 * value) for value in lost] == [-2, -2, -25]


def test_the_page_counts_the_effects_of_its_table(committed):
    """Sentences about all comparisons with "none"."""
    text = " ".join((HOME / "docs" / "reproduction" / "when-avuc-helps.md").read_text(encoding="utf-8").split())
    rows = [line.split("|")[2:-1] for line in factorial.effects(committed).splitlines()[2:] if "− none" in line]
    cells = [
        (metric, cell.strip()) for row in rows for (metric, _), cell in zip(factorial.PRIMARY, row[1:], strict=True)
    ]
    clear = [(metric, cell.strip("*")) for metric, cell in cells if cell.startswith("**")]
    higher = ("avu_auc", "auroc")
    worse = [cell for metric, cell in clear if cell.startswith("−") == (metric in higher)]
    told = f'{len(clear)} of the {len(cells)} intervals against "none" that are measured exclude zero'
    by_chance = {5: "five", 6: "six", 7: "seven", 8: "eight"}[round(0.05 * len(cells))]
    assert f"{told}, {len(worse)} of them on the worse side; about {by_chance} would do so by chance." in text
    table = factorial.errors_left(committed).splitlines()
    other = [line for line in table if ("tenth" in line or "wrong" in line) and "− none" in line]
    assert f'The large table has {len(other) * len(factorial.PRIMARY)} intervals against "none"' in text


def test_a_figure_in_a_sentence_can_be_a_difference(committed, printed):
    find = make.one_number(committed, printed)
    assert find(["code", "SVI-AvUC − SVI", "ece", "5"]) == "−0.029 (−0.042 … −0.016)"
    with pytest.raises(InputError, match="both methods need the same seeds"):
        find(["code", "SVI-AvUC − SGD", "ece", "5"])


def test_variants_are_compared_where_both_are_trained(committed):
    assert pairs.VARIANTS[0].first == "SVI-AvUC, monotone"
    for line in pairs.VARIANTS[1:]:
        assert line.first.replace("monotone", "AvUC") == line.second
        assert {line.first, line.second} <= {method.name for method in committed["factorial"].recipe.methods}
    lines = page.variants(committed).splitlines()[2:]
    measured = [line for line in pairs.VARIANTS if page.verdict(committed, line) != page.NOT_MEASURED]
    assert len(lines) == len(measured) + (len(measured) < len(pairs.VARIANTS))
    assert "(5 seeds) | +0.008 (−0.012 … +0.029)" in lines[0]
    assert page.variants({}) == make.NOT_RUN


# the decision table from the rows


def figure_rows(line: pairs.Line, method: str, metric: str, where: str) -> dict[int, float]:
    """A figure of each seed by a plain loop over the rows."""
    place = {"5": "severity=5 AND shift NOT LIKE 'ood:%'", "clean": "shift='clean'", "svhn": "shift LIKE 'ood:svhn%'"}
    with closing(sqlite3.connect(f"file:{PUBLISHED / line.study / 'study.sqlite'}?mode=ro", uri=True)) as db:
        query = f"SELECT seed, value FROM rows WHERE method=? AND metric=? AND {place[where]}"
        found = db.execute(query, (method, metric)).fetchall()
    return {seed: statistics.mean(v for s, v in found if s == seed) for seed in sorted({s for s, _ in found})}


def test_every_number_of_the_table_is_the_one_of_the_rows(committed):
    from scipy.stats import ttest_rel

    short = page.decision(committed).splitlines()[2:]
    whole = page.all_decisions(committed).partition("\n\n")[0].splitlines()[2:]
    rows = [*zip(short, pairs.SHORT_TABLE, strict=True), *zip(whole, pairs.TABLE, strict=True)]
    for text, one in rows:
        cells = [cell.strip() for cell in text.split("|")[4:-1]]
        for cell, (metric, where) in zip(cells, page.SHOWN, strict=True):
            for shown, line in zip(cell.split(" / "), one.cases, strict=True):
                first, second = (figure_rows(line, name, metric, where) for name in (line.first, line.second))
                seeds = sorted(set(first) & set(second))
                assert len(seeds) >= 5
                values = [[each[seed] for seed in seeds] for each in (first, second)]
                scale = 100 if metric in ("accuracy", "auroc") else 1
                mean = scale * statistics.mean(a - b for a, b in zip(*values, strict=True))
                told = float(shown.strip("*").partition(" ")[0].replace("−", "-"))
                assert told == pytest.approx(mean, abs={"ece": 0.0005, "nll": 0.005}.get(metric, 0.05) + 1e-9)
                low, high = (0.0, 0.0) if values[0] == values[1] else ttest_rel(*values).confidence_interval(0.95)
                assert shown.startswith("**") == (low > 0 or high < 0), (line, metric)


def test_what_the_table_recommends(committed):
    """New rows may change this: then the page's first sentence and its questions must change, too."""
    helps = [one.compared for one in pairs.TABLE if page.agreed(committed, one) == "helps"]
    assert helps == [
        "a temperature",
        "AugMix, both with a temperature",
        "dropout in training and prediction, both with a temperature",
        "a posterior (MOPED) instead of none, both with a temperature",
        "`monotone`, both with a temperature",  # few images
        "`monotone`, both with a temperature",  # wrong labels
        "a temperature",
        "`monotone`, no temperature",
    ]
    assert page.use(committed, pairs.FEW_IMAGES).startswith("AvUC `monotone`")
    assert page.use(committed, pairs.WRONG_LABELS).startswith("try AvUC `monotone`")
    assert page.use(committed, pairs.PRINTED).endswith("**not** AvUC as printed")
    failed = [line.have for line in pairs.PRINTED.cases if page.fails(committed, line)]
    assert failed == ["SGD", "AugMix", "few images", "wrong labels"]
    assert page.use(committed, pairs.NOISE_BOTH).endswith("**not** AvUC as printed")
    assert [line.have for line in pairs.NOISE_BOTH.cases if page.fails(committed, line)] == ["SGD"]
    others = [one for one in pairs.TABLE if one not in (pairs.PRINTED, pairs.NOISE_BOTH)]
    assert not any(page.fails(committed, line) for one in others for line in one.cases)
    assert page.agreed(committed, pairs.NOISE_PRINTED) == "helps in 1 of 2"
    assert page.verdict(committed, pairs.NOISE_BOTH.cases[0]) == "no clear effect"


def test_posteriors_start_from_the_plain_networks_that_they_are_compared_with():
    """AugMix: those with none and the printed loss; the networks were lost and trained again for the other two."""
    with closing(sqlite3.connect(f"file:{PUBLISHED / 'factorial' / 'study.sqlite'}?mode=ro", uri=True)) as db:
        runs = dict(db.execute("SELECT method, max(run) FROM models WHERE method LIKE 'AugMix%' GROUP BY method"))
        started = dict(db.execute("SELECT id, started FROM runs"))
        finished = dict(db.execute("SELECT id, finished FROM runs"))
    plain, first, again = (runs[f"AugMix, {name}"] for name in ("none, none", "MOPED, none", "MOPED, monotone"))
    assert runs["AugMix, MOPED, AvUC"] == first
    assert runs["AugMix, MOPED, penalty"] == again
    assert finished[plain] <= started[first] <= finished[first] < started[again]
    text = " ".join((HOME / "docs" / "when-to-use-avuc.md").read_text(encoding="utf-8").split())
    assert "only the posteriors with `monotone` start from networks that were [trained again]" in text


def test_the_page_counts_what_avuc_does_without_a_temperature(committed):
    said = []
    for training, loss, metric in itertools.product(pairs.TRAININGS, ("AvUC", "monotone"), ("ece", "nll")):
        line = pairs.Line("", "factorial", f"{training}, MOPED, {loss}", f"{training}, MOPED, none")
        said.append(page.difference(committed["factorial"], line, metric, "5")[0].says("lower"))
    text = " ".join((HOME / "docs" / "when-to-use-avuc.md").read_text(encoding="utf-8").split())
    worse, unclear = said.count("worse"), said.count("not significant")
    assert worse + unclear == len(said)
    assert f"of the {len(said)} intervals of ECE and NLL" in text
    assert f"{worse} are on the worse side and {unclear} are not clear" in text


def test_the_page_names_the_only_other_gains_in_detection(committed):
    found = []
    for one in factorial.comparisons(committed["factorial"]):
        for metric, where in (
            pairs.DETECTED if (one.second, one.first) in {("none", "AvUC"), ("none", "monotone")} else ()
        ):
            text = factorial.cell(committed["factorial"], one.names(), metric, where)
            found += [text] if text.startswith("**+") else []
    for name in ("SVI-AvUC", "SVI-AvUC, monotone", "SVI-AUAvUC"):
        found += [
            t for t in page.differences(committed, pairs.Line("", "code", name, "SVI"), pairs.DETECTED) if "**+" in t
        ]
    assert [text.split()[0] for text in found] == ["**+0.2", "**+2.4"]


def test_what_the_page_says_of_noise_on_all_weights(committed):
    """The section "Noise on all weights": order of confidences, what a temperature leaves, and the printed loss."""

    def says(first: str, second: str, metric: str, where: str = "5") -> tuple[float, str]:
        line = pairs.Line("", "factorial", first, second)
        found = page.difference(committed["factorial"], line, metric, where)[0]
        return found.value, found.says("higher" if metric in ("accuracy", "avu_auc", "auroc") else "lower")

    names = [f"Adam, noise, {loss}" for loss in ("none", "AvUC", "monotone", "penalty")]
    for metric, where, falls in (
        ("mean_confidence", "clean", True),
        ("ece", "5", True),
        ("nll", "5", True),
        ("ece", "clean", False),
    ):
        means = [statistics.mean(by_seed(committed["factorial"], name, metric, where).values()) for name in names]
        assert means == sorted(means, reverse=falls), metric
    for metric in ("ece", "nll", "aurc"):
        for name in names[1:]:
            value, said = says(f"{name} + TS", f"{names[0]} + TS", metric)
            assert said == "not significant"
            assert value < 0 or name.endswith("penalty")  # "All six estimates of the two AvUC losses"
    monotone, penalty = f"{names[2]} + TS", f"{names[3]} + TS"
    figures = {(metric, where): says(monotone, penalty, metric, where)[1] for metric, where in factorial.PRIMARY}
    assert [key for key, said in figures.items() if said == "better"] == [("ece", "5"), ("avu_auc", "5")]
    assert [key for key, said in figures.items() if said == "worse"] == [("auroc", "svhn"), ("auroc", "cifar100")]
    assert says("SGD, noise, AvUC", "SGD, noise, none", "accuracy", "clean")[1] == "worse"
    assert says("SGD, noise, AvUC", "SGD, noise, none", "mean_confidence", "clean")[0] < 0


def test_what_the_page_says_of_monotone_on_networks_that_train_badly(committed):
    """SGD with noise on all weights: better on clean images, AURC and CIFAR-100; the penalty is the other way round."""

    def says(loss: str, end: str, metric: str, where: str) -> str:
        line = pairs.Line("", "factorial", f"SGD, noise, {loss}{end}", f"SGD, noise, none{end}")
        found = page.difference(committed["factorial"], line, metric, where)[0]
        return found.says(GOOD[metric])

    for end in ("", " + TS"):
        for metric in ("accuracy", "nll"):
            assert (says("monotone", end, metric, "clean"), says("penalty", end, metric, "clean")) == (
                "better",
                "worse",
            )
        for metric in ("ece", "nll"):
            assert says("monotone", end, metric, "5") == "not significant"
    assert (says("monotone", "", "aurc", "5"), says("penalty", "", "aurc", "5")) == ("better", "worse")
    assert says("monotone", " + TS", "auroc", "cifar100") == "better"
    right = [
        by_seed(committed["factorial"], f"{training}, noise, none", "accuracy", "clean") for training in ("SGD", "Adam")
    ]
    assert max(right[0].values()) < min(right[1].values())
    left = committed["factorial"].learned("SGD, noise, none", "accuracy")
    assert max(left.by_seed) < 0.8  # many training errors are left


def test_the_second_network_has_the_corners_where_avuc_helps_and_harms_most(committed):
    """By NLL at intensity 5, both with a temperature."""
    effects = {
        corner: page.difference(committed["factorial"], line, "nll", "5")
        for corner, line in pairs.CORNERS.items()
        if page.verdict(committed, line) != page.NOT_MEASURED
    }
    assert min(seeds for _, seeds in effects.values()) == 5
    order = sorted(effects, key=lambda corner: effects[corner][0].value)
    assert (order[0], order[-1]) == factorial_more.SECOND_CORNERS
    assert len(order) == 8  # as the file says
