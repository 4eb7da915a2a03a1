"""What is published of the CIFAR-10 study: the paper's figures, the committed rows, and the pages made from them."""

from __future__ import annotations

import csv
import re
import statistics
import subprocess
import sys
from pathlib import Path

import make_reproduction as make
import publish
import pytest
import reproduction_worth as worth
import run_all
from reproduction_factorial import PRIMARY
from reproduction_seeds import by_seed

from avuc.core.errors import InputError
from avuc.report.metric_text import words_of
from avuc.report.study.paired import Difference, over_seeds
from avuc.report.study.paper_comparison import published_value, read_published

HOME = Path(__file__).parents[2]
PUBLISHED = HOME / "reproduction" / "results" / "cifar10"
# the studies that are committed, by folder; an entry more or less than there is fails here
COMMITTED: tuple[str, ...] = ("paper", "code", "code-pretrained", "code-switches", "beta", "ablation", "choice", "best")
COMMITTED += ("factorial", "factorial-tenth", "baselines", "past-choice", "past")
COMMITTED += ("code-49500", "factorial-noisy-labels", "factorial-resnet56")
MOST_BYTES = 60_000_000  # the factorial and the studies around it: only the metrics of their analysis are published


# the paper's figures


def test_every_table_of_the_paper_is_there(printed):
    counts = {}
    for one in printed:
        counts[one.table, one.dataset] = counts.get((one.table, one.dataset), 0) + 1
    assert counts == {
        ("quartiles", "cifar10"): 4 * 4 * 10,
        ("quartiles", "imagenet"): 4 * 4 * 9,
        ("by-intensity", "cifar10"): 2 * 6 * 3,
        ("spearman", "cifar10"): 2 * 10,
        ("spearman", "imagenet"): 3 * 10,
        ("detection", "cifar10"): 2 * 4 * 8,
        ("detection", "imagenet"): 4 * 8,
        ("detection-by-shift", "imagenet"): 16 * 4 * 9,
        ("wasserstein", "cifar10"): 11,
        ("wasserstein", "imagenet"): 10 + 8,
    }
    keys = [(o.table, o.dataset, o.method, o.shift, o.intensity, o.metric, o.statistic) for o in printed]
    assert len(set(keys)) == len(keys)


# typed in by hand from the paper, apart from the file
ROWS = ["Vanilla", "Temp scaling", "Ensemble", "Dropout", "LL-Dropout", "SVI", "LL-SVI", "Radial BNN"]
ROWS += ["SVI-AvUTS", "SVI-AvUC"]
BY_HAND = {
    "ece": (0.3151, 0.1993, 0.1611, 0.2405, 0.3518, 0.2389, 0.3267, 0.2150, 0.1585, 0.1374),
    "uce": (0.2853, 0.1429, 0.1333, 0.1974, 0.3204, 0.2008, 0.2983, 0.1741, 0.1272, 0.1038),
    "nll": (2.653, 1.846, 1.779, 2.036, 2.682, 2.017, 2.764, 1.995, 1.728, 1.633),
    "brier": (0.785, 0.697, 0.639, 0.728, 0.820, 0.702, 0.803, 0.719, 0.657, 0.646),
}


@pytest.mark.parametrize("metric", BY_HAND)
def test_means_at_intensity_5_are_those_typed_by_hand(printed, metric):
    wanted = {"table": "quartiles", "dataset": "cifar10", "metric": metric, "statistic": "mean"}
    assert tuple(published_value(printed, method=row, **wanted) for row in ROWS) == BY_HAND[metric]


@pytest.mark.parametrize(
    ("table", "method", "metric", "more", "value"),
    [
        ("by-intensity", "Vanilla", "ece", {"intensity": "3"}, 0.183),
        ("by-intensity", "Vanilla-AvUTS", "ece", {"intensity": "5"}, 0.277),
        ("by-intensity", "Vanilla-AvUC", "ece", {"intensity": "0"}, 0.034),
        ("by-intensity", "Vanilla-AvUC", "uce", {"intensity": "5"}, 0.168),
        ("spearman", "SVI-AvUC", "ece", {}, 0.71),
        ("spearman", "SVI-AvUTS", "ece", {}, 0.82),
        ("detection", "Vanilla", "auroc", {"shift": "svhn"}, 0.9653),
        ("detection", "Ensemble", "auroc", {"shift": "svhn"}, 0.9578),
        ("detection", "SVI", "auroc", {"shift": "svhn"}, 0.9394),
        ("detection", "SVI-AvUC", "auroc", {"shift": "svhn"}, 0.9935),
        ("detection", "SVI-TS", "aupr_out", {"shift": "gaussian_blur"}, 0.7416),
        ("wasserstein", "SVI-AvUC", "wasserstein", {"shift": "svhn"}, 1.2021),
        ("wasserstein", "Radial BNN", "wasserstein", {"shift": "svhn"}, 0.3933),
    ],
)
def test_single_figures(printed, table, method, metric, more, value):
    found = published_value(printed, table=table, dataset="cifar10", method=method, metric=metric, **more)
    assert found == pytest.approx(value, abs=1e-9)


def test_the_paper_agrees_with_itself(printed):
    by_key = {}
    for one in (one for one in printed if one.table == "quartiles"):
        by_key.setdefault((one.dataset, one.method, one.metric), {})[one.statistic] = one.value
    for key, values in by_key.items():
        assert values["lower quartile"] <= values["median"] <= values["upper quartile"], key
        assert values["lower quartile"] < values["mean"] < values["upper quartile"], key
    for metric in ("ece", "uce"):  # Table 1 and the quartile table share a row
        found = [
            published_value(printed, table=table, dataset="cifar10", method="Vanilla", metric=metric, **more)
            for table, more in (("by-intensity", {"intensity": "5"}), ("quartiles", {"statistic": "mean"}))
        ]
        assert found[0] == pytest.approx(found[1], abs=6e-4)
    for one in (one for one in printed if one.table == "detection" and one.dataset == "imagenet"):
        again = [
            other.printed
            for other in printed
            if other.table == "detection-by-shift"
            and (other.method, other.shift, other.metric) == (one.method, one.shift, one.metric)
        ]
        assert again in ([], [one.printed])
    # ρ of six points without ties is 1 − k·2/35; the paper cuts it off after two digits
    possible = {f"{sign}{int(100 * abs(1 - 2 * k / 35)) / 100}" for k in range(36) for sign in ("", "-")}
    assert {str(float(one.printed)) for one in printed if one.table == "spearman"} <= possible


def test_a_damaged_file_is_named(tmp_path, paper_file):
    path = tmp_path / "tables.csv"
    path.write_text("table,method\n")
    with pytest.raises(InputError, match=r"tables\.csv: expected the columns"):
        read_published(path)
    path.write_text(paper_file.read_text().splitlines()[0] + "\nquartiles,cifar10,SVI,,5,ece,mean,often,\n")
    with pytest.raises(InputError, match="line 2: expected 9 cells and a number"):
        read_published(path)


# what is committed


def test_what_is_committed_is_what_this_file_says():
    assert tuple(sorted(publish.studies_below(PUBLISHED))) == tuple(sorted(COMMITTED))


def test_committed_pages_are_made_from_the_committed_rows(printed, published_studies):
    import tomllib

    notes = tomllib.loads((HOME / "reproduction" / "pages" / "reproduction.toml").read_text(encoding="utf-8"))
    blocks, remarks = make.all_blocks(published_studies, printed, notes)
    beyond = make.make_studies.IN_README
    if beyond in make.block_names((HOME / "README.md").read_text(encoding="utf-8")):
        blocks[beyond] = make.make_studies.beyond_cifar(make.make_studies.all_studies())
    find = make.one_number(published_studies, printed)
    for path, name in make.PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert make.fill(text, blocks, find, name) == text, f"run make docs: {name} is stale"
    assert remarks.missing == [], "reproduction/pages/reproduction.toml: rows that differ have no sentence"
    used = [name for path in make.PAGES for name in make.block_names(path.read_text(encoding="utf-8"))]
    assert set(used) == set(blocks)


@pytest.mark.parametrize("page", make.PAGES.values())
def test_no_line_begins_with_a_figures_mark(page):
    """Such a line is an HTML block to Markdown: it would end the paragraph that it stands in."""
    lines = (HOME / page).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.lstrip(" -*").startswith("<!-- figure")] == []


@pytest.mark.parametrize(
    ("page", "by_hand"), [("README.md", set()), ("docs/reproduction/when-avuc-helps.md", {"0.05", "0.2"})]
)
def test_effects_in_sentences_are_figures_of_the_rows(page, by_hand):
    """Outside the marks only the limit of the temperature and a figure of a log are typed by hand.

    The part on digits has its own tests (test_wrong_labels.py).
    """
    text = (HOME / page).read_text(encoding="utf-8")
    text = re.sub(r"<!-- wrong labels on digits -->.*?- The printed loss costs", "", text, flags=re.DOTALL)
    if page == "README.md":
        text = text[text.index("## Results on CIFAR-10") : text.index("## Speed")]
    text = make.fill(text, dict.fromkeys(make.block_names(text), ""), lambda parts: "")
    text = re.sub(r"<!-- .*? -->|\]\(.*?\)|`.*?`", "", text)
    assert set(re.findall(r"\d*\.\d+|\d+(?= %)", text)) - {"95", "61", "15", "20"} == by_hand  # pilot: test_decision.py


def test_every_recipe_is_published_or_said_not_to_be(published_studies):
    page = " ".join((HOME / "docs" / "reproduction" / "tables.md").read_text(encoding="utf-8").split())
    said = re.search(r"that have not been run yet: (.*?)\. Of (`factorial-pilot`) two .* studies (.*?) nothing\.", page)
    named = [set(re.findall(r"`([\w-]+)`", part)) for part in said.groups()]
    recipes = {path.stem for path in (HOME / "reproduction" / "recipes").glob("*.toml")}
    published = {study.results.title for study in published_studies.values()}
    assert set.union(*named) == recipes - published
    assert sum(map(len, named)) == len(recipes - published)
    assert len(list((HOME / "reproduction" / "results").glob("factorial-pilot*.csv"))) == 2


def test_the_readme_of_the_results_names_every_one():
    text = (HOME / "reproduction" / "README.md").read_text(encoding="utf-8").split("## Results")[1].split("\n## ")[0]
    named = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))  # the first column
    results = HOME / "reproduction" / "results"
    for path in (*results.glob("[!.]*"), *(results / "cifar10").glob("*/study.sqlite")):
        found = path.parent if path.name == "study.sqlite" else path
        name = found.relative_to(HOME / "reproduction").as_posix()
        assert re.search(rf"`{re.escape(name)}[`/]", named) or f"`{found.name}`" in named, name


def test_headings_that_recipes_refer_to_exist():
    recipes = [*(HOME / "src" / "avuc" / "recipes").glob("*.toml"), *(HOME / "reproduction" / "recipes").glob("*.toml")]
    comments = [" ".join(re.findall(r"^#(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)) for path in recipes]
    found = [pair for text in comments for pair in re.findall(r'(docs/[\w/-]+\.md), +"(.+?)"', " ".join(text.split()))]
    assert ("docs/guide/study.md", "Out-of-distribution data") in found
    for page, heading in found:
        assert re.search(rf"^#+ {re.escape(heading)}$", (HOME / page).read_text(encoding="utf-8"), re.MULTILINE), (
            heading
        )


def test_rehearsals_are_never_beside_the_paper(published_studies):
    """What was judged on held-out training images is in no table of test figures, and the other way round."""
    rehearsed = {name for name, study in published_studies.items() if study.recipe.data.evaluate_on_validation}
    assert rehearsed == {"choice", "ablation", "past-choice"}


def test_the_row_that_is_judged_is_named_and_stands_first():
    import tomllib

    best = tomllib.loads((HOME / "reproduction" / "pages" / "reproduction.toml").read_text(encoding="utf-8"))["best"]
    page = (HOME / "docs" / "reproduction" / "tables.md").read_text(encoding="utf-8")
    shown = re.findall(r"\| ours: (.+?) \|", page)
    assert shown == [best["row"], *best["also"]]


def test_the_default_is_the_row_that_the_page_says():
    from avuc.training.default import ROW

    page = (HOME / "docs" / "reproduction" / "tables.md").read_text(encoding="utf-8")
    assert f"the **default of the library** is `{ROW}`" in page


@pytest.mark.parametrize("study", COMMITTED)
def test_committed_studies_render(study, tmp_path, check_clean):
    folder = publish.studies_below(PUBLISHED)[study]
    before = (folder / "study.sqlite").read_bytes()
    command = [sys.executable, "-m", "avuc", "report", str(folder), "--out", str(tmp_path / "r.html"), "--no-exports"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r.html").stat().st_size > 100_000
    assert (folder / "study.sqlite").read_bytes() == before
    check_clean(folder)


# sentences about effects: every one over at least five paired seeds


@pytest.fixture(scope="module")
def committed(published_studies):
    names = ("code", "factorial", "factorial-tenth", "factorial-noisy-labels")
    return {name: published_studies[name] for name in names}


def effect(study, first: str, second: str, metric: str, where: str = "5") -> Difference:
    values = [by_seed(study, name, metric, where) for name in (first, second)]
    seeds = sorted(set(values[0]) & set(values[1]))
    assert len(seeds) >= 5
    return over_seeds(*(tuple(each[seed] for seed in seeds) for each in values), same_seeds=True)


def says(study, first: str, second: str, metric: str, where: str = "5") -> str:
    return effect(study, first, second, metric, where).says(words_of(metric).better)


def page_text(name: str) -> str:
    """The page without its marks, in one line."""
    text = (HOME / "docs" / name).read_text(encoding="utf-8")
    return " ".join(re.sub(r"<!-- .*? -->", "", text).split())


def test_what_the_page_says_after_the_table_of_pairs(committed):
    """Without a temperature: every pair with five seeds is in exactly one of the four groups of the text."""
    pairs = [pair for pair, seeds in worth.measured(committed) if seeds >= 5]
    said = {
        (pair.study, pair.method): [
            says(committed[pair.study], pair.method, pair.other, metric) for metric in ("ece", "nll", "accuracy")
        ]
        for pair in pairs
    }
    helped = {key for key, found in said.items() if found[:2] == ["better", "better"] and found[2] != "worse"}
    unclear = {key for key, found in said.items() if found[:2] == ["not significant"] * 2}
    failed = {key for key, found in said.items() if found[2] == "worse"}
    tuned = {key for key in said if ", MOPED, " in key[1]}
    assert helped == {
        ("code", "SVI-AvUC"),
        ("code", "SVI-AvUC, monotone"),
        ("code", "SVI-AUAvUC"),
        ("factorial", "Adam, none, monotone"),
        ("factorial", "Adam, noise, monotone"),
        ("factorial-tenth", "Adam, none, monotone"),
        ("factorial-noisy-labels", "Adam, none, monotone"),
    }
    assert unclear == {
        ("factorial", "Adam, none, AvUC"),
        ("factorial", "Adam, noise, AvUC"),
        ("factorial", "SGD, none, monotone"),
        ("factorial", "SGD, noise, monotone"),
        ("factorial", "AugMix, none, monotone"),
    }
    assert failed == {
        ("factorial", "SGD, none, AvUC"),
        ("factorial", "SGD, noise, AvUC"),
        ("factorial", "AugMix, none, AvUC"),
        ("factorial-tenth", "Adam, none, AvUC"),
        ("factorial-noisy-labels", "Adam, none, AvUC"),
    }
    assert sorted([*helped, *unclear, *failed, *tuned]) == sorted(said)
    for study, method in failed:
        lower = says(committed[study], method, f"{method.rpartition(', ')[0]}, none", "ece") == "better"
        assert lower == ("AugMix" not in method)
        assert effect(committed[study], method, f"{method.rpartition(', ')[0]}, none", "mean_confidence").high < 0
    for study in ("factorial", "factorial-tenth"):  # a temperature alone does more, and nothing is left after it
        base, monotone = "Adam, none, none", "Adam, none, monotone"
        assert (
            effect(committed[study], f"{base} + TS", base, "ece").high
            < effect(committed[study], monotone, base, "ece").low
        )
        for metric in ("ece", "nll"):
            assert says(committed[study], f"{monotone} + TS", f"{base} + TS", metric) == "not significant"


def test_what_the_page_says_of_a_trained_start(published_studies):
    """Three seeds: directions only."""
    switched, code = (published_studies[name] for name in ("code-switches", "code"))
    for method in ("SVI", "SVI-AvUC"):
        for where, better in (("clean", True), ("5", False)):
            start = by_seed(switched, f"{method}, trained start", "accuracy", where)
            scratch = by_seed(code, method, "accuracy", where)
            assert sorted(start) == [0, 1, 2]
            assert all((start[seed] > scratch[seed]) == better for seed in start), (method, where)
    assert "clean images are classified better and shifted ones worse, in all three seeds of both rows" in page_text(
        "reproduction/tables.md"
    )


def test_without_a_temperature_avuc_around_trained_networks_is_worse_in_ten_of_twelve_intervals(committed):
    found = {
        (training, loss, metric): effect(
            committed["factorial"], f"{training}, MOPED, {loss}", f"{training}, MOPED, none", metric
        )
        for training in ("Adam", "SGD", "AugMix")
        for loss in ("AvUC", "monotone")
        for metric in ("ece", "nll")
    }
    assert all(one.value > 0 for one in found.values())
    assert {key for key, one in found.items() if one.low <= 0} == {
        ("SGD", "AvUC", "ece"),
        ("AugMix", "monotone", "nll"),
    }
    assert len(found) == 12
    assert "Ten of these twelve intervals exclude zero" in page_text("reproduction/tables.md")
    assert "ten of the twelve intervals (three trainings, two losses, two figures) exclude zero" in page_text(
        "reproduction/when-avuc-helps.md"
    )


def test_what_the_page_of_the_experiment_says_of_all_effects(committed):
    """With a temperature."""

    def compare(corner: str, first: str, second: str) -> dict[tuple[str, str], str]:
        names = [f"{corner}, {loss} + TS" for loss in (first, second)]
        return {figure: says(committed["factorial"], *names, *figure) for figure in PRIMARY}

    corners = [f"{training}, {posterior}" for training in ("Adam", "SGD", "AugMix") for posterior in ("none", "MOPED")]
    found = {(corner, loss): compare(corner, loss, "none") for corner in corners for loss in ("AvUC", "monotone")}
    better = {(*key, metric) for key, one in found.items() for (metric, _), said in one.items() if said == "better"}
    assert better == {("SGD, none", "AvUC", "ece"), ("SGD, none", "monotone", "auroc")}  # the first of them fails
    for loss in ("AvUC", "monotone", "penalty"):
        assert set(compare("Adam, none", loss, "none").values()) == {"not significant"}
        clean = effect(committed["factorial"], f"Adam, none, {loss} + TS", "Adam, none, none + TS", "accuracy", "clean")
        assert (clean.high < 0) == (loss != "AvUC")
    assert [key for key, said in found["SGD, none", "monotone"].items() if said != "not significant"] == [
        ("auroc", "cifar100")
    ]
    assert [key for key, said in found["AugMix, none", "monotone"].items() if said != "not significant"] == [
        ("nll", "5")
    ]
    against = compare("AugMix, MOPED", "monotone", "penalty")
    assert {key for key, said in against.items() if said == "better"} == {("avu_auc", "5")}
    assert list(against.values()).count("worse") == 5
    for training in ("SGD", "AugMix"):
        against = compare(f"{training}, none", "penalty", "monotone")
        assert {against[key] for key in (("ece", "5"), ("auroc", "svhn"), ("auroc", "cifar100"))} == {"worse"}
    text = page_text("reproduction/when-avuc-helps.md")
    assert "is worse than the penalty in five of the six figures, and better in AvU-AUC" in text
    assert "every clear effect of AvUC is on the worse side" in text


def test_what_the_page_says_of_the_steps_of_our_recipe(committed, published_studies):
    """A posterior around the network, and AvUC in it: five paired seeds, with a temperature."""
    study = committed["factorial"]
    for training in ("Adam", "SGD", "AugMix"):
        pair = [f"{training}, {posterior}, none + TS" for posterior in ("MOPED", "none")]
        assert says(study, *pair, "ece") == "better"
        assert says(study, *pair, "nll") == "not significant"
        assert says(study, *pair, "auroc", "svhn") == ("not significant" if training == "Adam" else "better")
    for figure in PRIMARY:
        names = [f"AugMix, MOPED, {loss} + TS" for loss in ("monotone", "none")]
        assert says(study, *names, *figure) == "not significant"
    recipes = [published_studies["best"].recipe, study.recipe]  # "the same networks"
    for one, other in (
        ("SGD", "AugMix, none, none"),
        ("MOPED-SVI", "AugMix, MOPED, none"),
        ("MOPED-AvUC", "AugMix, MOPED, monotone"),
    ):
        methods = [recipe.method(name) for recipe, name in zip(recipes, (one, other), strict=True)]
        assert methods[0].method == methods[1].method
        assert methods[0].objective == methods[1].objective


def test_what_the_page_says_of_a_perceptron():
    with (HOME / "reproduction" / "results" / "uncertain-trap.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def points(optimizer: str, loss: str) -> str:
        right = [
            [float(row["accuracy"]) for row in rows if (row["optimizer"], row["loss"]) == (optimizer, one)]
            for one in ("none", loss)
        ]
        assert [len(values) for values in right] == [5, 5]
        return f"{100 * (statistics.mean(right[0]) - statistics.mean(right[1])):.0f}"

    costs = [points("SGD", "paper"), points("SGD", "monotone"), points("Adam", "paper")]
    told = "trained by SGD, the printed loss costs {} points of accuracy and `monotone` costs {}; "
    told += "with Adam the printed loss costs {}"
    assert told.format(*costs) in page_text("reproduction/when-avuc-helps.md")


def test_what_the_index_of_studies_says_of_the_ensemble_for_segmentation():
    """Of three seeds, so no claim: the same in each of them."""
    folder = HOME / "reproduction" / "results" / "studies" / "camvid"
    with (folder / "rows.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["shift"] == "clean" or row["severity"] == "5"]

    def ahead(method: str, metric: str, clean: bool) -> int:
        """Seeds in which the ensemble is better."""
        means = [
            [
                statistics.mean(
                    float(row[metric])
                    for row in rows
                    if (row["method"], row["seed"]) == (name, str(seed)) and (row["shift"] == "clean") == clean
                )
                for seed in range(3)
            ]
            for name in ("Ensemble", method)
        ]
        higher = metric in ("mean_iou", "avu_auc", "pavpu")
        return sum((a > b) if higher else (a < b) for a, b in zip(*means, strict=True))

    for method in ("AvUC", "AvUC monotone", "AvUC monotone, TS", "AvU of segmentation"):
        for metric in ("mean_iou", "nll", "brier", "ece", "aurc"):
            assert ahead(method, metric, True) == ahead(method, metric, False) == 3, (method, metric)
    assert [ahead("AvU of segmentation", metric, True) for metric in ("avu_auc", "pavpu")] == [0, 0]
    assert ahead("AvUC", "pavpu", True) == 0
    assert "a better mIoU, NLL, Brier score, ECE and AURC than every AvUC loss" in page_text("studies/index.md")


def test_results_are_small():
    files = [
        path
        for path in (HOME / "reproduction" / "results").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert not [path for path in files if path.suffix in (".safetensors", ".pt", ".npy", ".npz", ".lock")]


def test_make_reproduce_runs_all_studies():
    done = subprocess.run(
        ["make", "-n", "reproduce", "DATA=some where", "OUT=there", "BIN=some/.venv/bin", 'OOD=["svhn", "a.npy"]'],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'run_all.py --data "some where" --out "there"' in done.stdout
    assert """--ood '["svhn", "a.npy"]'""" in done.stdout
    assert 'reproduction/publish.py "there" reproduction/results/cifar10' in done.stdout
    assert "pip install" not in done.stdout
    assert {name: Path(recipe).stem for name, recipe in run_all.RECIPES.items()} == make.STUDIES


def test_make_reproduce_asks_for_the_data():
    done = subprocess.run(["make", "reproduce", "BIN=bin"], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 2
    assert "make reproduce DATA=FOLDER" in done.stdout
