"""What the report reads, concludes, tabulates and writes, without a browser."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sqlite3
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from scipy import stats

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.report.colours import COLOURS, colour_of, symbol_of
from avuc.report.study.embed import payload, safe_json
from avuc.report.study.exports import write_figures, write_tables
from avuc.report.study.figures import all_figures
from avuc.report.study.intervals import spread
from avuc.report.study.page import study_page
from avuc.report.study.results import CLEAN, MethodFacts, Results, side_by_side
from avuc.report.study.tables import all_tables
from avuc.report.study.verdict import alarms, verdict
from avuc.report.table import Entry, Table
from avuc.study.store.store import Store


def made_up(values: dict[str, np.ndarray], **changes) -> Results:
    """values[metric]: (method, seed, shift); the same at intensities 1 and 5, half of it on clean images."""
    count, seeds, shifts = next(iter(values.values())).shape
    names = [f"shift{n}" for n in range(shifts)]
    cells = [CLEAN, *((name, level) for name in names for level in (1, 5))]
    full = {
        key: np.concatenate([found.mean(2, keepdims=True) / 2, found.repeat(2, 2)], 2) for key, found in values.items()
    }
    methods = [MethodFacts(f"M{n}", n, seeds=tuple(range(seeds))) for n in range(count)]
    base = {"title": "t", "source": "s", "recipes": ("",), "methods": methods, "test_sets": cells, "values": full}
    return Results(**{**base, "curves": {}, "examples": {}, "gallery": {}, "studies": ("t",), **changes})


def scores(ece, nll, brier, *, seeds=3, shifts=8, noise=0.01) -> dict[str, np.ndarray]:
    """Methods that differ by their means, on shifts that differ much more."""
    rng = np.random.default_rng(0)
    hard = rng.uniform(0.5, 1.5, (1, 1, shifts))
    out = {}
    for key, means in {"ece": ece, "nll": nll, "brier": brier, "uce": ece, "accuracy": [0.8] * len(ece)}.items():
        level = np.array(means)[:, None, None] * hard
        out[key] = level * (1 + noise * rng.standard_normal((len(means), seeds, shifts)))
    return out


# reading


def test_results_are_the_rows_of_the_store(study_folder, results):
    with sqlite3.connect(study_folder / "study.sqlite") as db:
        rows = db.execute("SELECT * FROM rows WHERE shift != 'validation'").fetchall()
    db.close()
    checked = 0
    for method, seed, shift, severity, metric, value in rows:
        if metric in results.values:
            m = results.names.index(method)
            found = results.at(metric, (shift, severity))[m, results.methods[m].seeds.index(seed)]
            assert found == value or (value is None and math.isnan(found))
            checked += 1
    assert checked > 500
    assert results.missing == 0
    assert results.test_sets[0] == CLEAN
    assert results.test_sets[-1] == ("ood:photographs", 0)


def test_curves_are_pooled_over_seeds(study_folder, results):
    store = Store(study_folder, create=False)
    parts = [store.curves("Vanilla", seed, "fog", 5) for seed in (0, 1)]
    store.close()
    pooled = results.curves[0, results.set_index["fog", 5]]
    for group in ("right", "wrong"):
        assert pooled["entropy"][group].tolist() == np.sum([part["entropy"][group] for part in parts], 0).tolist()
    observed = sum(
        n * (o or 0)
        for part in parts
        for n, o in zip(part["reliability"]["rows"], part["reliability"]["observed"], strict=True)
    )
    assert pooled["reliability"]["observed"].sum() == pytest.approx(observed)
    assert pooled["reliability"]["rows"].sum() == 320


def test_shifted_is_a_plain_mean(results):
    expected = np.mean([[results.at("nll", (shift, level)) for level in (1, 5)] for shift in results.shifts], axis=1)
    assert results.shifted("nll").transpose(2, 0, 1) == pytest.approx(expected)


def test_an_empty_study_says_so(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "no study here" in capsys.readouterr().err
    assert main(["report"]) == 2
    assert "name the folder of a study" in capsys.readouterr().err


# intervals


def test_spread_by_a_slow_loop():
    values = 9 + np.random.default_rng(3).normal(size=(2, 3, 5))
    found = spread(values)
    assert found.value == pytest.approx(values.mean((1, 2)))
    rng = np.random.default_rng(5)
    slow = []
    for _ in range(8000):
        shifts, normal, squares = rng.integers(5, size=5), rng.normal(size=3), rng.chisquare(2)
        weights = 1 / 3 + (normal - normal.mean()) / math.sqrt(3 * 2) / math.sqrt(squares / 2)
        slow.append([np.mean([weights @ values[m, :, shift] for shift in shifts]) for m in range(2)])
    low, high = np.quantile(slow, (0.025, 0.975), axis=0)
    for method in range(2):
        assert found.interval(method) == pytest.approx((low[method], high[method]), abs=0.2)
    assert found.difference(0, 0) == (0, 0)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_one_test_set_has_the_intervals_of_student(seeds):
    """A bootstrap of two seeds contains the mean in half of all cases, not in 95 %."""
    values = 99 + np.random.default_rng(seeds).normal(size=(2, seeds))
    found = spread(values[:, :, None])
    for method in range(2):
        exact = stats.ttest_1samp(values[method], 0).confidence_interval(0.95)
        assert found.interval(method) == pytest.approx(tuple(exact), abs=0.15 * (exact.high - exact.low))
    exact = stats.ttest_rel(*values).confidence_interval(0.95)
    assert found.difference(0, 1) == pytest.approx(tuple(exact), abs=0.15 * (exact.high - exact.low))


def test_equal_methods_are_rarely_significantly_different():
    rng, different = np.random.default_rng(0), 0
    for _ in range(300):
        low, high = spread(9 + rng.normal(size=(2, 3, 1))).difference(0, 1)
        different += not low <= 0 <= high
    assert different <= 30  # 15 of 300; a bootstrap of the seeds finds 75


def test_other_seeds_of_a_method_are_left_out():
    """Seeds that a method does not have change neither its mean nor its interval, but for the random numbers."""
    own = 9 + np.random.default_rng(1).normal(size=(1, 4, 1))
    more = np.concatenate([own, np.full((1, 2, 1), np.nan)], axis=1)
    wide = np.concatenate([more, 9 + np.random.default_rng(2).normal(size=(1, 6, 1))])
    exact = spread(own).interval(0)
    assert spread(wide).value[0] == pytest.approx(own.mean())
    assert spread(wide).interval(0) == pytest.approx(exact, abs=0.1 * (exact[1] - exact[0]))


def test_intervals_stay_in_the_range_of_the_metric():
    values = np.array([[[0.02], [0.06]], [[0.91], [0.99]]])
    found = spread(values, metric="accuracy")
    assert found.interval(0)[0] == 0
    assert found.interval(1)[1] == 1
    assert spread(values, metric="nll").interval(1)[1] > 1
    assert spread(values, metric="brier").interval(1)[1] <= 2


def test_a_single_method_is_not_the_best():
    assert spread(np.array([[[0.1, 0.2], [0.1, 0.3]]])).marked(lower=True) == set()


def test_spread_knows_what_it_does_not_know():
    one = spread(np.ones((2, 1, 1)))
    assert math.isnan(one.interval(0)[0])
    assert one.ties(lower=True) == {0, 1}  # equal to the last digit
    missing = np.array([[[1.0, 2.0], [np.nan, np.nan]], [[3.0, 4.0], [5.0, 6.0]]])
    found = spread(missing)
    assert found.value.tolist() == [1.5, 4.5]
    assert np.isfinite(found.replicates).all()
    assert spread(np.full((2, 1, 3), np.nan)).best(lower=True) is None
    assert spread(np.zeros((2, 1, 0))).best(lower=True) is None


def test_one_seed_on_one_set_has_no_interval_beside_methods_with_more():
    """On one test set only seeds vary: a method with one seed has no interval, not one of width zero."""
    values = np.array([[[0.871], [np.nan], [np.nan]], [[0.85], [0.86], [0.87]]])
    found = spread(values)
    assert found.value.tolist() == pytest.approx([0.871, 0.86])
    assert math.isnan(found.interval(0)[0])
    assert found.interval(1)[0] < 0.86 < found.interval(1)[1]
    assert math.isnan(found.difference(0, 1)[0])
    assert found.marked(lower=False) == set()


def test_ties_are_paired():
    """Shifts differ far more than methods; on the same shifts they are still significantly different."""
    found = spread(scores([0.10, 0.11, 0.101], [1] * 3, [1] * 3, noise=0.02)["ece"])
    assert found.interval(0)[1] > found.interval(1)[0]
    assert found.ties(lower=True) == {0, 2}


# verdict and alarms


def test_verdict_in_sentences():
    results = made_up(scores([0.31, 0.13], [2.6, 1.6], [0.8, 0.6]))
    told = verdict(results)
    sentence = (
        r"Use M1: over 8 kinds of shift at 2 intensities it predicts best, "
        r"with an NLL of \S+ \(95 % interval .* … .*\), compared with .* for M0\."
    )
    assert re.fullmatch(sentence, told[0])
    sentence = (
        r"At the strongest intensity, M1's confidence differs from its accuracy by ([\d.]+) percentage points "
        r"\(([\d.]+) … ([\d.]+)\) on average, M0's by ([\d.]+) \(.*\)\."
    )
    found = re.fullmatch(sentence, told[1])
    assert found
    value, low, high, other = map(float, found.groups())
    assert low < value < high
    assert value == pytest.approx(100 * results.shifted("ece", 5)[1].mean(), abs=0.06)
    assert other == pytest.approx(100 * results.shifted("ece", 5)[0].mean(), abs=0.06)
    assert not any("not significantly different" in sentence for sentence in told)
    assert alarms(results) == []


def test_verdict_names_equals_and_the_cheaper_one():
    results = made_up(scores([0.1, 0.1], [1.0, 1.0], [0.5, 0.5], noise=0.05))
    results.methods[0] = replace(results.methods[0], samples=128)
    results.methods[1] = replace(results.methods[1], samples=128)
    best = spread(results.shifted("nll")).best(lower=True)
    results.methods[1 - best] = replace(results.methods[1 - best], samples=1)
    (sentence,) = [s for s in verdict(results) if "not significantly different" in s]
    assert f"M{1 - best} needs 1 forward pass instead of 128" in sentence


def test_alarm_calibration_better_scores_worse():
    told = alarms(made_up(scores([0.3, 0.1], [1.0, 1.4], [0.5, 0.7])))
    assert any(
        re.match(r"M1 is better calibrated than M0 under shift, but predicts worse: ECE .* → .*, NLL .* and Brier", one)
        for one in told
    )
    # better in all, or worse in all: no alarm
    assert alarms(made_up(scores([0.3, 0.1], [1.4, 1.0], [0.7, 0.5]))) == []
    assert alarms(made_up(scores([0.1, 0.3], [1.0, 1.4], [0.5, 0.7]))) == []


def test_alarms_of_fits_and_seeds():
    results = made_up(scores([0.1, 0.1], [1, 1], [0.5, 0.5], seeds=1), missing=7)
    results.methods[0] = replace(results.methods[0], at_bound=True, temperatures=(0.05,), errors=12)
    results.methods[1] = replace(results.methods[1], errors=400)
    told = " | ".join(alarms(results))
    assert "Do not rely on the temperature of M0 (T = 0.05): for at least one seed its objective has" in told
    assert "threshold of M0 was learned from few validation errors (as few as 12" in told
    assert "Only one seed per method: differences between methods may be due to training randomness" in told
    assert "7 results of the recipe are still missing" in told


def test_an_alarm_does_not_list_every_one_of_many_methods():
    results = made_up(scores([0.1] * 9, [1] * 9, [0.5] * 9))
    results.methods[:8] = [replace(method, errors=12) for method in results.methods[:8]]
    assert "The uncertainty threshold of M0, M1, M2, M3 and 4 more was learned from" in " | ".join(alarms(results))


def test_the_temperature_slider_has_the_digits_it_shows(results):
    """At T = 1, ECE and NLL of the diagram are those of the first seed on clean images."""
    for entry in payload(results)["tempered"]:
        if entry["set"] == "clean images":
            one = entry["temperature"].index(1)
            count, stated, observed = (np.array(entry[key][one]) for key in ("count", "stated", "observed"))
            ece = (count * np.abs(stated - observed)).sum() / count.sum()
            assert ece == pytest.approx(results.at("ece", CLEAN)[entry["method"], 0], abs=1e-4)
            assert entry["nll"][one] == pytest.approx(results.at("nll", CLEAN)[entry["method"], 0], abs=6e-5)


def test_facts_come_from_the_store(tmp_path, results):
    assert [method.reuse_model for method in results.methods] == ["", "Vanilla", ""]
    assert results.methods[1].temperatures
    assert not any(method.at_bound for method in results.methods)
    assert all(method.errors is not None and 0 < method.errors < 160 for method in results.methods)
    assert results.methods[2].beta == 2.0
    assert len(results.methods[0].history[0]) == 6


def test_verdict_without_shifts_and_with_one_method(results):
    alone = made_up(scores([0.1], [1.0], [0.5]))
    assert verdict(alone)[0].startswith("Over 8 kinds of shift at 2 intensities, M0 has an NLL of")
    clean = replace(alone, test_sets=[CLEAN], values={key: found[:, :, :1] for key, found in alone.values.items()})
    assert verdict(clean)[0].startswith("On clean images, M0 has")
    assert study_page(clean).count("<h1>") == 1


# tables


def test_tables_of_the_paper(results):
    names = [table.name for table in all_tables(results)]
    expected = ["ranking", "quartiles", "spearman", "detection-auroc", "detection-aupr_in", "detection-aupr_out"]
    expected += ["detection-detection_accuracy", "detection-fpr95", "wasserstein", "coverage"]
    kinds = ("threshold", "aps", "raps")
    assert names == [*expected, *(f"coverage-{what}-{kind}" for what in ("shifts", "classes") for kind in kinds)]


def test_quartiles_and_spearman_by_reference(results):
    tables = {table.name: table for table in all_tables(results)}
    values = results.shifted("ece", 5).mean(1)
    rows = {row[0]: row[1:] for row in tables["quartiles"].rows}
    assert [e.value for e in rows["ECE, median"]] == pytest.approx(np.median(values, axis=1))
    assert [e.value for e in rows["ECE, upper quartile"]] == pytest.approx(np.quantile(values, 0.75, axis=1))
    assert [e.value for e in rows["ECE, mean"]] == pytest.approx(values.mean(1))
    for method in range(3):
        means = [results.at("nll", CLEAN)[method].mean()] + [
            results.shifted("nll", level)[method].mean() for level in (1, 5)
        ]
        found = {row[0]: row[1:] for row in tables["spearman"].rows}["NLL"][method].value
        assert found == pytest.approx(stats.spearmanr([0, 1, 5], means).statistic)


def test_best_is_bold_with_its_equals():
    results = made_up(scores([0.2, 0.1, 0.1], [2.0, 1.0, 1.0], [0.5] * 3))
    ranking = all_tables(results)[0]
    column = list(ranking.head).index("shifted: NLL")
    bold = {row[0]: row[column].best for row in ranking.rows}
    assert bold["M1"] or bold["M2"]
    assert not bold["M0"]
    assert ranking.rows[-1][0] == "M0"


def test_forms_of_a_table_hold_hostile_text():
    name = '=1+1 </td><script>x</script> | a_b & 50% $x$ \\ "q"'
    table = Table(
        "t",
        "Title <b>",
        "Caption & more",
        ["method", "x"],
        [[name, Entry(0.25, 0.2, 0.3, best=True)], ["b", Entry(math.nan)]],
    )
    assert "<script>" not in table.html()
    ElementTree.fromstring(table.html().replace("<br>", "<br/>"))
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert rows == [["method", "x", "x low", "x high"], ["'" + name, "0.25", "0.2", "0.3"], ["b", "", "", ""]]
    line = table.markdown().splitlines()[4]
    assert len(re.findall(r"(?<!\\)\|", line)) == 3
    assert "\\<script\\>" in line
    assert "**0.2500 (0.2000 … 0.3000)**" in line
    tex = table.latex()
    assert r"a\_b \& 50\% \$x\$ \textbackslash{}" in tex
    assert r"\textbf{0.2500 (0.2000 \dots{} 0.3000)}" in tex


# page


def test_page_is_one_safe_file(results):
    page = study_page(results)
    assert page.count("</script>") == 7  # its six scripts and the data
    assert "alert(1)>" not in page
    assert "<i>study" not in page
    assert not re.search(r"(?:src|href)=[\"']?https?:", page)
    assert len(page.encode()) < 3_000_000
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1)
    assert [method["name"] for method in json.loads(data)["methods"]] == results.names


@pytest.mark.parametrize("text", ["</script>", "<!--", "\u2028\u2029", "a&amp;b", "\\u003c", "ß≤\U0001f600"])
def test_safe_json_comes_back(text):
    safe = safe_json({text: [text, 1.5, None]})
    assert json.loads(safe) == {text: [text, 1.5, None]}
    assert not set(safe) & set("<>&\u2028\u2029")
    assert safe.isascii()


def test_payload_of_pictures(results):
    content = payload(results)
    assert {entry["cell"] for entry in content["shown"]} == {
        results.set_index[c] for c in results.test_sets if c == CLEAN or c[1] == 5
    }
    assert len(content["gallery"]) == len(results.test_sets)
    for entry in content["shown"]:
        assert all(0 <= one["picture"] < len(content["pictures"]) for one in entry["mistakes"])


def test_pictures_stay_in_bounds(results, monkeypatch):
    """Large pictures: fewer for each method, still the surest, still for every method."""
    whole = payload(results)
    monkeypatch.setattr("avuc.report.study.embed.MOST_PICTURES", 8000)
    content = payload(results)
    assert sum(map(len, content["pictures"])) <= 8000 + 400 * len(content["shown"])
    for few, many in zip(content["shown"], whole["shown"], strict=True):
        assert 1 <= len(few["mistakes"]) < len(many["mistakes"])
        told = [one["entropy"] for one in few["mistakes"]]
        assert told == [one["entropy"] for one in many["mistakes"]][: len(told)]


def test_a_study_without_single_images_has_a_page(results):
    bare = replace(results, examples={}, gallery={}, curves={})
    content = payload(bare)
    assert content["shown"] == content["tempered"] == content["gallery"] == []
    assert "<h1>" in study_page(bare)


def test_one_look_for_each_method():
    looks = [(colour_of(n), symbol_of(n)) for n in range(84)]
    assert len(set(looks)) == 84
    assert all(contrast(light, "#ffffff") >= 3 and contrast(dark, "#1c2026") >= 3 for light, dark in COLOURS)


def contrast(first: str, second: str) -> float:
    """WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


# files


def test_exports(results, tmp_path):
    small = replace(results, methods=list(results.methods))
    figures = write_figures(small, tmp_path / "figures", progress=False)
    names = {path.stem for path in figures}
    for metric in ("ece", "uce", "nll", "brier", "accuracy", "avu_auc"):
        assert f"box-{metric}" in names
    for name in ("accuracy-confidence", "count-confidence", "p-accurate-certain", "p-uncertain-wrong", "reliability"):
        assert {f"{name}-clean", f"{name}-intensity-5"} <= names
    assert {"uncertainty-reliability-clean", "entropy-photographs", "training-nll", "gallery"} <= names
    for path in figures:
        head = path.read_bytes()[:8]
        assert head.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
        if path.suffix == ".svg":
            ElementTree.parse(path)
    tables = write_tables(results, tmp_path / "tables")
    assert {path.suffix for path in tables} == {".csv", ".tex", ".md"}
    assert len(tables) == 3 * len(all_tables(results))


def test_compare(results, tmp_path):
    other = replace(results, values={key: found * 1.5 for key, found in results.values.items()})
    both = side_by_side(results, other, ("old", "new"))
    assert both.names[0] == "old: Vanilla"
    assert both.names[3] == "new: Vanilla"
    assert both.methods[0].colour_index == both.methods[3].colour_index
    assert both.at("nll", CLEAN)[3] == pytest.approx(1.5 * results.at("nll", CLEAN)[0])
    changes = all_tables(both)[1]
    assert changes.name == "changes"
    first = next(row for row in changes.rows if row[1] == "shifted: NLL")
    assert first[4].value == pytest.approx(first[2].value * 0.5)
    assert first[5] == "worse"
    assert "old compared with new" in study_page(both)


def test_compare_looks_only_at_what_both_have(results):
    few = [CLEAN, ("fog", 5)]
    places = [results.set_index[cell] for cell in few]
    kept = {place: n for n, place in enumerate(places)}
    other = replace(
        results,
        test_sets=few,
        values={key: found[:, :, places] for key, found in results.values.items()},
        curves={(m, kept[c]): data for (m, c), data in results.curves.items() if c in kept},
        examples={},
        missing=0,
    )
    both = side_by_side(results, other, ("old", "new"))
    assert both.test_sets == few
    assert both.at("ece", ("fog", 5))[:3].tolist() == both.at("ece", ("fog", 5))[3:].tolist()
    rows = both.curves[1, 1]["entropy"]["right"].tolist()
    assert rows == results.curves[1, results.set_index["fog", 5]]["entropy"]["right"].tolist()
    assert payload(both)["shifts"] == ["fog"]
    with pytest.raises(InputError, match="no test sets in common"):
        side_by_side(results, replace(other, test_sets=[("x", 1), ("y", 1)]), ("old", "new"))


def test_command(study_folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(study_folder), "--out", str(out), "--no-exports"]) == 0
    assert out.stat().st_size > 500_000
    said = " ".join(capsys.readouterr().out.split())
    assert "it predicts best" in said
    assert "Only 2 seeds per method: differences between methods may be due to training randomness" in said
    assert not (tmp_path / "page").exists()
    assert main(["report", "--compare", str(study_folder), str(study_folder), "--out", str(out), "--no-exports"]) == 0
    assert "1 " + study_folder.name in capsys.readouterr().out
    assert main(["report", str(study_folder), "--out", str(tmp_path / "page.txt")]) == 2
    assert "ends in .html" in capsys.readouterr().err


def test_legends_and_titles_of_the_figures_have_room(results):
    """Long names: nothing is cut off at the edge of the picture, and no title lies on another."""
    from matplotlib.figure import Figure

    for name, size, paint in all_figures(results):
        if name.partition("-")[0] not in ("box", "heatmap", "reliability", "entropy", "training"):
            continue
        figure = Figure(figsize=size, layout="constrained")
        with mpl.rc_context({"font.size": 8, "legend.fontsize": 7}):
            paint(figure)
            figure.draw_without_rendering()
            frame, boxes = figure.bbox, [each.get_window_extent() for each in figure.legends]
            titles = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
        for box in boxes + titles:
            assert frame.x0 <= box.x0 < box.x1 <= frame.x1, name
        for index, one in enumerate(titles):
            assert not any(one.overlaps(other) for other in titles[:index]), name
