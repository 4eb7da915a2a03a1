"""The studies beyond CIFAR: their recipes, the path from data to page on generated data, and the committed pages."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import make_studies
import numpy as np
import published_rows
import pytest
import run_study
import studies_differences
import studies_tables

from avuc.core.errors import InputError
from avuc.study.recipe.load import load_recipe
from avuc.study.recipe.parser import parse_recipe
from avuc.study.store.recipe import StoredRecipe
from avuc.study.store.store import Store

HOME = Path(__file__).parents[2]
STUDIES = HOME / "reproduction" / "results" / "studies"
RECIPE = """
[study]
name = "small"
seeds = [0, 1]
samples = 2
shifts = ["gaussian_noise", "contrast"]
severities = [5]
ood = ["photographs"]
[data]
source = "data:load"
validation_split = "val"
[net]
name = "nets:make_net"
[train]
epochs = 1
batch_size = 20
pad = 0
milestones = []
factors = []
[[methods]]
name = "Plain"
method = "vanilla"
[[methods]]
name = "Plain-TS"
reuse_model = "Plain"
calibrator = "temperature"
[[methods]]
name = "AvUC"
method = "vanilla"
objective = { kind = "avuc", variant = "monotone", warmup_epochs = 0, threshold = 0.5 }
"""
DATA = """
from pathlib import Path

import torch


def load(split, root):
    assert Path(root, "images").is_file()
    generator = torch.Generator().manual_seed(["train", "val", "test"].index(split))
    labels = torch.randint(3, (60,), generator=generator)
    images = torch.randint(80, (60, 8, 8, 3), generator=generator) + 60 * labels[:, None, None, None]
    return images.to(torch.uint8), labels
"""
NETS = """
from torch import nn


def make_net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))
"""
PAGE = """
title = "Small"
metrics = ["accuracy", "nll", "ece"]
compare = [["AvUC", "Plain"]]
validation = true
"""
INDEX = "# Index\n\n<!-- generated: studies -->\n<!-- end: studies -->\n"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Folders of studies, results and pages, with one small study that was run."""
    home = tmp_path_factory.mktemp("home")
    small = home / "studies" / "small"
    for folder in (small, home / "data", home / "docs"):
        folder.mkdir(parents=True)
    (home / "data" / "images").touch()
    (home / "docs" / "index.md").write_text(INDEX)
    for name, text in {"recipe.toml": RECIPE, "data.py": DATA, "nets.py": NETS, "page.toml": PAGE}.items():
        (small / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        code = run_study.run(small, home / "data", home / "out", None, ["--device", "cpu", "--no-report"])
    assert code == 0
    return home


@pytest.fixture
def home(places, monkeypatch):
    for module in (run_study, make_studies):
        monkeypatch.setattr(module, "STUDIES", places / "studies")
        monkeypatch.setattr(module, "RESULTS", places / "results")
        monkeypatch.setattr(module, "HOME", places)
    monkeypatch.setattr(make_studies, "PAGES", places / "docs")
    return places


def test_from_data_to_page(home, capsys):
    """Before: not run yet. After publishing: the figures of the study's file, and a page that is up to date."""
    readme = home / "README.md"
    places = "<!-- generated: beyond-cifar -->\n<!-- end: beyond-cifar -->\n"
    readme.write_text(f"{places}<!-- generated: other -->\nas it is\n")
    assert make_studies.main([]) == 0
    assert f"| [Small]({'docs/studies'}/small.md), study | Plain |  |  |  | not run yet |" in readme.read_text()
    page, index = home / "docs" / "small.md", home / "docs" / "index.md"
    assert page.read_text().count("*Not run yet.*") == 5
    assert "make reproduce STUDY=small DATA=FOLDER" in page.read_text()
    assert "| [Small](small.md) | study | small | nets:make_net | not run yet |" in index.read_text()
    written = page.read_text().replace("## Details", "Written by hand.\n\n## Details")
    page.write_text(written)

    assert run_study.main(["small", "--publish-only", "--out", str(home / "out")]) == 0
    assert make_studies.main(["--check"]) == 0
    assert "| open: 2 seeds |" in readme.read_text()
    assert readme.read_text().endswith("<!-- generated: other -->\nas it is\n")
    text = page.read_text()
    assert "Written by hand." in text
    assert "Not run yet" not in text
    store = Store(home / "out", create=False)
    rows = {row[:5]: row[5] for row in store.rows()}
    store.close()
    with open(home / "results" / "small" / "rows.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * 2 * (2 + 2 + 1)
    for line in lines:
        for metric in ("accuracy", "nll", "ece", "auroc"):
            key = (line["method"], int(line["seed"]), line["shift"], int(line["severity"]), metric)
            if key in rows:
                assert float(line[metric]) == pytest.approx(rows[key], rel=1e-4)
            else:
                assert not line[metric]
    clean = [rows["AvUC", seed, "clean", 0, "ece"] for seed in (0, 1)]
    expected = f"{100 * np.mean(clean):.2f} ± {100 * np.std(clean, ddof=1):.2f}"
    assert expected in text.split("## Under shift")[0]
    held = [rows["AvUC", seed, "validation", 0, "nll"] for seed in (0, 1)]
    validation = text.split("Validation data, for comparison")[1].split("## Under shift")[0]
    assert f"| {np.mean(held):.3f} ± {np.std(held, ddof=1):.3f} |" in validation
    shifted = [rows["AvUC", s, shift, 5, "nll"] for s in (0, 1) for shift in ("gaussian_noise", "contrast")]
    assert f"| {np.mean(shifted):.3f} ± " in text.split("## Under shift")[1].split("## Does")[0]
    assert "Detecting photographs by entropy." in text
    assert "| AvUC − Plain |" in text
    each = [rows["AvUC", seed, "clean", 0, "nll"] - rows["Plain", seed, "clean", 0, "nll"] for seed in (0, 1)]
    span = f"| {min(each):+.3f} … {max(each):+.3f} |".replace("-", "−")
    assert span in text.split("from the lowest to the highest")[1]
    assert "**" not in text.split("## Does AvUC help here?")[1].split("## Details")[0]  # two seeds claim nothing
    assert "ECE " in index.read_text()
    facts = json.loads((home / "results" / "small" / "study.json").read_text())
    assert (facts["missing"], facts["models"], facts["evaluations"]) == (0, 4, 30)
    published = "".join(path.read_text() for path in (home / "results" / "small").iterdir())
    assert str(home) not in published

    page.write_text(text.replace(" ± ", " +- "))
    assert make_studies.main(["--check"]) == 1
    assert "small.md: is out of date" in capsys.readouterr().out
    page.write_text(text)


def _published(home: Path, target: Path, keep=lambda line: True, **old_and_new: tuple[str, str]) -> Path:
    """A copy of the published files, with some of the rows, and the recipe changed."""
    run_study.publish(home / "out", target / "small")
    path = target / "small" / "rows.csv"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *(line for line in lines if keep(line.split(",")))]) + "\n")
    recipe = target / "small" / "recipe.toml"
    text = recipe.read_text()
    for old, new in old_and_new.values():
        assert old in text
        text = text.replace(old, new, 1)
    recipe.write_text(text)
    return target


@pytest.mark.parametrize("name", [path.name for path in sorted(STUDIES.iterdir())])
def test_published_files_are_written_as_they_were_read(name, tmp_path):
    published_rows.Publication.read(STUDIES / name).write(tmp_path)
    for path in (STUDIES / name).iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_a_later_run_adds_what_is_missing_and_replaces_nothing(home, tmp_path, monkeypatch):
    """Published: two methods of seed 0 at clean images. Later: everything, with other figures."""
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)
    part = {"severities = [5]": "severities = [1]", "seeds = [0, 1]": "seeds = [0]"}
    _published(home, tmp_path, lambda line: line[:3] in (["Plain", "0", "clean"], ["AvUC", "0", "clean"]))
    small, later = tmp_path / "small", tmp_path / "later"
    run_study.publish(home / "out", later)
    recipe, models, facts = (small / name for name in ("recipe.toml", "models.csv", "study.json"))
    for old, new in part.items():
        assert old in recipe.read_text()
        recipe.write_text(recipe.read_text().replace(old, new))
    models.write_text("".join(line for line in models.read_text().splitlines(True) if line.split(",")[1] != "1"))
    before = {"models": 2, "evaluations": 2, "runs": [{"started": "2026-01-01T00:00:00Z", "seconds": 60.0}]}
    facts.write_text(json.dumps({**json.loads(facts.read_text()), **before}))
    with (small / "rows.csv").open(newline="") as file:
        kept = list(csv.DictReader(file))
    for line in kept:
        line["ece"] = "0.4321"
    with (small / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in kept[0] if name != "nll"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept)

    assert run_study.main(["small", "--publish-only", "--out", str(home / "out"), "--add"]) == 0
    with (small / "rows.csv").open(newline="") as file, (later / "rows.csv").open(newline="") as other:
        lines, all_later = list(csv.DictReader(file)), list(csv.DictReader(other))
    assert len(lines) == len(all_later) == 30
    for line, new in zip(lines, all_later, strict=True):
        if [line[key] for key in ("method", "seed", "shift")] in (["Plain", "0", "clean"], ["AvUC", "0", "clean"]):
            assert (line["ece"], line["nll"]) == ("0.4321", "")
        else:
            assert line == new
    added = json.loads(facts.read_text())
    assert (added["models"], added["evaluations"], len(added["runs"])) == (4, 30, 2)
    # not rounded twice: 1.5 s are .025 minutes
    seconds = 60 + sum(run["seconds"] for run in json.loads((later / "study.json").read_text())["runs"])
    assert added["minutes"] == pytest.approx(seconds / 60, abs=0.0051)
    assert "severities = [1, 5]" in recipe.read_text()
    assert "seeds = [0, 1]" in recipe.read_text()
    assert added["missing"] == 3 * 2 * 2  # two kinds of shift at intensity 1
    assert len(models.read_text().splitlines()) == 1 + 4
    # a copy that went on with these results brings their runs along
    texts = {path: path.read_text() for path in (recipe, models, facts, small / "rows.csv")}
    assert run_study.main(["small", "--publish-only", "--out", str(home / "out"), "--add"]) == 0
    assert {path: path.read_text() for path in texts} == texts


def test_results_of_earlier_runs_of_a_study_are_published_too(home, tmp_path, monkeypatch):
    """Entries of a plan have other intensities; the study's recipe is that of the entry that began last."""
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)
    shutil.copytree(home / "out", tmp_path / "out")
    with contextlib.closing(Store(tmp_path / "out")) as store:
        recipe = StoredRecipe.parse(store.recipe().stored_text().replace("severities = [5]", "severities = [1]"))
        store.adopt(parse_recipe(recipe.to_toml(), "later"))
    for name in ("out", "small"):
        run_study.publish((home if name == "out" else tmp_path) / "out", tmp_path / name / "published")
    before, after = (published_rows.Publication.read(tmp_path / name / "published") for name in ("out", "small"))
    assert after.rows == before.rows
    assert parse_recipe(after.recipe, "published").study.severities == (1, 5)
    assert after.facts["missing"] == 3 * 2 * 2


def test_recipes_are_joined():
    """A later run may have fewer or more seeds, shifts, severities, other data and methods."""
    text = RECIPE.replace("severities = [5]", "severities = [1]").replace("contrast", "fog")
    text = text.replace('["photographs"]', '[{ name = "nets", path = "data:nets" }, "photographs"]')
    text = text.replace('name = "Plain"\nmethod = "vanilla"', 'name = "Plain"\nmethod = "vanilla"\nseeds = [1, 2]')
    text += '[[methods]]\nname = "Dropout"\nmethod = "dropout"\nseeds = [0]\n'
    joined = published_rows.join_recipes(RECIPE, text)
    recipe = parse_recipe(joined, "joined")
    assert (recipe.study.severities, recipe.study.seeds) == ((1, 5), (0, 1))
    assert recipe.study.shifts == ("gaussian_noise", "contrast", "fog")
    assert {other.name for other in recipe.study.others} == {"photographs", "nets"}
    seeds = {method.name: recipe.seeds(method) for method in recipe.methods}
    assert seeds == {"Plain": (0, 1, 2), "Plain-TS": (0, 1, 2), "AvUC": (0, 1), "Dropout": (0,)}
    assert published_rows.join_recipes(joined, RECIPE) == published_rows.join_recipes(joined, joined) == joined


def test_the_rest_of_tiny_imagenet_can_be_added():
    """Its last layers are published; a later run has the recipe of the study's folder, and data elsewhere."""
    published = published_rows.Publication.read(STUDIES / "tiny-imagenet")
    text = (HOME / "reproduction" / "studies" / "tiny-imagenet" / "recipe.toml").read_text(encoding="utf-8")
    later = text.replace('source = "data:load"', 'source = "data:load"\nroot = "elsewhere/tiny"', 1)
    facts = {"models": 0, "minutes": 0.0, "runs": []}
    nothing = published_rows.Publication([], [], facts, parse_recipe(later, "later").to_toml())
    added = published.with_new(nothing, Path("out"))
    assert added.facts == published.facts
    assert (
        StoredRecipe.parse(added.recipe).missing(set()) == published.facts["evaluations"] + published.facts["missing"]
    )


def test_minutes_of_runs_side_by_side_count_once():
    """Two queues of run_many.py work on one study at the same time; a later run adds its own minutes."""
    runs = [
        {"started": "2026-11-19T10:00:00Z", "seconds": 600.0},
        {"started": "2026-11-19T10:00:01.5+00:00", "seconds": 300.0},
        {"started": "2026-11-19T10:09:00Z", "seconds": 120.0},
        {"started": "2026-11-19T12:00:00Z", "seconds": 60.0},
    ]
    assert published_rows.minutes_of(runs) == published_rows.minutes_of(runs[::-1]) == 12.0
    assert published_rows.minutes_of([]) == 0.0


def test_another_study_is_not_added(home, tmp_path, monkeypatch):
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)
    with pytest.raises(InputError, match="no published study to add to"):
        run_study.publish(home / "out", tmp_path / "small", add=True)
    _published(home, tmp_path, epochs=("epochs = 1", "epochs = 7"))
    with pytest.raises(InputError, match=r"holds another study: methods\.Plain\.train\.epochs was 7, now 1"):
        run_study.main(["small", "--publish-only", "--out", str(home / "out"), "--add"])


@pytest.mark.parametrize(
    "kept",
    [("validation",), ("validation", "clean"), ("clean", "gaussian_noise"), ("ood:photographs", "contrast")],
)
def test_a_page_of_an_incomplete_study(home, tmp_path, kept):
    results = _published(home, tmp_path, lambda line: line[2] in kept)
    text = make_studies.make(home / "studies", results, home / "docs")[home / "docs" / "small.md"]
    assert ("Validation data, for comparison" in text) == ("validation" in kept)
    assert ("kinds of shift at intensity 5" in text) == (kept[-1] in ("gaussian_noise", "contrast"))


def test_a_method_that_is_not_finished_changes_no_figure_of_another(home, tmp_path):
    """A part of a study is published at intensity 5 first: the means of finished methods stay those of all shifts."""
    whole, part = (
        studies_tables.read_published(_published(home, tmp_path / name, keep) / "small").results
        for name, keep in {
            "whole": lambda line: True,
            "part": lambda line: line[:3] != ["AvUC", "1", "contrast"],
        }.items()
    )
    for name in ("Plain", "Plain-TS"):
        for where in ("5", "shifted"):
            figures = [studies_tables.figure(results, name, "ece", where) for results in (whole, part)]
            assert figures[0] == figures[1]
            assert figures[0].seeds == 2
    # the seed that lacks a shift has no mean over the shifts
    finished, unfinished = (studies_tables.figure(results, "AvUC", "ece", "5") for results in (whole, part))
    assert unfinished.seed_numbers == (0,)
    assert unfinished.by_seed == finished.by_seed[:1]
    assert studies_tables.figure(part, "AvUC", "ece", "clean") == studies_tables.figure(whole, "AvUC", "ece", "clean")
    value, seeds = studies_differences.difference(part, ("AvUC", "Plain"), "ece", "shifted")
    both = [studies_tables.figure(whole, name, "ece", "shifted").by_seed[0] for name in ("AvUC", "Plain")]
    assert (value.value, seeds) == (pytest.approx(both[0] - both[1]), 1)


def test_methods_that_lack_weaker_shifts_are_compared_at_the_highest_intensity(home, tmp_path):
    folder = _published(home, tmp_path, recipe=("severities = [5]", "severities = [1, 5]")) / "small"
    path = folder / "rows.csv"
    head, *lines = path.read_text().splitlines()
    weaker = [
        ",".join([*line.split(",")[:3], "1", *line.split(",")[4:]]) for line in lines if line.split(",")[3] == "5"
    ]
    pairs = [("AvUC", "Plain"), ("Plain-TS", "Plain")]

    def sections(more: list[str]) -> dict[str, int]:
        """The number of differences below each headline."""
        path.write_text("\n".join([head, *lines, *more]) + "\n")
        results = studies_tables.read_published(folder).results
        text = studies_differences.differences(results, ("ece", "nll"), pairs)
        return {part.splitlines()[0]: part.count("− Plain") for part in text.split("On ")[1:]}

    everywhere, at_5 = "mean over all shifts and intensities:", "mean over all shifts at intensity 5:"
    finished = sections(weaker)
    assert list(finished) == ["clean test data:", everywhere]
    unfinished = sections([line for line in weaker if not line.startswith("AvUC,")])
    assert list(unfinished) == ["clean test data:", everywhere, at_5]
    # two tables of each: the differences, and the same for each seed
    assert (finished[everywhere], unfinished[everywhere], unfinished[at_5]) == (4, 2, 4)


@pytest.mark.parametrize(
    ("counts", "text"),
    [((1, 1, 1), "one seed"), ((1, 5, 5), "over 5 seeds"), ((5, 1, 3), "over 3 or 5 seeds")],
)
def test_a_table_says_over_how_many_seeds_it_is(home, tmp_path, counts, text):
    results = studies_tables.read_published(_published(home, tmp_path) / "small").results
    methods = [
        replace(method, seeds=tuple(range(count))) for method, count in zip(results.methods, counts, strict=True)
    ]
    assert studies_tables.clean(replace(results, methods=methods), []).partition(".")[0].endswith(text)


def test_a_page_says_what_was_changed(home, tmp_path):
    """Figures of fewer images, or of a shorter training, are not shown as those of the recipe."""
    page, index = home / "docs" / "small.md", home / "docs" / "index.md"
    made = make_studies.make(home / "studies", _published(home, tmp_path / "same"), home / "docs")
    assert "run with changes" not in made[page]
    assert "(CPU) |" in made[index]
    changed = {"a": ("test_images = 0", "test_images = 30"), "b": ("epochs = 1", "epochs = 2")}
    made = make_studies.make(home / "studies", _published(home, tmp_path / "other", **changed), home / "docs")
    assert "**It was run with changes: `data.test_images = 30`; `train.epochs = 2`.**" in made[page]
    assert "(CPU), changed recipe |" in made[index]


def test_differences_of_pairs_by_hand(home):
    """Five paired seeds: Student's interval; bold if 0 is outside it."""
    from scipy import stats

    methods = [studies_tables.MethodFacts(name, 0, seeds=tuple(range(5))) for name in ("a", "b")]
    first, second = np.array([0.10, 0.12, 0.11, 0.13, 0.09]), np.array([0.20, 0.21, 0.22, 0.19, 0.20])
    values = {"ece": np.stack([first, second])[:, :, None]}
    results = studies_tables.Results("t", "", (), methods, [("clean", 0)], values, {}, {}, {})
    found = stats.ttest_rel(first, second).confidence_interval()
    half = 100 * (found.high - found.low) / 2
    assert studies_differences.interval(results, ("a", "b"), "ece", "clean") == f"**−9.40 ± {half:.2f}**"
    for nll, answer in (
        ((1.0, 1.1, 1.2, 1.3, 1.4), "yes"),
        ((2.1, 2.2, 2.2, 2.4, 2.4), "ECE only; NLL is worse"),
        ((1.9, 2.1, 2.0, 2.2, 1.8), "yes"),  # no difference
    ):
        both = values | {"nll": np.stack([nll, [2.0, 2.0, 2.1, 2.1, 2.2]])[:, :, None]}
        compared = studies_tables.Results("t", "", (), methods, [("clean", 0)], both, {}, {}, {})
        assert studies_differences.holds(compared, ("a", "b"), "clean") == answer
        turned = {"yes": "no: worse", "ECE only; NLL is worse": "NLL only; ECE is worse"}[answer]
        assert studies_differences.holds(compared, ("b", "a"), "clean") == turned
        assert studies_differences.holds(compared, ("a", "a"), "clean") == "no effect"
    few = {"ece": values["ece"][:, :4]}
    results = studies_tables.Results(
        "t", "", (), [m.__class__(m.name, 0, seeds=(0, 1, 2, 3)) for m in methods], [("clean", 0)], few, {}, {}, {}
    )
    assert "**" not in studies_differences.interval(results, ("a", "b"), "ece", "clean")
    assert studies_differences.holds(results, ("a", "b"), "clean") == "open: 4 seeds"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"AvUC", "Plain"', '"AvUX", "Plain"', "compare: the recipe has no method 'AvUX'"),
        ("title", "tittle", "no key 'tittle'"),
        ('[["AvUC", "Plain"]]', '["AvUC"]', "expected pairs of methods"),
        ("title =", "title", "is not valid TOML"),
    ],
)
def test_mistakes_in_page_toml(home, old, new, message):
    path = home / "studies" / "small" / "page.toml"
    path.write_text(PAGE.replace(old, new))
    try:
        with pytest.raises(InputError, match=message):
            make_studies.main(["--check"])
    finally:
        path.write_text(PAGE)


def test_arguments_after_two_dashes_go_to_the_study(home, monkeypatch):
    seen = []
    monkeypatch.setattr(run_study, "run", lambda *given: seen.append(given) or 75)
    command = ["small", "--data", str(home), "--minutes", "8", "--", "--set", "train.epochs=1", "--device", "cpu"]
    assert run_study.main(command) == 75
    assert seen[0][3:] == (8.0, ["--set", "train.epochs=1", "--device", "cpu"])


def test_mistakes_in_the_command(home):
    with pytest.raises(InputError, match="tiny: no such study; there are small"):
        run_study.main(["tiny"])
    with pytest.raises(InputError, match="nowhere: no such folder"):
        run_study.main(["small", "--data", "nowhere"])
    with pytest.raises(InputError, match="nowhere"):
        run_study.main(["small", "--publish-only", "--out", str(home / "nowhere")])


# what is committed


@pytest.mark.parametrize("name", run_study.study_names())
def test_recipes_can_be_read(name):
    folder = HOME / "reproduction" / "studies" / name
    recipe = load_recipe(folder / "recipe.toml", ["data.root=somewhere"])
    assert recipe.data.is_own
    assert (folder / "data.py").is_file()
    assert (HOME / "docs" / "studies" / f"{name}.md").is_file()


def test_pages_are_up_to_date():
    assert make_studies.main(["--check"]) == 0


WORSE, SAME, BETTER = 1, 0, -1


@pytest.mark.parametrize(
    ("name", "form", "ece", "nll"),
    [
        ("ag-news", "printed", WORSE, WORSE),
        ("ag-news", "monotone", WORSE, WORSE),
        ("sst2", "printed", WORSE, WORSE),
        ("sst2", "monotone", WORSE, WORSE),
        ("wnut17", "printed", BETTER, SAME),
        ("wnut17", "monotone", WORSE, WORSE),
    ],
)
def test_what_the_pages_say_about_avuc_and_text(published, name, form, ece, nll):
    """The sentences in docs/studies/index.md and docs/when-to-use-avuc.md."""
    results = published[name].results
    for where in ("clean", "shifted"):
        for metric, effect in (("ece", ece), ("nll", nll)):
            pair = (f"MOPED-AvUC, {form}", "MOPED-SVI")
            found, seeds = studies_differences.difference(results, pair, metric, where)
            assert seeds == 5
            assert (found.low > 0) - (found.high < 0) == effect, (where, metric)
            if effect == BETTER:
                assert 0.0045 < -found.value < 0.0065  # "half a point"
            means = {method: studies_tables.figure(results, method, metric, where).value for method in results.names}
            assert min(means, key=means.get) == "TS"


@pytest.fixture(scope="module")
def published():
    folder = HOME / "reproduction" / "results" / "studies"
    return {name: studies_tables.read_published(folder / name) for name in ("ag-news", "sst2", "wnut17")}


def dry_run(*arguments: str) -> str:
    """What `make reproduce` would run, on one line."""
    command = ["make", "--no-print-directory", "-n", "reproduce", "BIN=bin", *arguments]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True)
    return " ".join(done.stdout.replace("\\\n", " ").split())


def test_make_reproduce_runs_the_studies_that_are_scripts():
    """Their commands are those that the scripts know."""
    line = dry_run("STUDY=language-models", "DATA=some where", "OUT=there", "CHANGES=--seeds 0")
    commands = re.findall(r"language_models\.py (\w+) (\".*?\") (\S+)( --seeds 0)?", line)
    assert [name for name, *_ in commands] == ["texts", "tokens", "all", "table"]
    assert [one[3] for one in commands] == ["", "", " --seeds 0", ""]
    known = (HOME / "reproduction" / "language_models.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in known for name, *_ in commands)
    for first, second in itertools.pairwise(commands):
        assert first[2] == second[1]  # each reads what the one before has written
    assert line.endswith("bin/python reproduction/pages/make_language_models.py")
    assert dry_run("STUDY=uncertain-trap") == "bin/python reproduction/uncertain_trap.py"
    assert dry_run("STUDY=wrong-labels") == "bin/python reproduction/wrong_labels.py"
    readings = 'svhn_readings.py "out/reproduce/code" --svhn "svhn.npy" --set data.root="here" --out '
    assert readings in dry_run("DATA=here", "SVHN=svhn.npy")
    assert "svhn_readings" not in dry_run("DATA=here")


def test_make_reproduce_runs_a_study():
    command = ["make", "-n", "reproduce", "STUDY=small", "DATA=some where", "BIN=bin", "MINUTES=8", "CHANGES=--set a=1"]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True)
    line = " ".join(done.stdout.replace("\\\n", " ").split())
    assert 'bin/python reproduction/run_study.py "small" --data "some where" --minutes 8 -- --set a=1' in line
    assert "cifar" not in line
    asked = subprocess.run(["make", "reproduce", "STUDY=small", "BIN=bin"], cwd=HOME, capture_output=True, text=True)
    assert asked.returncode == 2
    assert "make reproduce STUDY=small DATA=FOLDER" in asked.stdout
    script = [sys.executable, "reproduction/run_study.py", "nothing", "--data", "."]
    wrong = subprocess.run(script, cwd=HOME, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("nothing: no such study; there are ")
