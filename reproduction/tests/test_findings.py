"""The pictures of docs/reproduction/index.md: their numbers are those of the rows, and the page's words are true."""

from __future__ import annotations

import csv
import re
import shutil
import sqlite3
import statistics
import tomllib
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import make_reproduction as make
import pytest
import reproduction_findings as findings
from scipy.stats import ttest_rel

from avuc.core.errors import InputError
from avuc.report.markers import FIGURE_BEGIN
from avuc.report.metric_text import words_of

HOME = Path(__file__).parents[2]
PUBLISHED = HOME / "reproduction" / "results" / "cifar10"
PAGE = HOME / "docs" / "reproduction" / "index.md"
NUMBER = r"-?\d+\.\d{5}"


@pytest.fixture(scope="module")
def committed(published_studies):
    return {name: published_studies[name] for name in ("code", "code-switches")}


@pytest.fixture(scope="module")
def shown(home) -> dict[str, dict[str, list[float]]]:
    """What the committed files say at their ends: picture → label → numbers."""
    found = {}
    for path in sorted((home / "docs" / "figures").glob("finding-*.svg")):
        comment = path.read_text(encoding="utf-8").rpartition("<!-- ")[2].removesuffix(" -->\n")
        lines = [line.rpartition(": ") for line in comment.splitlines()]
        found[path.name] = {label: [float(value) for value in values.split()] for label, _, values in lines}
    return found


def rows(method: str, metric: str, where: str) -> dict[int, float]:
    """A figure of `cifar10-code` for each seed, by a plain loop over the rows."""
    total: dict[int, list[float]] = {}
    with closing(sqlite3.connect(f"file:{PUBLISHED / 'code' / 'study.sqlite'}?mode=ro", uri=True)) as db:
        query = "SELECT seed, shift, severity, value FROM rows WHERE method=? AND metric=?"
        for seed, shift, severity, value in db.execute(query, (method, metric)):
            shifted = severity == 5 and not shift.startswith("ood:")
            if {"5": shifted, "clean": shift == "clean", "svhn": shift.startswith("ood:svhn")}[where]:
                total.setdefault(seed, []).append(value)
    assert {len(values) for values in total.values()} == {16 if where == "5" else 1}
    return {seed: sum(values) / len(values) for seed, values in sorted(total.items())}


def printed_by_hand(method: str, metric: str, table: str) -> float:
    with (HOME / "reproduction" / "results" / "paper" / "tables.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["table"], row["dataset"], row["method"], row["metric"]) != (table, "cifar10", method, metric):
                continue
            if (table == "quartiles" and row["statistic"] == "mean") or (
                table == "detection" and row["shift"] == "svhn"
            ):
                return float(row["printed"])
    raise AssertionError((method, metric))


def test_ours_beside_the_printed_figures(shown):
    values = shown["finding-1-printed.svg"]
    assert len(values) == 4 * 2 * 2
    for metric in ("ece", "nll", "brier", "uce"):
        for method in ("SVI", "SVI-AvUC"):
            name = f"{words_of(metric).title.removesuffix(' score')}, {method}"
            assert values[f"{name}, printed"] == [pytest.approx(printed_by_hand(method, metric, "quartiles"))]
            seeds = list(rows(method, metric, "5").values())
            mean, wide = statistics.mean(seeds), statistics.stdev(seeds)
            assert values[f"{name}, ours"] == pytest.approx([mean, mean - wide, mean + wide], abs=1e-5)
            inside = mean - wide <= printed_by_hand(method, metric, "quartiles") <= mean + wide
            if method == "SVI-AvUC":
                assert inside  # "All four are within one standard deviation"
            else:
                assert printed_by_hand(method, metric, "quartiles") > mean  # "The printed SVI row is worse"


def test_ten_paired_seeds(shown):
    values = shown["finding-2-seeds.svg"]
    assert len(values) == 2 * 10 * 2
    lower = {}
    for metric in ("ece", "nll"):
        both = {method: rows(method, metric, "5") for method in ("SVI", "SVI-AvUC")}
        for method, by_seed in both.items():
            for seed, value in by_seed.items():
                assert values[f"{metric.upper()}, seed {seed}, {method}"] == [pytest.approx(value, abs=1e-5)]
        lower[metric] = sum(both["SVI-AvUC"][seed] < both["SVI"][seed] for seed in range(10))
    assert lower == {"ece": 9, "nll": 10}
    assert "In nine of ten paired seeds ECE, and in all ten NLL" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "methods", "figures"),
    [
        ("finding-3-variants.svg", findings.VARIANTS, (("ece", "5"), ("nll", "5"), ("accuracy", "clean"))),
        ("finding-4-temperatures.svg", findings.TEMPERATURES, (("ece", "5"), ("nll", "5"))),
    ],
)
def test_differences_to_svi(shown, name, methods, figures):
    values = shown[name]
    assert len(values) == len(methods) * len(figures)
    for metric, where in figures:
        scale = 100 if metric == "accuracy" else 1
        panel = {"ece": "ECE, intensity 5", "nll": "NLL, intensity 5", "accuracy": "Accuracy in points, clean"}[metric]
        for method, told in methods.items():
            first, second = rows(method, metric, where), rows("SVI", metric, where)
            seeds = sorted(set(first) & set(second))
            assert len(seeds) in (5, 10)
            pairs = [[each[seed] for seed in seeds] for each in (first, second)]
            interval = ttest_rel(*pairs).confidence_interval(0.95)
            mean = statistics.mean(a - b for a, b in zip(*pairs, strict=True))
            wanted = [scale * value for value in (mean, *interval)]
            assert values[f"{panel}, {told}, {len(seeds)} seeds"] == pytest.approx(wanted, abs=2e-5)


def test_what_the_page_says_about_temperatures(shown):
    values = shown["finding-4-temperatures.svg"]
    clear = {}
    for label, (_, low, high) in values.items():
        clear.setdefault(label.split(", ", 2)[2].rpartition(", ")[0], []).append((low > 0) - (high < 0))
    assert clear == {
        "TS": [1, 1],
        "AvUTS, printed": [0, 0],
        "AvUTS, ours": [1, 1],
        "AUAvUTS": [-1, -1],
        "SVI-AvUC": [-1, -1],
    }
    for metric in ("ece", "nll"):  # "still worse than that of SVI-AvUC"
        one, other = rows("SVI-AUAvUTS", metric, "5"), rows("SVI-AvUC", metric, "5")
        assert ttest_rel(list(one.values()), list(other.values())).confidence_interval(0.95).low > 0


def test_svhn(shown):
    values = shown["finding-5-svhn.svg"]
    printed = {method: printed_by_hand(method, "auroc", "detection") for method in ("SVI", "SVI-AvUC")}
    lines = []
    for study in ("code", "code-49500"):  # the second is optional
        path = PUBLISHED / study / "svhn.csv"
        found = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []
        models = ", 49,500 images" if study == "code-49500" else ""
        lines += [line | {"models": line["method"] + models} for line in found]
    assert {line["method"] for line in lines} <= set(printed)
    lines = [line for line in lines if line["reading"] != "entropy"]  # the one of the study
    assert len(values) == 2 * (1 + 10) + len(lines)
    assert {line["reading"] for line in lines} == {one for group in findings.READINGS.values() for one in group}
    for method, value in printed.items():
        assert values[f"AUROC, {method}, printed"] == [pytest.approx(value)]
        for seed, ours in rows(method, "auroc", "svhn").items():
            assert values[f"AUROC, {method}, seed {seed}"] == [pytest.approx(100 * ours, abs=1e-3)]
            assert 100 * ours < printed["SVI"]
    for line in lines:
        row = next(row for row, readings in findings.READINGS.items() if line["reading"] in readings)
        label = f"AUROC, {row}, {line['models']} seed {line['seed']}, {line['reading']}"
        assert values[label] == [pytest.approx(100 * float(line["auroc"]), abs=1e-5)]
        assert values[label][0] < printed[line["method"]]
    assert "No seed and no reading of ours reaches the printed AUROC" in PAGE.read_text(encoding="utf-8")


def test_every_finding_has_its_picture_with_a_sentence():
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^\*\*(\d)\. ", text, flags=re.MULTILINE)
    assert parts[1::2] == list("12345")
    for number, part in zip(parts[1::2], parts[2::2], strict=True):
        pictures = re.findall(r"!\[([^]]+)\]\(\.\./figures/(finding-(\d)-\w+\.svg)\)", part)
        assert [place for _, _, place in pictures] == [number]
        assert pictures[0][0].endswith(".")
        assert (HOME / "docs" / "figures" / pictures[0][1]).is_file()
    assert not [line for line in text.splitlines() if line.startswith(FIGURE_BEGIN)]


def test_pictures_are_current_well_formed_and_the_same_each_time(committed, printed, home):
    drawn = findings.finding_drawings(committed, printed, make.SVHN)
    again = findings.finding_drawings(committed, printed, make.SVHN)
    assert drawn == again
    assert len(drawn) == 5
    for name, content in drawn.items():
        root = ElementTree.fromstring(content.decode())
        width = float(root.attrib["width"].removesuffix("pt"))
        texts = [node for node in root.iter("{http://www.w3.org/2000/svg}text") if node.text]
        sizes = [float(re.search(r"([\d.]+)px", node.attrib["style"])[1]) for node in texts]
        assert min(sizes) * 390 / width >= 9, name  # on a narrow screen
    for name, values in findings.finding_values(committed, printed, make.SVHN).items():
        text = (home / "docs" / "figures" / name).read_text(encoding="utf-8")
        assert text.endswith(values), "run python reproduction/pages/make_reproduction.py"
    assert findings.finding_drawings({}, printed, make.SVHN) == {}
    assert findings.finding_drawings(committed, printed, [home / "nothing.csv"]) == {}


def test_check_sees_a_picture_of_other_rows(tmp_path, monkeypatch, home, printed, published_studies):
    docs = tmp_path / "docs"
    shutil.copytree(home / "docs" / "figures", docs / "figures")
    monkeypatch.setattr(make, "DOCS", docs)
    monkeypatch.setattr(make, "PAGES", {})
    # the rows and the text of the pages stay the same
    notes = tomllib.loads((Path(make.HERE) / "reproduction.toml").read_text(encoding="utf-8"))
    blocks = make.all_blocks(published_studies, printed, notes)
    monkeypatch.setattr(make, "read_studies", lambda folder: published_studies)
    monkeypatch.setattr(make, "all_blocks", lambda *arguments: blocks)
    assert make.main(["--check"]) == 0
    picture = docs / "figures" / "finding-2-seeds.svg"
    text = picture.read_text(encoding="utf-8")
    picture.write_text(re.sub(rf"(seed 3, SVI: ){NUMBER}", r"\g<1>0.50000", text), encoding="utf-8")
    assert make.main(["--check"]) == 1
    picture.write_text(text, encoding="utf-8")
    assert make.main(["--check"]) == 0
    (docs / "figures" / "finding-5-svhn.svg").unlink()
    assert make.main(["--check"]) == 1


def test_a_figure_can_be_a_difference_of_two_studies(committed, printed):
    find = make.one_number(committed, printed)
    assert find(["code-switches", "SVI, best epoch − code: SVI", "auroc", "svhn"]) == "+2.5 (−9.7 … +14.8)"
    assert find(["code-switches", "SVI-AvUC, best epoch − code: SVI-AvUC", "auroc", "svhn"]) == "−2.4 (−18.2 … +13.5)"
    with pytest.raises(InputError, match="both methods need the same seeds"):
        find(["code-switches", "SVI, best epoch − nowhere: SVI", "auroc", "svhn"])
