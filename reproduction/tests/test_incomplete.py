"""Studies that are missing, unfinished or at one intensity only: what the pages show of them, beside plain loops."""

from __future__ import annotations

import csv
import re
import sqlite3
import statistics
from contextlib import closing
from pathlib import Path

import make_reproduction as make
import numpy as np
import publish
import pytest
import reproduction_findings as findings
import reproduction_second as second
import reproduction_seeds as seeds
import reproduction_status as status

from avuc.core.errors import InputError
from avuc.report.study.paper_comparison import figure
from avuc.study.store.store import Store

RECIPES = Path(__file__).parents[1] / "recipes"
Rows = dict[tuple[str, int, str, int, str], float]


def rows_of(folder: Path) -> Rows:
    with closing(sqlite3.connect(folder / "study.sqlite")) as db:
        return {
            tuple(row[:5]): row[5] for row in db.execute("SELECT method,seed,shift,severity,metric,value FROM rows")
        }


def value(rows: Rows, method: str, seed: int, metric: str, where: str) -> float:
    """A figure of one seed, by a plain loop."""
    if where.isdigit():
        return statistics.mean(rows[method, seed, shift, int(where), metric] for shift in ("fog", "contrast"))
    return rows[method, seed, {"clean": "clean"}.get(where, f"ood:{where}"), 0, metric]


def signed(number: float, metric: str) -> str:
    scale, digits = {"accuracy": (100, 1), "auroc": (100, 1), "nll": (1, 2)}.get(metric, (1, 3))
    return f"{scale * number:+.{digits}f}".replace("-", "−")


def cells_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


# the second network


CORNERS = ("Adam, noise", "SGD, none")


@pytest.fixture
def networks(tmp_path, make_up):
    kept = tuple(f"{corner}, {loss}" for corner in CORNERS for loss in ("none", "AvUC"))
    for name in ("factorial", "factorial-resnet56"):
        make_up(tmp_path / name, RECIPES / f"{name}.toml", keep=lambda method: method.removesuffix(" + TS") in kept)
    return tmp_path


def test_the_second_network_stands_below_the_first(networks):
    table = cells_of(second.second_network(make.read_studies(networks)))
    rows = {name: rows_of(networks / name) for name in ("factorial", "factorial-resnet56")}
    assert [row[:4] for row in table[2:]] == [
        [corner, temperature, network, count]
        for corner in CORNERS
        for temperature in ("yes", "no")
        for network, count in (("ResNet-20", "5"), ("ResNet-56", "3"))
    ]
    directions = set()
    for place, line in enumerate(table[2:]):
        end = " + TS" if line[1] == "yes" else ""
        names = [f"{line[0]}, {loss}{end}" for loss in ("AvUC", "none")]
        for cell, (metric, where) in zip(line[4:], second.FIGURES, strict=True):
            gaps = {}
            for study, count in (("factorial", 5), ("factorial-resnet56", 3)):
                both = [[value(rows[study], name, seed, metric, where) for name in names] for seed in range(count)]
                gaps[study] = [one - other for one, other in both]
            expected, own = statistics.mean(gaps["factorial"]), gaps["factorial-resnet56"]
            if place % 2 == 0:
                assert cell.strip("*").startswith(f"{signed(expected, metric)} (")
                continue
            same = sum((gap > 0) == (expected > 0) for gap in own)
            directions.add(same)
            mean, low, high = (signed(one, metric) for one in (statistics.mean(own), min(own), max(own)))
            assert cell == f"{mean} ({low} … {high}); same direction in {same} of 3 seeds"  # never bold
    assert len(directions) > 1


def test_a_second_network_that_is_missing_or_unfinished_says_so(networks, remove):
    studies = make.read_studies(networks)
    assert second.second_network({}) == make.NOT_RUN
    assert second.second_network({"factorial": studies["factorial"]}) == make.NOT_RUN
    assert second.second_network({"factorial-resnet56": studies["factorial-resnet56"]}) == make.NOT_RUN
    before = cells_of(second.second_network(studies))
    # one shift of one seed of one method is missing: the comparison is not measured, the others stay
    remove(networks / "factorial-resnet56", "method='SGD, none, AvUC + TS' AND seed=2 AND shift='fog' AND severity=5")
    after = cells_of(second.second_network(make.read_studies(networks)))
    changed = [place for place, lines in enumerate(zip(before, after, strict=True)) if lines[0] != lines[1]]
    assert [after[place][:4] for place in changed] == [["SGD, none", "yes", "ResNet-56", "–"]]
    assert set(after[changed[0]][4:]) == {"not measured"}
    remove(networks / "factorial-resnet56", "method LIKE 'Adam%'")
    after = cells_of(second.second_network(make.read_studies(networks)))
    assert [set(line[4:]) for line in after if line[:3:2] == ["Adam, noise", "ResNet-56"]] == [{"not measured"}] * 2


def test_studies_with_other_shifts_are_not_compared(networks, tmp_path, make_up):
    make_up(tmp_path / "more" / "factorial-resnet56", RECIPES / "factorial-resnet56.toml", 'study.shifts=["fog"]')
    studies = make.read_studies(networks) | make.read_studies(tmp_path / "more")
    with pytest.raises(InputError, match=r"factorial-resnet56: other shifts than factorial \(contrast\)"):
        second.second_network(studies)


# details of the code: a study at intensity 5 beside one at all of them


@pytest.fixture
def code(tmp_path, make_up):
    make_up(tmp_path / "code", "cifar10-code", "study.seeds=[0,1,2,3]")
    switched = RECIPES / "code-switches.toml"
    make_up(tmp_path / "code-switches", switched, keep=lambda name: "start" not in name and name != "Vanilla")
    return tmp_path


def test_switches_are_differences_to_the_same_seeds(code, make_up):
    table = cells_of(seeds.switches(make.read_studies(code)))
    assert [name for name in table[0] if "start" in name or "49,500" in name] == []
    make_up(code / "code-switches", RECIPES / "code-switches.toml", "study.severities=[5]")
    make_up(code / "code-49500", RECIPES / "code-49500.toml", "study.severities=[5]")
    studies = make.read_studies(code)
    more = cells_of(seeds.switches(studies))
    assert table == [[cell for cell, name in zip(line, more[0], strict=True) if name in table[0]] for line in more]
    added = [name for name in more[0] if name not in table[0]]
    assert added == [f"{base}, {end}" for end in ("trained start", "49,500 images") for base in ("SVI", "SVI-AvUC")]
    rows = {name: rows_of(code / name) for name in studies}
    for line, (metric, where) in zip(more[2:], seeds.VARIANTS_COMPARED, strict=True):
        for name in added:
            base, _, end = name.partition(", ")
            study, method = ("code-49500", base) if end == "49,500 images" else ("code-switches", name)
            gaps = [
                value(rows[study], method, seed, metric, where) - value(rows["code"], base, seed, metric, where)
                for seed in range(3)
            ]
            cell = line[more[0].index(name)]
            assert cell.startswith(f"{signed(statistics.mean(gaps), metric)} ("), (name, metric, where)
    # all intensities: the same columns, because every line is about one set or one intensity
    make_up(code / "code-49500", RECIPES / "code-49500.toml")
    assert cells_of(seeds.switches(make.read_studies(code))) == more


def test_the_status_names_methods_with_fewer_intensities(code, make_up, remove):
    assert "Not at every intensity" not in status.status(make.read_studies(code))
    make_up(code / "code-switches", RECIPES / "code-switches.toml", "study.severities=[5]")
    text = status.status(make.read_studies(code))
    names = '"Vanilla", "SVI, trained start", "SVI-AvUC, trained start"'
    assert f"**Not at every intensity:** {names} of `code-switches` (5 only)." in text
    remove(code / "code-switches", "method='SVI, best epoch' AND seed=1 AND shift='fog' AND severity=2")
    assert '"SVI, best epoch" of `code-switches` (1, 3, 4, 5 only)' in status.status(make.read_studies(code))
    # the copy that is published has the intensities of all runs, so that what is missing is counted
    publish.small_copy(code / "code-switches", code / "small")
    store = Store(code / "small", create=False)
    try:
        assert not store.lost
        assert store.recipe().study.severities == (1, 2, 3, 4, 5)
    finally:
        store.close()
    study = make.read_study("code-switches", code / "small")
    assert f"**Unfinished:** code-switches ({3 * 3 * 4 * 2 + 1} results)" in status.status({"code-switches": study})


def test_a_study_without_results_is_not_published(code, capsys, remove):
    remove(code / "code-switches", "shift != 'validation'")
    publish.main(code, code / "published", figures=False)
    assert set(publish.studies_below(code / "published")) == {"code"}
    assert "code-switches/study.sqlite: no results on test images yet; not published" in capsys.readouterr().out


def test_what_one_method_lacks_changes_no_figure_of_another(code, remove):
    before = make.read_studies(code)["code"]
    figures = [("ece", "5", "mean"), ("nll", "3", "median"), ("ece", "", "spearman"), ("nll", "shifted", "mean")]
    first = {key: before.get("SVI", *key) for key in figures}
    remove(code / "code", "method='SVI-AvUC' AND seed=0 AND severity<5")
    remove(code / "code", "method='SVI-TS' AND seed=3 AND shift='fog' AND severity=5")
    study = make.read_studies(code)["code"]
    assert figure(study.results, "SVI", "ece", "5").by_seed != first["ece", "5", "mean"].by_seed  # sets of all methods
    assert {key: study.get("SVI", *key) for key in figures} == first
    rows = rows_of(code / "code")
    for level in (3, 5):
        wanted = [value(rows, "SVI", seed, "ece", str(level)) for seed in range(4)]
        assert study.get("SVI", "ece", str(level)).by_seed == pytest.approx(wanted)
    # a seed that lacks one shift has no figure, and one that lacks intensities no mean over them and no ρ
    assert study.get("SVI-TS", "ece", "5").seed_numbers == (0, 1, 2)
    assert study.get("SVI-TS", "ece", "3").seed_numbers == (0, 1, 2, 3)
    assert study.get("SVI-AvUC", "ece", "5").seed_numbers == (0, 1, 2, 3)
    assert study.get("SVI-AvUC", "ece", "3").seed_numbers == (1, 2, 3)
    assert study.get("SVI-AvUC", "ece", "", "spearman").seed_numbers == (1, 2, 3)
    assert study.get("SVI-AvUC", "nll", "shifted").seed_numbers == (1, 2, 3)
    # one set of images needs nothing else
    assert study.get("SVI-TS", "ece", "contrast 5").seed_numbers == (0, 1, 2, 3)
    assert study.get("SVI-TS", "ece", "fog 5").seed_numbers == (0, 1, 2)
    assert study.get("SVI-TS", "ece", "clean").seeds == study.get("SVI-TS", "auroc", "svhn").seeds == 4
    assert study.get("nothing", "ece", "5").seeds == study.get("SVI", "nothing", "5").seeds == 0


# readings of SVHN by the models of two studies


def test_readings_of_both_methods_stand_side_by_side(tmp_path, printed, make_up):
    files = [tmp_path / "code" / "svhn.csv", tmp_path / "code-49500" / "svhn.csv"]
    rng = np.random.default_rng(0)
    for path, method in zip(files, ("SVI", "SVI-AvUC"), strict=True):
        path.parent.mkdir()
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["method", "seed", "reading", "auroc"])
            for seed in range(3):
                for reading in ("entropy", "mutual information", "both in [-1, 1]"):
                    table.writerow([method, seed, reading, f"{rng.random():.5f}"])
    lines = [line for path in files for line in csv.DictReader(path.read_text().splitlines())]
    table = cells_of(seeds.svhn_readings(files))
    assert table[0] == ["reading", "SVI, 3 seeds", "SVI-AvUC, 49,500 images, 3 seeds"]
    for reading, *cells in table[2:]:
        for method, cell in zip(("SVI", "SVI-AvUC"), cells, strict=True):
            values = [float(x["auroc"]) for x in lines if (x["method"], x["reading"]) == (method, reading)]
            assert cell == f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"
    assert cells_of(seeds.svhn_readings([files[0], tmp_path / "none.csv"])) == [line[:2] for line in table]
    assert seeds.svhn_readings([tmp_path / "none.csv", files[1]]) == make.NOT_RUN
    make_up(tmp_path / "code", "cifar10-code")
    study = make.read_study("code", tmp_path / "code")
    points = [point for point in findings.svhn_points(study, printed, files) if point.row in findings.READINGS]
    wanted = {
        f"{x['method']}{', 49,500 images' * (x['method'] == 'SVI-AvUC')} seed {x['seed']}, {x['reading']}": x["auroc"]
        for x in lines
        if x["reading"] != "entropy"  # the one of the study
    }
    assert {point.kind: f"{point.value / 100:.5f}" for point in points} == wanted
    drawn = findings.finding_drawings({"code": study}, printed, files)["finding-5-svhn.svg"].decode()
    assert re.findall(r"ours, one [\w-]+ model", drawn) == ["ours, one SVI model", "ours, one SVI-AvUC model"]
    alone = findings.finding_drawings({"code": study}, printed, files[:1])["finding-5-svhn.svg"].decode()
    assert "ours, one model" in alone
