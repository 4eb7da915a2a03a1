"""What is published of the CIFAR-10 study: the paper's figures, the committed rows, and the pages made from them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import make_reproduction as make
import publish
import pytest

from avuc.core.errors import InputError
from avuc.report.study.paper_comparison import published_value, read_published

HOME = Path(__file__).parents[2]
PUBLISHED = HOME / "reproduction" / "results" / "cifar10"
# the studies that are committed, by folder; an entry more or less than there is fails here
COMMITTED: tuple[str, ...] = ("paper", "code", "code-pretrained", "code-switches", "beta", "ablation", "choice", "best")
COMMITTED += ("factorial", "factorial-tenth")
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


def test_committed_pages_are_made_from_the_committed_rows(printed):
    import tomllib

    notes = tomllib.loads((HOME / "reproduction" / "pages" / "reproduction.toml").read_text(encoding="utf-8"))
    found = make.read_studies(PUBLISHED)
    blocks, remarks = make.all_blocks(found, printed, notes)
    beyond = make.make_studies.IN_README
    if beyond in make.block_names((HOME / "README.md").read_text(encoding="utf-8")):
        blocks[beyond] = make.make_studies.beyond_cifar(make.make_studies.all_studies())
    for path, name in make.PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert make.fill(text, blocks, make.one_number(found, printed), name) == text, f"run make docs: {name} is stale"
    assert remarks.missing == [], "reproduction/pages/reproduction.toml: rows that differ have no sentence"
    used = [name for path in make.PAGES for name in make.block_names(path.read_text(encoding="utf-8"))]
    assert set(used) == set(blocks)


@pytest.mark.parametrize("page", make.PAGES.values())
def test_no_line_begins_with_a_figures_mark(page):
    """Such a line is an HTML block to Markdown: it would end the paragraph that it stands in."""
    lines = (HOME / page).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.lstrip(" -*").startswith("<!-- figure")] == []


def test_rehearsals_are_never_beside_the_paper():
    """What was judged on held-out training images is in no table of test figures, and the other way round."""
    found = make.read_studies(PUBLISHED)
    rehearsed = {name for name, study in found.items() if study.recipe.data.evaluate_on_validation}
    assert rehearsed == {"choice", "ablation"}


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


def test_results_are_small():
    files = [
        path
        for path in (HOME / "reproduction" / "results").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert not [path for path in files if path.suffix in (".safetensors", ".pt", ".npy", ".npz", ".lock")]


def test_make_reproduce_runs_recipes_that_exist():
    from avuc.study.recipe import load_recipe

    done = subprocess.run(
        ["make", "-n", "reproduce", "DATA=some where", "OUT=there", "BIN=some/.venv/bin", 'OOD=["svhn", "a.npy"]'],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=True,
    )
    pairs = re.findall(r"([\w-]+):([\w./-]+)", done.stdout.split("; do")[0])
    assert {name: Path(recipe).name.removesuffix(".toml") for name, recipe in pairs} == make.STUDIES
    for _, recipe in pairs:
        found = load_recipe(
            HOME / recipe if "/" in recipe else recipe, ["data.root=some where", 'study.ood=["svhn", "a.npy"]']
        )
        assert found.data.root == "some where"
        assert [other.name for other in found.study.others] == ["svhn", "a"]
    assert '--set data.root="some where"' in done.stdout
    assert 'reproduction/publish.py "there" reproduction/results/cifar10' in done.stdout
    assert "pip install" not in done.stdout


def test_make_reproduce_asks_for_the_data():
    done = subprocess.run(["make", "reproduce", "BIN=bin"], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 2
    assert "make reproduce DATA=FOLDER" in done.stdout
