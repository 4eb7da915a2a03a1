"""Publishing a study and making the pages from it, on made-up studies; nothing of those is ever committed."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import make_reproduction as make
import numpy as np
import publish
import pytest
import reproduction_best as best
import reproduction_choice as choice
import reproduction_more as more
import reproduction_seeds as seeds
import reproduction_tables as tables
import reproduction_worth as worth

from avuc.core.errors import InputError
from avuc.report.study.paper_comparison import Figure

HOME = Path(__file__).parents[2]

# made-up studies

SHIFTS = ("gaussian_blur", "fog", "contrast", "shot_noise")
CHANGES = [
    "study.seeds=[0,1]",
    f"study.shifts={list(SHIFTS)}".replace("'", '"'),
    'study.ood=["svhn","cifar100","dtd"]',
    'data.root="/somewhere/private"',
]


def fake_study(folder: Path, recipe, *, gain: float = 0.0, unfinished: bool = False) -> None:
    """Plausible numbers, random but for their trend: worse with the intensity, better with `gain`; with pictures."""
    from avuc.study.evaluation.examples import png
    from avuc.study.grid import CLEAN, ModelKey, Plan
    from avuc.study.store.records import MetricsAndCurves
    from avuc.study.store.store import Evaluation, Store, Trained

    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    store = Store(folder)
    store.adopt(recipe)
    hardware = {"gpus": ["NVIDIA H200"], "processor": "a processor"}
    about = {"versions": {"torch": "2.11.0"}, "revision": "a" * 40, "hardware": hardware}
    store.begin(engine="local", device="cuda:0", recipe=recipe, about=about)
    picture = png(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    for place, row in enumerate(recipe.methods):
        for seed in recipe.seeds(row):
            if row.method is not None:
                history = [
                    {
                        "member": member,
                        "epoch": epoch,
                        "seconds": 2.0 + epoch / 7,
                        "images_per_second": 45000 / (2 + epoch / 7),
                    }
                    | {"nll": 1 / (1 + epoch), "kl": 0.1, "avuc": 0.3, "total": 1.4, "accuracy": 0.8, "avu": 0.7}
                    | ({"validation_accuracy": 0.8, "validation_avu": 0.75, "validation_nll": 0.5} if epoch % 2 else {})
                    for epoch in range(4)
                    for member in range(row.method.members)
                ]
                store.add_model(Trained(ModelKey(row.name, seed), history, 4, 9.0, 0.5))
            cells = []
            for one in Plan(recipe).sets:
                level = one.severity
                ece = max(0.005, 0.02 + 0.05 * level - gain + 0.002 * place + 0.004 * rng.standard_normal())
                values = {"ece": ece, "uce": 0.9 * ece, "nll": 0.4 + 7 * ece, "brier": 0.15 + 2 * ece}
                values |= {"accuracy": 0.92 - 0.08 * level + gain / 3 + 0.001 * place, "avu_auc": 0.8 - 0.05 * level}
                values |= {"threshold": 0.5, "mean_confidence": 0.8}
                if row.calibrator and one.shift == "validation":
                    values["temperature"] = 1.5
                if one.shift != "validation" and one != CLEAN:
                    values |= dict.fromkeys(("auroc", "aupr_in", "aupr_out"), 0.6 + 0.06 * level + gain / 2)
                    values |= {"detection_accuracy": 0.7, "fpr95": 0.4, "wasserstein": 0.2 + 0.1 * level}
                counts = {"low": 0.0, "high": 2.3026}
                counts |= {"outside": [10] * 50} if one.outside else {"right": [9] * 50, "wrong": [1] * 50}
                curve = {"rows": [20] * 15, "stated": [0.5] * 15, "observed": [0.4] * 15}
                told = {"entropy": counts, "confidence": counts | {"high": 1.0}, "avu": {"avu": [0.5] * 21}}
                told |= {
                    "reliability": curve,
                    "uncertainty": curve,
                    "conformal": {"wanted": 0.9, "rows": 9, "methods": {}},
                }
                shown = {"samples": "AAAA", "rows": 2, "top": 2.3, "tempered": {"temperature": [1.0], "nll": [0.4]}}
                shown["tempered"] |= {"count": [[20] * 15], "stated": [[0.5] * 15], "observed": [[0.4] * 15]}
                shown["mistakes"] = [{"entropy": 0.1, "confidence": 0.9, "said": "a", "is": "b", "png": PNG_TEXT}]
                kept = one == CLEAN or level == 5
                judged = MetricsAndCurves(values, told, np.zeros(4, np.float32), 1000, 128)
                cell = Evaluation(
                    row.name, seed, one, judged, 0.5, None, one == CLEAN, shown if kept else None, picture
                )
                cells.append(cell)
            store.add_evaluations(cells)
    if not unfinished:
        store.finish(100.0)
    store.close()


PNG_TEXT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def recipe_of(name: str | Path, *more: str):
    from avuc.study.recipe.load import load_recipe

    return load_recipe(name, [*CHANGES, *more])


ABLATION = """
[study]
name = "ablation"
shifts = ["gaussian_blur", "fog", "contrast", "shot_noise"]
[data]
source = "cifar10"
[[methods]]
name = "base"
method = { kind = "svi", initial_std = 0.05 }
objective = { kind = "avuc", beta = 3.0 }
[[methods]]
name = "less KL"
method = { kind = "svi", initial_std = 0.05 }
objective = { kind = "avuc", beta = 3.0, kl_weight = 0.1 }
[[methods]]
name = "wide"
method = { kind = "svi", initial_std = 0.127 }
objective = { kind = "avuc", beta = 3.0 }
[[methods]]
name = "no KL"
method = { kind = "svi", initial_std = 0.05 }
objective = { kind = "avuc", beta = 3.0, kl_weight = 0.5, kl_gradient = false }
[[methods]]
name = "plain SVI"
method = { kind = "svi", initial_std = 0.05 }
[[methods]]
name = "around Vanilla"
method = { kind = "svi", moped = true, delta = 0.5 }
objective = { kind = "avuc", beta = 3.0 }
start = "Vanilla"
[[methods]]
name = "Vanilla"
method = "vanilla"
[[methods]]
name = "little"
method = { kind = "svi", initial_std = 0.05 }
objective = { kind = "avuc", beta = 0.5 }
[[methods]]
name = "little, scaled"
of = "little"
calibrator = "temperature"
[[methods]]
name = "little, own"
of = "little"
bn_images = 64
"""


CHOICE = """
[study]
name = "choice"
shifts = ["snow", "motion_blur"]
severities = [3, 5]
[data]
source = "cifar10"
rehearsal = true
[[methods]]
name = "Vanilla"
method = "vanilla"
[[methods]]
name = "Vanilla + TS"
of = "Vanilla"
calibrator = "temperature"
[[methods]]
name = "SVI"
method = "svi"
[[methods]]
name = "narrow"
method = { kind = "svi", initial_std = 0.01 }
[[methods]]
name = "narrow + TS"
of = "narrow"
calibrator = "temperature"
[[methods]]
name = "narrow, own + TS"
of = "narrow"
calibrator = "temperature"
bn_images = 64
"""


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    """A folder of studies as `make reproduce` leaves it."""
    from avuc.study.recipe.load import parse_recipe

    folder = tmp_path_factory.mktemp("raw")
    fake_study(folder / "paper", recipe_of("cifar10-paper"))
    fake_study(folder / "code", recipe_of("cifar10-code"), gain=0.01, unfinished=True)
    fake_study(
        folder / "code-pretrained",
        recipe_of(HOME / "reproduction" / "recipes" / "cifar10-code-pretrained.toml"),
        gain=0.02,
    )
    for name in ("code-switches", "code-49500"):
        fake_study(folder / name, recipe_of(HOME / "reproduction" / "recipes" / f"{name}.toml"))
    fake_study(folder / "best", recipe_of("cifar10-best"), gain=0.15)
    fake_study(folder / "ablation", parse_recipe(ABLATION), gain=0.03)
    fake_study(folder / "choice", parse_recipe(CHOICE), gain=0.05)
    return folder


@pytest.fixture(scope="session")
def published(raw, tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "cifar10"
    publish.main(raw, folder, figures=False)  # figures take most of the time
    return folder


@pytest.fixture(scope="session")
def studies(published):
    return make.read_studies(published)


# publishing


def test_published_copies_hold_every_row_and_no_picture(raw, published, has_pictures, check_clean):
    for name, folder in publish.studies_below(published).items():
        with sqlite3.connect(raw / name / "study.sqlite") as one, sqlite3.connect(folder / "study.sqlite") as two:
            for table in ("rows", "cells", "models", "calibrators"):
                query = f"SELECT * FROM {table}"
                assert one.execute(query).fetchall() == two.execute(query).fetchall(), (name, table)
            assert one.execute("SELECT count(*) FROM gallery").fetchone()[0] > 0
            assert two.execute("SELECT count(*) FROM gallery").fetchone()[0] == 0
            shown = two.execute("SELECT count(*) FROM shown").fetchone()[0]
            assert (shown > 0) == (name != "choice"), name  # a rehearsal
            sets = {shift for (shift,) in two.execute("SELECT DISTINCT shift FROM curves")}
            assert (sets == {"clean"}) == (name == "choice"), name
            query = "SELECT count(*) FROM curves WHERE name = 'conformal'"
            assert one.execute(query).fetchone()[0] > 0
            # a part of them would look like means over all seeds and shifts
            assert two.execute(query).fetchone()[0] == 0
        one.close()
        two.close()
        assert has_pictures(raw / name / "study.sqlite")
        check_clean(folder)
    assert set(publish.studies_below(published)) == {
        "paper",
        "code",
        "code-pretrained",
        "code-switches",
        "code-49500",
        "best",
        "ablation",
        "choice",
    }


def test_of_the_factorial_the_metrics_and_epochs_of_its_analysis_are_published(tmp_path, has_pictures):
    import json

    import factorial
    import reproduction_factorial

    from avuc.report.study.effort import effort_of
    from avuc.study.store.store import Store

    recipe = recipe_of(factorial.RECIPES / "factorial.toml", "study.severities=[5]", "study.seeds=[0]")
    fake_study(tmp_path / "raw", recipe)
    publish.small_copy(tmp_path / "raw", tmp_path / "small")
    assert not has_pictures(tmp_path / "small" / "study.sqlite")
    assert {metric for metric, _ in reproduction_factorial.PRIMARY} <= set(publish.METRICS)
    old, new = (Store(tmp_path / name, create=False) for name in ("raw", "small"))
    try:
        assert not new.lost
        kept = [row for row in old.rows() if row[4] in publish.METRICS]
        assert new.rows() == kept
        assert "wasserstein" in {row[4] for row in old.rows()}
        assert new.done() == old.done()
        assert not new.select("SELECT * FROM curves")
        assert effort_of(new).training_seconds == pytest.approx(effort_of(old).training_seconds, abs=1e-3)
        every = [json.loads(text) for (text,) in new.select("SELECT data FROM history")]
        assert {key for record in every for key in record} == set(publish.LOGGED)  # fewer than ten epochs
    finally:
        old.close()
        new.close()


def test_the_pages_say_how_much_of_the_factorial_is_finished(tmp_path):
    import factorial
    import reproduction_factorial

    from avuc.study.store.integrity import check
    from avuc.study.store.store import Store

    changes = ("study.severities=[5]", "study.shifts=['fog']", "study.ood=[]", "study.seeds=[0, 1]")
    fake_study(tmp_path / "factorial", recipe_of(factorial.RECIPES / "factorial.toml", *changes))
    found = make.read_studies(tmp_path)
    assert reproduction_factorial.progress(found) == "**72 of 72 networks are trained.**"
    assert reproduction_factorial.progress({}) == make.NOT_RUN
    store = Store(tmp_path / "factorial")
    for table in ("rows", "cells", "curves", "shown", "entropies"):  # one corner, and one seed of another
        store.db.execute(f"DELETE FROM {table} WHERE method NOT LIKE 'Adam, no%'")
        store.db.execute(f"DELETE FROM {table} WHERE method = 'Adam, noise, AvUC + TS' AND seed = 1")
    for table in ("models", "history"):
        store.db.execute(f"DELETE FROM {table} WHERE method NOT LIKE 'Adam, no%'")
    check(store.db)
    store.close()
    found = make.read_studies(tmp_path)
    text = "**16 of 72 networks are trained.** Complete with all losses and seeds: Adam, none."
    assert reproduction_factorial.progress(found) == text
    assert "**Not run yet:** 56 of 72 methods of `factorial`; " in make.status(found)
    store = Store(tmp_path / "factorial")
    for table in ("rows", "cells"):
        store.db.execute(f"DELETE FROM {table} WHERE method LIKE 'Adam, none, penalty%'")
    check(store.db)
    store.close()
    found = make.read_studies(tmp_path)
    assert reproduction_factorial.progress(found).endswith("No combination of training and posterior is complete yet.")


def test_reading_a_published_study_changes_no_byte(published):
    before = {path: path.read_bytes() for path in published.rglob("study.sqlite")}
    assert len(before) == 8
    make.read_studies(published)
    assert {path: path.read_bytes() for path in published.rglob("study.sqlite")} == before
    assert not list(published.rglob("study.sqlite-*"))


def test_tables_recipe_and_figures_lie_beside(published, raw, tmp_path):
    for folder in publish.studies_below(published).values():
        assert (folder / "recipe.toml").is_file()
        names = {path.name for path in (folder / "tables").iterdir()}
        assert {"quartiles.csv", "spearman.md", "detection-auroc.tex"} <= names
    publish.small_copy(raw / "ablation", tmp_path)
    publish.write_beside(tmp_path, "box-ece|gallery")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"box-ece.png"}


def test_nothing_to_publish_is_said(tmp_path):
    with pytest.raises(InputError, match="no study here"):
        publish.main(tmp_path, tmp_path / "to")


# the pages


def test_every_block_is_filled(studies, printed):
    blocks, remarks = make.all_blocks(studies, printed, {})
    empty = {name for name, text in blocks.items() if make.NOT_RUN in text}
    # the recipe may or may not have the first; the factorial, the baselines and past are not among these studies
    absent = {"auavuc", "decision-intervals", "errors-left", "factorial", "factorial-effects", "pilot"}
    absent |= {"second-network"}
    assert empty <= absent | {"baselines", "past", "past-choice"}, empty
    # a number of ours stands beside the paper's: both are on the line
    line = next(line for line in blocks["quartiles"].splitlines() if line.startswith("| SVI-AvUC |"))
    value = studies["paper"].get("SVI-AvUC", "ece", "5")
    assert "| 0.137 |" in line
    assert f"{value.value:.3f} ± {value.deviation:.3f}" in line
    assert ("quartiles", "Vanilla") in remarks.missing
    assert "not explained yet" in blocks["quartiles"]
    assert "0.71" in blocks["spearman"]
    assert "99.35" in blocks["detection"]
    assert "cifar100 (not in the paper)" in blocks["detection"]
    assert "1.202" in blocks["wasserstein"]
    assert "in 8 runs on NVIDIA H200 (torch 2.11.0)" in blocks["cost"]
    assert "1 of them ended from outside" in blocks["cost"]


def test_sentences_survive_and_silence_the_alarm(studies, printed):
    notes = {"remarks": {"all": {"Vanilla": "Trained here."}, "quartiles": {"SVI": "Another width."}}}
    blocks, remarks = make.all_blocks(studies, printed, notes)
    assert "- **Vanilla**: Trained here." in blocks["quartiles"]
    assert "- **SVI**: Another width." in blocks["quartiles"]
    assert "- **SVI**: Another width." not in blocks["detection"]
    assert not [key for key in remarks.missing if key[1] == "Vanilla"]
    assert ("quartiles", "SVI") not in remarks.missing


def test_without_rows_every_block_says_so(printed):
    blocks, remarks = make.all_blocks({}, printed, {})
    assert set(blocks.values()) == {make.NOT_RUN}
    assert remarks.missing == []


def test_ablation_names_what_differs(studies):
    text = more.ablation(studies, "base")
    assert "| KL weight: 0.1 |" in text
    assert "| initial σ: 0.127 |" in text
    assert "| β: 0.5 |" in text
    assert "| β: 0.5; calibrator: temperature |" in text
    assert "| gradient of the KL: False |" in text
    assert "| β: none (SVI) |" in text
    assert "| MOPED δ: 0.5 |" in text
    assert "| method: vanilla |" in text
    assert "| β: 0.5; batch normalisation: of each draw |" in text


def test_beta_rows_are_those_that_differ_in_beta_alone(studies):
    study, rows = more.beta_rows(studies, "base")
    assert study.name == "ablation"
    assert rows == [(0.0, "plain SVI"), (0.5, "little"), (3.0, "base")]


def test_rehearsals_have_a_table_of_their_own(studies, printed):
    text = choice.rehearsals(studies)
    assert text.startswith("*Held-out training images, clean and under snow, motion blur at intensity 5")
    value = studies["choice"].get("Vanilla", "nll", "5").value
    scaled = studies["choice"].get("Vanilla + TS", "nll", "5").value
    line = next(line for line in text.splitlines() if line.startswith("| Vanilla |"))
    assert f"| {value:.3f} |" in line
    assert f"| {scaled:.3f} |" in line
    assert next(line for line in text.splitlines() if line.startswith("| SVI |")).endswith("| – | – | – | – | – |")
    assert "Vanilla + TS" not in text
    # a temperature with statistics of its own is no other temperature: it has a table for itself
    first, second = (line.split(" | ") for line in text.splitlines() if line.startswith("| narrow |"))
    study = studies["choice"]
    scaled, own = (study.get(name, "nll", "5").value for name in ("narrow + TS", "narrow, own + TS"))
    assert first[-2] == f"{scaled:.3f}"
    assert [each.strip(" |") for each in second[-2:]] == [f"{scaled:.3f}", f"{own:.3f}"]
    blocks, _ = make.all_blocks(studies, printed, {})
    assert "held-out training images" in blocks["status"]
    with pytest.raises(InputError, match="expected a rehearsal"):
        choice.rehearsals({"choice2": studies["paper"]})


def test_what_is_missing_is_named(studies, printed):
    import dataclasses

    paper = studies["paper"]
    keep = [place for place, method in enumerate(paper.results.methods) if method.name != "Dropout"]
    methods = [paper.results.methods[place] for place in keep]
    values = {name: array[keep] for name, array in paper.results.values.items()}
    results = dataclasses.replace(paper.results, methods=methods, values=values)
    few = dataclasses.replace(paper, results=dataclasses.replace(results, missing=2 * (2 + 20 + 3)))
    assert few.not_run == ["Dropout"]
    text = make.status({"paper": few})
    assert '**Not run yet:** "Dropout" of `cifar10-paper`; `cifar10-code`; `cifar10-code-pretrained`; ' in text
    assert "Unfinished" not in text
    more_gone = dataclasses.replace(few, results=dataclasses.replace(few.results, missing=2 * (2 + 20 + 3) + 7))
    assert "**Unfinished:** cifar10-paper (7 results)." in make.status({"paper": more_gone})
    line = next(line for line in tables.means(few, printed).splitlines() if line.startswith("| Dropout |"))
    assert line.startswith("| Dropout | not run yet | – | – | 0.24")
    assert "Not run yet" not in make.status(dict.fromkeys(make.STUDIES, paper))


def test_targets_are_judged_and_compared(studies):
    chosen = best.best_row(studies, "")
    found = {target.title: target for target in best.targets(studies, chosen)}
    assert [found[name].bound for name in list(found)[:4]] == [0.100, 0.080, 1.55, 0.62]
    ensemble = studies["paper"].get("Ensemble", "accuracy", "5").value
    assert found["accuracy, intensity 5"].bound == pytest.approx(ensemble - 0.01)
    assert {"ECE, clean", "ρ of ECE", "AUROC, SVHN", "AUROC, CIFAR-100"} <= set(found)
    assert not found["ECE, intensity 5"].met(0.101)
    assert found["ECE, intensity 5"].met(0.1)
    assert found["AUROC, SVHN"].met(1.0)
    assert not found["AUROC, SVHN"].met(found["AUROC, SVHN"].bound)
    # made 0.15 better: the interval over shifts says so
    told = best.difference(studies["best"], chosen, studies["paper"], "SVI-AvUC", found["ECE, intensity 5"])
    assert told.high < 0
    assert told.low < told.value < told.high
    assert told.says("lower") == "better"
    table = best.against_targets(studies, "")
    assert sum(line.count("| better |") for line in table.splitlines()) >= 4
    assert "| yes |" in table


def test_other_rows_follow_the_one_that_was_named(studies):
    names = studies["best"].results.names
    text = best.against_targets(studies, names[0], [names[-1], "no such row"])
    assert text.count("| ECE, clean |") == 2
    assert text.index(f"ours: {names[0]}") < text.index(f"Afterwards, `{names[-1]}`") < text.index(f"ours: {names[-1]}")
    lines = best.rows_of_best(studies).splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == list(names)
    value = studies["best"].get(names[1], "auroc", "svhn").value
    assert f"| {100 * value:.1f} ± " in lines[3]


def test_single_models_of_every_study_of_test_images_count(studies):
    import dataclasses

    code = studies["code"]
    place = code.results.names.index("SVI-AvUC")
    values = {name: array.copy() for name, array in code.results.values.items()}
    values["auroc"][place] = 0.999
    ahead = dataclasses.replace(code, results=dataclasses.replace(code.results, values=values))
    found = {target.title: target for target in best.targets({**studies, "code": ahead}, "MOPED-AvUC + TS")}
    assert (found["AUROC, SVHN"].bound, found["AUROC, SVHN"].about) == (pytest.approx(0.999), "SVI-AvUC of code")


def made_up(**values: tuple[float, ...]) -> SimpleNamespace:
    """A study in which every metric of a method has the same values, of the seeds 0, 1, …"""
    names = [name.replace("_", "-") for name in values]
    methods = [SimpleNamespace(seeds=tuple(range(len(each)))) for each in values.values()]
    by_name = dict(zip(names, values.values(), strict=True))
    return SimpleNamespace(
        results=SimpleNamespace(names=names, methods=methods),
        get=lambda method, metric, where: Figure(by_name[method], tuple(range(len(by_name[method])))),
    )


def test_pairs_with_and_without_avuc_are_paired_by_seed():
    """Of ten seeds and five, the five that both have count: the others would turn the sign of this difference."""
    from scipy.stats import ttest_rel

    with_avuc, without = (0.30, 0.21, 0.27, 0.33, 0.24), (0.32, 0.22, 0.30, 0.34, 0.26)
    study = made_up(SVI_AUAvUC=with_avuc, SVI=(*without, *[0.1] * 5))
    pair = next(pair for pair in worth.PAIRS if (pair.study, pair.method) == ("code", "SVI-AUAvUC"))
    assert worth.measured({"code": study}) == [(pair, 5)]
    interval = ttest_rel(with_avuc, without).confidence_interval(0.95)
    assert interval.high < 0
    told = "**{:+.3f} ({:+.3f} … {:+.3f})**".format(-0.018, *interval).replace("-", "−")
    text = worth.worth({"code": study})
    assert f"| AUAvUC | 5 | **−1.8 (−2.8 … −0.8)** | {told} | {told} | **−0.02 (" in text
    assert "Fewer than" not in text


def test_pairs_with_few_seeds_stand_apart_and_are_never_bold(studies):
    clear = made_up(SVI_AvUC=(0.1, 0.1, 0.1, 0.2), SVI=(0.5, 0.5, 0.5, 0.6))
    one = made_up(SVI_AvUC=(0.1,), SVI=(0.5, 0.9))
    text = worth.worth({"code": clear, "code-pretrained": one})
    assert "At least" not in text
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[4:]]
    ece = 3 + worth.FIGURES.index("ece")
    assert [(row[2], row[ece]) for row in lines] == [("4", "−0.400 (−0.400 … −0.400)"), ("1", "−0.400")]
    assert worth.worth({}) == worth.worth({"code": made_up(SVI=(0.5,))}) == make.NOT_RUN
    # every pair names methods of its recipe; the made-up studies have no factorial, and their ablation no pair
    shown = {pair for pair, _ in worth.measured(studies)}
    assert shown == {pair for pair in worth.PAIRS if pair.study in studies and pair.study != "ablation"}


def test_every_pair_differs_in_avuc_alone(published_studies):
    from avuc.study.recipe.load import load_recipe

    found = {name: study.recipe for name, study in published_studies.items()}
    for pair in worth.PAIRS:
        # of a study that is not published yet, the recipe that will run
        recipe = found.get(pair.study) or load_recipe(HOME / "reproduction" / "recipes" / f"{pair.study}.toml")
        rows = [recipe.method(name) for name in (pair.method, pair.other)]
        assert rows[0].calibrator == rows[1].calibrator
        first, second = (recipe.method(row.reuse_model) if row.reuse_model else row for row in rows)
        assert (first.method, first.init_from) == (second.method, second.init_from), pair
        assert first.train == second.train
        loss, other = first.objective, second.objective
        assert (loss.kl_weight, loss.kl_gradient) == (other.kl_weight, other.kl_gradient)
        assert loss.kind in ("avuc", "auavuc")
        assert loss.beta > 0
        assert other.kind == "plain" or other.beta == 0


def test_paired_seeds_are_students_interval(studies):
    """Beside an interval computed here, of the rows of the made-up study."""
    from scipy import stats

    study = studies["code"]
    first, second = (np.array(study.get(row, "ece", "5").by_seed) for row in ("SVI-AvUC", "SVI"))
    gap = first - second
    half = stats.sem(gap) * stats.t.ppf(0.975, len(gap) - 1)
    found = seeds.paired(study, "ece", "5")
    assert found == pytest.approx((gap.mean(), gap.mean() - half, gap.mean() + half))


def test_too_few_seeds_are_not_compared(studies):
    few = {"code": studies["code-pretrained"]}
    assert few["code"].get("SVI", "ece", "5").seeds < seeds.FEWEST_SEEDS
    assert len(seeds.paired_seeds(few).splitlines()) == 2  # the head alone


def test_rows_from_one_start_are_paired_by_seed(studies):
    target = best.Target("ECE", "ece", "gaussian_blur 3", 0.1)
    one, other = "MOPED-AvUC + TS", "MOPED-SVI + TS"
    found = best.difference(studies["best"], one, studies["best"], other, target)
    values = [studies["best"].get(row, "ece", "gaussian_blur 3").by_seed for row in (one, other)]
    from avuc.report.study.paired import over_seeds

    assert found == over_seeds(*values, same_seeds=True) != over_seeds(*values)
    # rows of two starts are not
    pair = "SGD, crops only", "MOPED-SVI"
    assert best._start(studies["best"], pair[0]) != best._start(studies["best"], pair[1])


def test_a_target_that_cannot_be_computed_is_shown_as_open(studies):
    import dataclasses

    paper = studies["paper"]
    methods = [method for method in paper.results.methods if method.name != "Ensemble"]
    keep = [place for place, method in enumerate(paper.results.methods) if method.name != "Ensemble"]
    values = {name: array[keep] for name, array in paper.results.values.items()}
    without = dataclasses.replace(paper, results=dataclasses.replace(paper.results, methods=methods, values=values))
    table = best.against_targets({**studies, "paper": without}, "")
    line = next(line for line in table.splitlines() if line.startswith("| accuracy, intensity 5"))
    assert "| ≥ – (our Ensemble less one point) |" in line
    assert line.split(" | ")[3] == "–"


def test_one_seed_has_intervals_over_images_and_says_so(studies, tmp_path):
    recipe = recipe_of("cifar10-best", "study.seeds=[0]")
    fake_study(tmp_path / "raw" / "best", recipe, gain=0.15)
    publish.main(tmp_path / "raw", tmp_path / "out", figures=False)
    few = {**studies, **make.read_studies(tmp_path / "out")}
    lines = {line.split(" |")[0]: line for line in best.against_targets(few, "").splitlines()}
    assert " †" in lines["| ECE, clean"]
    assert " …" in lines["| ECE, clean"]
    assert " †" in lines["| AUROC, SVHN"]
    assert " †" not in lines["| ECE, intensity 5"]
    # stored counts tell of no other metric
    nll = best.Target("NLL, clean", "nll", "clean", 1.0)
    one, two = few["best"].results.names[0], few["paper"].results.names[0]
    assert str(best.difference(few["best"], one, few["paper"], two, nll).low) == "nan"
    assert " †" not in best.against_targets(studies, "")


def test_the_row_that_is_judged_is_named_not_picked(studies):
    names = studies["best"].results.names
    assert best.best_row(studies, names[-1]) == names[-1]
    assert best.best_row(studies, "") == names[0]
    assert best.best_row({}, "x") is None


def test_training_time_counts_networks_side_by_side_once(studies):
    effort = studies["paper"].effort
    assert effort.training_seconds == pytest.approx(sum(2.0 + epoch / 7 for epoch in range(4)))
    assert effort.trained_images == pytest.approx(4 * 45000 * effort.models, rel=1e-3)
    assert effort.seconds == 100.0
    assert studies["code"].effort.seconds > 0
    rows = {row.reuse_model or row.name for row in studies["paper"].recipe.methods}
    sets = 1 + 1 + len(SHIFTS) * 5 + 3
    single = {row.name for row in studies["paper"].recipe.methods if row.name in rows}
    seeds = sum(len(studies["paper"].recipe.seeds(studies["paper"].recipe.row(name))) for name in single)
    assert effort.judged_images == seeds * sets * 1000 * 128


def test_figures_inside_sentences(studies, printed):
    find = make.one_number(studies, printed)
    text = "ECE <!-- figure: paper | SVI | ece | 5 -->?<!-- end -->, "
    text += "not <!-- figure: printed | SVI | ece | 5 -->?<!-- end -->"
    filled = make.fill(text, {}, find)
    value = studies["paper"].get("SVI", "ece", "5").value
    assert f"-->{value:.3f}<!-- end -->" in filled
    assert "-->0.239<!-- end -->" in filled
    assert make.fill(filled, {}, find) == filled
    assert find(["printed", "SVI-AvUC", "auroc", "svhn"]) == "99.35 %"
    assert find(["paper", "SVI", "nll", "learned"]) == "0.25"
    assert find(["paper", "SVI", "validation_accuracy", "learned"]) == "80.0 %"
    assert find(["paper", "SVI-TS", "temperature", "learned"]) == "1.50"
    assert find(["printed", "SVI-AvUC", "ece", "", "spearman"]) == "0.710"
    for wrong in (["paper", "SVI", "ece"], ["nowhere", "SVI", "ece", "5"], ["paper", "Nobody", "ece", "5"]):
        with pytest.raises(InputError, match="figure: "):
            find(wrong)


def test_drawings(studies):
    found = more.drawings(studies, "base")
    assert set(found) == {f"reproduction-{name}.svg" for name in ("training", "validation", "fit", "beta")}
    assert all(content.startswith(b"<?xml") for content in found.values())


def test_main_fills_the_pages_and_check_sees_a_change(published, tmp_path, monkeypatch):
    docs = tmp_path / "docs"
    (docs / "figures").mkdir(parents=True)
    (docs / "reproduction").mkdir()
    shutil.copy(HOME / "reproduction" / "pages" / "reproduction.toml", docs)
    names = ("reproduction/index.md", "reproduction/tables.md")
    for name in names:
        page = (HOME / "docs" / name).read_text(encoding="utf-8")
        # the made-up ablation has other rows, and some studies are not made up
        absent = "ablation|factorial|factorial-tenth|factorial-noisy-labels|baselines|past"
        page = re.sub(rf"<!-- figure: ({absent}) \\?\|.*?<!-- end -->", "a number", page)
        (docs / name).write_text(page, encoding="utf-8")
    readme = tmp_path / "README.md"
    readme.write_text("# x\n<!-- generated: cifar10 -->\n<!-- end: cifar10 -->\nby hand\n", encoding="utf-8")
    pages = {docs / name: f"docs/{name}" for name in names} | {readme: "README.md"}
    monkeypatch.setattr(make, "DOCS", docs)
    monkeypatch.setattr(make, "PAGES", pages)
    arguments = ["--results", str(published)]
    assert make.main(arguments) == 0
    assert make.main([*arguments, "--check"]) == 0
    text = readme.read_text(encoding="utf-8")
    assert "| SVI-AvUC, as the released code trains it |" in text
    assert "by hand" in text
    assert "`cifar10-best`" in text
    absent = ("beta-ablation", "factorial", "factorial-tenth", "factorial-noisy-labels", "factorial-resnet56")
    absent += ("baselines", "past-choice", "past")
    assert f"**Not run yet:** {'; '.join(f'`{name}`' for name in absent)}." in text
    readme.write_text(re.sub(r"0\.\d\d\d ±", "0.001 ±", text, count=1), encoding="utf-8")
    assert make.main([*arguments, "--check"]) == 1


def test_a_missing_number_leaves_every_page_as_it_was(published, tmp_path, monkeypatch):
    texts = {
        "first.md": "<!-- generated: cifar10 -->\n<!-- end: cifar10 -->\n",
        "second.md": "x <!-- figure: paper | SVI | accuracy | hail 5 -->?<!-- end -->\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(make, "PAGES", {tmp_path / name: name for name in texts})
    with pytest.raises(InputError, match="hail 5: no such number"):
        make.main(["--results", str(published)])
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in texts} == texts


def test_a_published_study_renders(published, tmp_path):
    command = [
        sys.executable,
        "-m",
        "avuc",
        "report",
        str(published),
        "--out",
        str(tmp_path / "r.html"),
        "--no-exports",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "SVI-AvUC" in page
    assert "iVBORw0KGgo" not in page


def test_differences_pair_seeds_by_their_number():
    """Seeds are matched by number, not by position, and few seeds are never shown as a claim."""
    from reproduction_seeds import difference_text

    first = {4: 1.4, 0: 1.0, 2: 1.2, 9: 50.0}
    second = {0: 0.9, 1: 77.0, 2: 1.0, 4: 1.1}
    assert difference_text(first, second, "nll").startswith("+0.20 (")
    assert "**" not in difference_text({0: 1.0, 1: 1.1, 2: 1.2}, {0: 0.0, 1: 0.1, 2: 0.21}, "nll")
    many = {seed: 1.0 + seed for seed in range(5)}
    assert difference_text(many, {seed: seed + 0.001 * (seed % 2) for seed in range(5)}, "nll").startswith("**+1.00 (")
    assert difference_text({0: 1.0}, {0: 2.0}, "nll") == "–"


# the factorial experiment


def factorial_recipe():
    import factorial

    from avuc.study.recipe.load import parse_recipe

    matched = {(training, posterior): 0.2 for training in factorial.TRAININGS for posterior in factorial.POSTERIORS}
    return parse_recipe(factorial.experiment(matched))


def test_the_pilot_is_what_its_script_writes_and_reads_no_test_data():
    import factorial

    from avuc.study.recipe.load import load_recipe

    path = HOME / "reproduction" / "recipes" / "factorial-pilot.toml"
    assert path.read_text(encoding="utf-8") == factorial.pilot()
    recipe = load_recipe(path)
    assert recipe.data.evaluate_on_validation
    assert recipe.study.seeds == (100,)  # not a seed of the experiment
    assert len([method for method in recipe.methods if method.method is not None]) == 3 * (1 + 3 * 6)


def test_the_experiment_uses_the_penalties_that_the_pilot_chose():
    import factorial

    assert factorial.nearest_penalties(factorial.read_pilot().__getitem__) == factorial.MATCHED
    path = HOME / "reproduction" / "recipes" / "factorial.toml"
    assert path.read_text(encoding="utf-8") == factorial.experiment(factorial.MATCHED)


def test_methods_of_the_factorial_differ_in_their_factors_only():
    import factorial

    recipe = factorial_recipe()
    assert len(recipe.methods) == 2 * 36
    assert recipe.study.seeds == (0, 1, 2, 3, 4)
    for training in factorial.TRAININGS:
        for posterior in factorial.POSTERIORS:
            base = recipe.method(factorial.name_of(training, posterior, "none"))
            for loss in factorial.LOSSES:
                method = recipe.method(factorial.name_of(training, posterior, loss))
                assert (method.method, method.train, method.init_from) == (base.method, base.train, base.init_from)
                objective = method.objective
                assert (objective.kl_gradient, objective.kl_weight) == (
                    base.objective.kl_gradient,
                    base.objective.kl_weight,
                )
                kind, variant = {"AvUC": ("avuc", "paper"), "monotone": ("avuc", "monotone")}.get(
                    loss, ("confidence_penalty" if loss == "penalty" else "plain", "paper")
                )
                assert (objective.kind, objective.variant) == (kind, variant)
                if kind == "avuc":
                    assert objective.beta == 3.0
                tempered = recipe.method(f"{method.name} + TS")
                assert tempered.reuse_model == method.name
    trainings = [recipe.method(factorial.name_of(name, "noise", "none")).train for name in factorial.TRAININGS]
    assert [(train.optimizer, train.weight_decay, train.augmentation) for train in trainings] == [
        ("adam", 0.0, "crop"),
        ("sgd", 5e-4, "crop"),
        ("sgd", 5e-4, "augmix"),
    ]


def test_the_penalty_is_matched_by_confidence():
    import factorial

    def confidence(name: str) -> float:
        if name.endswith("AvUC"):
            return 0.83
        return 0.95 - 0.3 * float(name.split()[-1])  # β = 0.4 gives 0.83

    assert set(factorial.nearest_penalties(confidence).values()) == {0.4}
    with pytest.raises(SystemExit, match="is not complete"):
        factorial.nearest_penalties(lambda name: float("nan"))


def test_the_analysis_pairs_losses_within_a_training_and_posterior(tmp_path):
    from dataclasses import replace

    import factorial

    recipe = factorial_recipe()
    recipe = replace(recipe, study=replace(recipe.study, shifts=SHIFTS))
    fake_study(tmp_path / "factorial", recipe)
    text = factorial.analyse(tmp_path / "factorial")
    assert text.count("### ") == 6
    lines = [line for line in text.split("### ece, 5")[1].split("### ")[0].splitlines() if line.startswith("| A")]
    # in the made-up study ECE rises by .002 from method to method, and every method is followed by its calibrated one
    for line in lines:
        cells = [cell.strip(" *") for cell in line.split("|")[2:-1]]
        assert [cell.split()[0] for cell in cells[:3]] != ["–"] * 3
        values = [float(cell.split()[0].replace("−", "-")) for cell in cells]
        assert values == pytest.approx([0.004, 0.008, 0.012, -0.008, -0.004], abs=0.004)
    assert len(lines) == 6  # Adam and AugMix, three posteriors each
