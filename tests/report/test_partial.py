"""Studies that stopped early, have little in them, or were written by an enemy: a page that says what is missing, or
one line."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.core.text import short
from avuc.report.study import exports
from avuc.report.study.exports import file_names, write_figures
from avuc.report.study.figures import all_figures
from avuc.report.study.intervals import spread
from avuc.report.study.paired import over_seeds, over_shifts
from avuc.report.study.paper_comparison import figure as study_figure
from avuc.report.study.pooled import by_confidence
from avuc.report.study.results import CLEAN, MethodFacts, Results, read_results, side_by_side
from avuc.report.study.tables import all_tables, ranking, spearman
from avuc.report.study.verdict import alarms, verdict
from avuc.report.table import Entry, Table
from avuc.study.store.integrity import check
from avuc.study.store.store import Store

FIRST, SECOND = "Vanilla", "<img src=x onerror=alert(1)>"


@pytest.fixture
def copy(study_folder, tmp_path):
    """A study of three methods, two seeds and three shifts at two intensities, and a way to change what is in it."""
    folder = tmp_path / "study"
    shutil.copytree(study_folder, folder)

    def change(*statements: str):
        with contextlib.closing(sqlite3.connect(folder / "study.sqlite", isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)
            check(db)
        return folder

    return change


@pytest.fixture
def few_figures(monkeypatch):
    """One of the six metrics has its figures, and SVG files alone are drawn: `test_exports` writes all of them."""
    monkeypatch.setattr("avuc.report.study.figures.BOXES", ("ece",))
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, file, **how: save(self, file, **how) if how["format"] == "svg" else None
    )


def without(condition: str) -> list[str]:
    tables = [f"DELETE FROM {table} WHERE {condition}" for table in ("cells", "rows", "curves", "shown")]
    return tables if re.search("method|seed", condition) else [*tables, f"DELETE FROM gallery WHERE {condition}"]


def results_of(folder):
    store = Store(folder, create=False)
    try:
        return read_results(store)
    finally:
        store.close()


PARTIAL = {
    "clean only": without("shift NOT IN ('validation', 'clean')"),
    "clean of one method": [*without("shift NOT IN ('validation', 'clean')"), *without(f"method != '{FIRST}'")],
    "one shift at one intensity": without("shift NOT IN ('validation', 'clean') AND NOT (shift='fog' AND severity=5)"),
    "a method without shifts": without(f"method = '{SECOND}' AND severity > 0"),
    "a method without clean images": without(f"method = '{SECOND}' AND shift = 'clean'"),
    "a method missing": without(f"method = '{SECOND}'"),
    "different shifts": [
        *without(f"method = '{FIRST}' AND shift = 'fog'"),
        *without(f"method != '{FIRST}' AND shift = 'contrast'"),
    ],
    "nothing in common": [
        *without(f"method = '{FIRST}' AND severity > 0 AND shift != 'fog'"),
        *without(f"method != '{FIRST}' AND severity > 0 AND shift = 'fog'"),
    ],
    "a seed missing under shift": without(f"method = '{FIRST}' AND seed = 1 AND severity = 5"),
    "one seed": without("seed = 1"),
    "no other data": without("shift LIKE 'ood:%'"),
    "no clean images": without("shift = 'clean'"),
    "no curves and pictures": ["DELETE FROM curves", "DELETE FROM shown", "DELETE FROM gallery"],
    "no trainings": ["DELETE FROM models", "DELETE FROM history", "DELETE FROM runs"],
    "metrics that are not defined": ["UPDATE rows SET value = NULL WHERE metric IN ('ece', 'auroc', 'wasserstein')"],
    "no number at all": ["UPDATE rows SET value = NULL"],
}


@pytest.mark.parametrize("kind", PARTIAL)
def test_a_part_of_a_study_has_a_page(copy, tmp_path, capsys, few_figures, kind):
    folder = copy(*PARTIAL[kind])
    exports = kind in ("clean only", "different shifts", "no number at all", "a method without shifts")
    page = tmp_path / "page.html"
    code = main(["report", str(folder), "--out", str(page), *([] if exports else ["--no-exports"])])
    said = capsys.readouterr()
    assert (code, "Traceback" in said.err) == (0, False)
    text = page.read_text(encoding="utf-8")
    assert "nan" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.S).lower().split()
    assert "nan%" not in text
    if "trainings" not in kind and "curves" not in kind and "number" not in kind and "metrics" not in kind:
        assert "results of the recipe are still missing" in text


def test_only_other_data_is_one_line(copy, capsys):
    folder = copy(*without("shift NOT LIKE 'ood:%'"))
    assert main(["report", str(folder), "--no-exports"]) == 2
    assert "has no results on labelled data yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE rows SET value = 9e999 WHERE shift = 'fog'", "is inf, which no metric can be"),
        ("UPDATE rows SET value = -9e999 WHERE shift = 'fog'", "is -inf, which no metric can be"),
        ("UPDATE rows SET value = 1e300 WHERE shift = 'fog'", r"is 1e\+300, which no metric can be"),
        ("UPDATE rows SET value = 'many' WHERE shift = 'fog'", "is 'many', which no metric can be"),
        ("UPDATE rows SET value = x'00ff' WHERE shift = 'fog'", "which no metric can be"),
        ("UPDATE rows SET seed = 'first' WHERE seed = 1", "a name or number of the wrong kind"),
        ("UPDATE rows SET severity = 0.5 WHERE severity = 1", "a name or number of the wrong kind"),
        ("UPDATE cells SET rows = 'some' WHERE shift = 'validation'", "cannot be read"),
        ("UPDATE cells SET samples = 'x'", "cannot be read"),
        ("UPDATE curves SET data = '{' WHERE shift = 'fog'", "the curve .* cannot be read"),
        ("UPDATE curves SET data = '[]' WHERE shift = 'fog'", "the curve .* cannot be read"),
        ("UPDATE curves SET data = replace(data, '0', '1e400') WHERE shift = 'fog'", "the curve .* cannot be read"),
        (
            'UPDATE curves SET data = \'{"high":1,"right":[[1]],"wrong":["x"]}\' WHERE name=\'entropy\'',
            "cannot be read",
        ),
        ("UPDATE curves SET data = '[]' WHERE name = 'conformal'", "the coverage of conformal sets cannot be read"),
        (
            "UPDATE curves SET data = replace(data, '\"covered\":', '\"covered\":-') WHERE name = 'conformal'",
            "the coverage of conformal sets cannot be read",
        ),
        (
            "UPDATE curves SET data = replace(data, '\"rows\":', '\"rows\":0,\"other\":') WHERE name = 'conformal'",
            "the coverage of conformal sets cannot be read",
        ),
        ("UPDATE shown SET data = '{}'", "the single images of .* cannot be read"),
        ("UPDATE shown SET data = replace(data, '\"mistakes\":[', '\"mistakes\":[3,')", "the single images of"),
        ("UPDATE history SET data = '[1]'", "cannot be read"),
        ("UPDATE calibrators SET data = '[1]'", "cannot be read"),
        ("UPDATE runs SET seconds = 'long'", "run 1 took 'long' seconds"),
        ("UPDATE runs SET versions = '3'", "cannot be read"),
        ("UPDATE runs SET versions = '{'", "cannot be read"),
        ("UPDATE meta SET value = 'x = ' WHERE key = 'recipe'", "not valid TOML"),
    ],
)
@pytest.mark.parametrize("old", [False, True])
def test_values_that_avuc_did_not_write_are_one_line(copy, capsys, statement, message, old):
    """Also in a file of version 0.1.0, which has no digests."""
    gone = ["DROP TABLE checks", "DROP TABLE data", "DELETE FROM meta WHERE key = 'checks'"] if old else []
    folder = copy(statement)
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite", isolation_level=None)) as db:
        for line in gone:
            db.execute(line)
    assert main(["report", str(folder), "--no-exports"]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert len(said.splitlines()) == 1


# names

NAMES = (
    "方法一",
    "方法二",
    "SVI-AvUC",
    "svi avuc",
    "=cmd|' /C calc'!A0",
    "a|b`c`\n**d** <script>&\x1b[31m\x00\u202e",
    "x" * 10_000,
)


def test_names_of_any_kind(synthetic_study, tmp_path, capsys, few_figures):
    synthetic_study(tmp_path / "study", NAMES, seeds=(0,), severities=(5,), name="../=1+1\n|`<b>")
    assert main(["report", str(tmp_path / "study"), "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out
    assert "Warning" not in said.err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1)
    assert [method["name"] for method in json.loads(data)["methods"]] == list(NAMES)
    assert "<script>&" not in page
    assert "\x1b" not in page
    assert "\x00" not in page
    for path in (tmp_path / "page" / "tables").glob("*.csv"):
        for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"))):
            assert not [cell for cell in row if cell[:1] in "=@|" and cell], path
    for path in (tmp_path / "page" / "tables").glob("*.md"):
        lines = path.read_text(encoding="utf-8").splitlines()
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:]}
        assert len(bars) == 1, path
        assert not re.search(r"(?<!\\)[`<]", path.read_text(encoding="utf-8")), path


def test_heads_are_escaped_like_cells():
    table = Table("t", "T", "C", ["", "=cmd()", "+a|b", "@x\ny", "－1", " =z"], [["-r", *(Entry(0.5, 0.4, 0.6),) * 5]])
    head, row = csv.reader(io.StringIO(table.csv()))
    assert head[1:4] == ["'=cmd()", "'=cmd() low", "'=cmd() high"]
    assert head[4] == "'+a|b"
    assert head[7] == "'@x\\ny"
    assert head[10] == "'－1"
    assert head[13] == "' =z"
    assert row[0] == "'-r"
    sly = Table("t", "T", "C", ["method", "**a** | b"], [["**x** | <b>", Entry(1.0)]])
    lines = sly.markdown().splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in lines[2:])
    assert r"\*\*x\*\* \| \<b\>" in lines[4]


def test_latex_rows_that_begin_like_an_argument():
    """After a line's end, LaTeX reads "[1ex]" as a distance and "*" as a part of the command, also in the next line."""
    table = Table("t", "T", "C", ["", "x"], [[name, Entry(1.0)] for name in ("[1ex] SVI", "* best", "a*[b]")])
    lines = table.latex().splitlines()
    assert lines[lines.index(r"\midrule") + 1 :][:3] == [
        r"{}[1ex] SVI & 1.000 \\",
        r"{}* best & 1.000 \\",
        r"a*[b] & 1.000 \\",
    ]


def test_files_of_figures_have_different_names():
    names = [
        "entropy-svhn",
        "entropy-SVHN",
        "entropy-a b",
        "entropy-a:b",
        "entropy-数据",
        "entropy-数居",
        "e-" + "x" * 900,
    ]
    made = file_names(names)
    assert len({name.casefold() for name in made.values()}) == len(names)
    assert all(len(name.encode()) < 200 for name in made.values())
    assert file_names(["box-ece", "entropy-svhn"]) == {"box-ece": "box-ece", "entropy-svhn": "entropy-svhn"}


def test_long_names_that_begin_alike_stay_different():
    assert short("x" * 10_000 + "1", 40) != short("x" * 10_000 + "2", 40)
    assert len(short("x" * 10_000, 40)) <= 40


# means over the same sets


def two(values: np.ndarray, seeds=None) -> Results:
    """values: (method, seed, shift); one intensity. Clean images are the same for all."""
    count, width, shifts = values.shape
    cells = [CLEAN, *((f"shift{n}", 5) for n in range(shifts))]
    full = np.concatenate([np.ones((count, width, 1)), values], axis=2)
    methods = [MethodFacts(f"M{n}", n, seeds=tuple(range(width)) if seeds is None else seeds[n]) for n in range(count)]
    names = ("nll", "ece", "brier", "uce", "accuracy")
    return Results("t", "s", ("",), methods, cells, {name: full.copy() for name in names}, {}, {}, {}, studies=("t",))


def test_means_are_over_sets_that_all_methods_have():
    """M1 has only the easy shifts: its plain mean would be lower, though it is worse on every one of them."""
    easy_and_hard = np.array([[[0.1, 0.2, 3.0, 4.0]], [[0.2, 0.3, np.nan, np.nan]]])
    results = two(easy_and_hard)
    assert results.common("nll") == {("shift0", 5), ("shift1", 5)}
    assert spread(results.shifted("nll")).value == pytest.approx([0.15, 0.25])
    assert verdict(results)[0].startswith("Use M0:")
    assert [row[0] for row in ranking(results).rows] == ["M0", "M1"]
    assert "the 2 shifted test sets that all methods have" in ranking(results).caption
    assert any(one.startswith("Means under shift are over 2 of 4 shifted test sets") for one in alarms(results))
    assert any(one.endswith("The others lack results of M1.") for one in alarms(results))
    # what is there is still shown for each shift
    assert results.shifted("nll", common=False)[0, 0].tolist() == [0.1, 0.2, 3.0, 4.0]


def test_texts_count_the_sets_that_means_are_over(copy):
    """The second method lacks results at intensity 5, as after a run with other severities."""
    results = results_of(copy(*without(f"method = '{SECOND}' AND severity = 5 AND shift != 'fog'")))
    assert "over 4 test sets of 3 kinds of shift" in verdict(results)[0]
    tables = {table.name: table for table in all_tables(results)}
    assert tables["quartiles"].caption.startswith("Over 1 of 3 kinds of shift at intensity 5")
    assert tables["detection-auroc"].rows[-1][0] == "mean over 1 of 3 kinds of shift"
    results = results_of(copy(*without(f"method = '{SECOND}' AND severity = 5")))
    assert "over 3 kinds of shift at 1 intensity" in verdict(results)[0]
    only_fog = without(f"method = '{SECOND}' AND shift IN ('contrast', 'gaussian_noise')")
    assert "over 1 kind of shift at 1 intensity" in verdict(results_of(copy(*only_fog)))[0]


def test_curves_of_all_shifts_are_over_the_same_sets(copy):
    """Otherwise the curve of a method that lacks the hard shifts would look better than it is."""
    results = results_of(copy(*without(f"method = '{SECOND}' AND severity = 5 AND shift != 'fog'")))
    paints = {name: paint for name, _, paint in all_figures(results)}
    figure = Figure()
    paints["accuracy-confidence-intensity-5"](figure)
    lines = figure.axes[0].get_lines()
    assert len(lines) == len(results.methods)
    for method, line in enumerate(lines):
        np.testing.assert_array_equal(line.get_ydata(), by_confidence(results, method, [("fog", 5)])[1])


def test_intervals_of_two_seeds_or_one_shift_vary_with_training():
    hardly = "hardly how they vary with training"
    more = np.random.default_rng(0).random((2, 2, 4))
    assert any(hardly in sentence for sentence in alarms(two(more[:, :1])))
    for values in (more, more[:, :, :1], more[:, :1, :1]):
        told = [sentence for sentence in alarms(two(values)) if sentence.startswith("Only ")]
        assert len(told) == 1
        assert hardly not in told[0]


def test_a_high_auroc_is_not_all_pairs():
    results = two(np.array([[[1.0, 2.0]], [[1.1, 2.1]]]))
    auroc = np.full((2, 1, 4), np.nan)
    auroc[:, 0, 3] = 0.9968, 0.9
    values = {name: np.concatenate([each, np.full((2, 1, 1), np.nan)], 2) for name, each in results.values.items()}
    seen = replace(results, test_sets=[*results.test_sets, ("ood:x", 0)], values=values | {"auroc": auroc})
    assert any("AUROC of 0.997: in 99.7 % of all pairs" in sentence for sentence in verdict(seen))


def test_a_seed_that_is_not_finished_does_not_change_the_sets():
    values = np.array([[[1.0, 2.0], [1.2, np.nan]], [[1.1, 2.1], [1.3, 2.3]]])
    assert two(values).common("nll") == {("shift0", 5)}
    values[0, 1] = np.nan  # not begun: it does not count
    assert two(values).common("nll") == {("shift0", 5), ("shift1", 5)}


def test_the_trend_with_the_intensity_is_over_the_seeds_that_have_shifts():
    """The second seed of M0 has clean images only, and is worse there than the first one under any shift."""
    cells = [CLEAN, ("fog", 1), ("fog", 3), ("fog", 5)]
    values = np.array([[[1.0, 2.0, 3.0, 4.0], [9.0, *[np.nan] * 3]], [[4.0, 3.0, 2.0, 1.0], [4.1, 3.1, 2.1, 1.1]]])
    methods = [MethodFacts(f"M{n}", n, seeds=(0, 1)) for n in range(2)]
    results = Results("t", "s", ("",), methods, cells, {"nll": values}, {}, {}, {}, studies=("t",))
    (row,) = spearman(results).rows
    assert [entry.value for entry in row[1:]] == [1.0, -1.0]


def test_a_method_without_shifts_is_named():
    told = alarms(two(np.array([[[1.0, 2.0]], [[np.nan, np.nan]]])))
    assert "No results under shift yet: M1." in told


def test_seeds_keep_their_place(copy):
    """Of a method with seed 1 alone, the value stands beside the others' seed 1."""
    results = results_of(copy(*without(f"method = '{FIRST}' AND seed = 0")))
    assert results.seed_numbers == [0, 1]
    found = results.at("nll", CLEAN)
    assert np.isnan(found[0]).tolist() == [True, False]
    other = side_by_side(results, results, ("a", "b"))
    assert np.isnan(other.at("nll", CLEAN)[[0, 3]]).tolist() == [[True, False]] * 2


def test_pairs_need_the_same_seeds():
    with pytest.raises(InputError, match="3 and 2 seeds cannot be compared in pairs"):
        over_seeds((1.0, 2.0, 3.0), (1.0, 2.0), same_seeds=True)
    with pytest.raises(InputError, match="3 and 2 seeds cannot be compared in pairs"):
        over_shifts(np.ones((3, 4, 1)), np.ones((2, 4, 1)), lambda values: float(values.mean()), same_seeds=True)


def test_missing_counts_what_the_recipe_asks_for(copy):
    """Results of a row that the recipe no longer names do not stand for those that are missing."""
    folder = copy(*without(f"method = '{FIRST}' AND shift = 'fog'"))
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite", isolation_level=None)) as db:
        db.execute(
            "INSERT INTO cells SELECT 'Old', seed, shift, severity, rows, samples, seconds, run FROM cells "
            f"WHERE method = '{SECOND}'"
        )
        db.execute(
            f"INSERT INTO rows SELECT 'Old', seed, shift, severity, metric, value FROM rows WHERE method = '{SECOND}'"
        )
        check(db)
    results = results_of(folder)
    assert results.missing == 4
    assert any("also has results of Old" in note for note in alarms(results))


def test_sets_of_methods_outside_the_recipe_are_left_out_too(copy):
    """Only a method that the recipe no longer names was evaluated on fog, at intensity 5 and on photographs."""
    gone = "severity = 5 OR shift IN ('fog', 'ood:photographs')"
    folder = copy(
        *without(f"method IN ('{FIRST}', '{SECOND}') AND ({gone})"),
        "UPDATE meta SET value = substr(value, 1, instr(value, '[[methods]]' || char(10) || 'name = \"</script>') - 1) "
        "WHERE key = 'recipe'",
    )
    results = results_of(folder)
    assert results.names == [FIRST, SECOND]
    assert results.test_sets == [CLEAN, ("gaussian_noise", 1), ("contrast", 1)]
    assert "over 2 kinds of shift at 1 intensity" in verdict(results)[0].lower()
    told = " ".join(alarms(results))
    assert "shifted test sets" not in told
    assert "</script>" in told  # it says whose results are left out
    quartiles = next(table for table in all_tables(results) if table.name == "quartiles")
    assert quartiles.title == "Quartiles at intensity 1"
    assert all(math.isfinite(cell.value) for row in quartiles.rows for cell in row[1:])


def test_runs_with_other_versions_are_named(copy):
    folder = copy(
        'UPDATE runs SET versions = \'{"torch": "2.6.0"}\'',
        "INSERT INTO runs SELECT 2, started, finished, seconds, engine, 'cuda:0', recipe, '{\"torch\": \"2.11.0\"}', "
        "revision, hardware FROM runs",
        "UPDATE cells SET run = 2 WHERE seed = 1",
    )
    told = " ".join(alarms(results_of(folder)))
    assert "different versions of torch (2.11.0, 2.6.0)" in told
    assert "different kinds of device (cpu, cuda)" in told


def test_the_time_of_a_killed_run_is_that_of_its_results(copy):
    assert "computed in 12 s" in results_of(copy()).source
    folder = copy(
        "UPDATE runs SET seconds = NULL",
        "UPDATE cells SET seconds = 2.5",
        "UPDATE history SET data = '{\"seconds\": 7.0}' WHERE epoch < 3",
    )
    with contextlib.closing(sqlite3.connect(folder / "study.sqlite")) as db:
        cells, epochs = (db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("cells", "history"))
    assert (cells, epochs) == (54, 24)
    # the three networks of an epoch took the same time, as those that train together: it counts once
    assert results_of(folder).source.endswith(f"computed in at least {round((54 * 2.5 + 3 * 7.0) / 60)} min")
    folder = copy(
        "INSERT INTO runs SELECT 2, started, finished, 600.0, engine, device, recipe, versions, revision, hardware "
        "FROM runs"
    )
    assert results_of(folder).source.endswith(f"computed in at least {round((54 * 2.5 + 3 * 7.0 + 600) / 60)} min")


# two studies


def test_two_studies_of_other_data_are_not_compared_without_a_word(copy, study_folder):
    before = results_of(study_folder)
    told = "The two studies differ in "

    def said(*statements: str) -> str:
        both = side_by_side(before, results_of(copy(*statements)), ("before", "after"))
        return next((sentence for sentence in alarms(both) if sentence.startswith(told)), "")

    assert said() == ""  # the same study, without digests
    assert said("INSERT INTO data VALUES('clean', 'ab')") == ""  # only one of them has a digest
    assert said("UPDATE meta SET value = replace(value, 'mnist5k', 'cifar10') WHERE key = 'recipe'").startswith(
        f"{told}the test data: differences between their results may come from that"
    )
    bins = said("UPDATE meta SET value = replace(value, 'bins = 15', 'bins = 20') WHERE key = 'recipe'")
    assert bins.startswith(f"{told}the test data, the number of bins (15 and 20):")
    seed = "UPDATE meta SET value = replace(value, 'shift_seed = 0', 'shift_seed = 7') WHERE key = 'recipe'"
    assert "the seed of the shifts (0 and 7)" in said(seed)
    assert "shifts" not in said(*without("severity > 0"))  # nothing shifted is compared


def test_digests_decide_whether_two_studies_have_the_same_data(copy):
    prints = "INSERT INTO data VALUES('clean', 'ab'), ('ood:photographs', 'cd'), ('training', 'ef')"
    before = results_of(copy(prints))
    moved = "UPDATE meta SET value = replace(value, 'mnist5k', 'mine.npz') WHERE key = 'recipe'"
    after = results_of(copy(moved, "UPDATE data SET digest = 'other' WHERE name = 'training'"))
    assert not any("differ in" in note for note in side_by_side(before, after, ("a", "b")).notes)
    after = results_of(copy("UPDATE data SET digest = 'other' WHERE name != 'training'"))
    (note,) = (note for note in side_by_side(before, after, ("a", "b")).notes if "differ in" in note)
    assert "differ in the test data, the data 'ood:photographs':" in note


# what is printed


def test_small_numbers_and_narrow_intervals_show():
    assert Entry(0.00004, 0.00002, 0.00006).text == "4e-05 (2e-05 … 6e-05)"
    assert Entry(0.12346, 0.123451, 0.123459).text == "0.1235 (0.12345 … 0.12346)"
    assert Entry(0.0).text == "0.0000"
    assert Entry(2.5, 2.5, 2.5).text == "2.500 (2.500 … 2.500)"
    # on the page: three digits, more if the bounds would look the same
    assert Entry(0.96884, 0.80123, 1.16149).html == "0.969<br><small>0.801\u2009…\u20091.16</small>"
    assert Entry(0.03644, 0.0348, 0.038, best=True).html == "<b>0.0364</b><br><small>0.0348\u2009…\u20090.0380</small>"
    assert Entry(0.12344, 0.12341, 0.12349).html == "0.123<br><small>0.1234\u2009…\u20090.1235</small>"
    assert Entry(0.99961, 0.99949, 1.0).html == "0.9996<br><small>0.999\u2009…\u20091.00</small>"
    assert Entry(0.90404).html == "0.904"
    assert Entry(math.nan, 0.1, 0.2).html == "–"
    table = Table("t", "T", "C", ["", "x"], [["a", Entry(0.0003, 0.0002, 0.0004)]])
    assert "0.0002\u2009…\u20090.0004" in table.html()
    assert "0.000 " not in table.html()
    tiny = verdict(two(np.array([[[4e-4, 5e-4]], [[7e-4, 8e-4]]])))
    assert "NLL of 0.00045" in tiny[0]


def test_nothing_is_bold_where_nothing_says_how_it_varies():
    one = np.array([[[0.1]], [[0.2]]])
    entries = [cell for row in ranking(two(one)).rows for cell in row if isinstance(cell, Entry)]
    assert entries
    assert not any(entry.best for entry in entries)
    more = np.array([[[0.1, 0.2, 0.3]], [[0.2, 0.3, 0.4]]])
    column = list(ranking(two(more)).head).index("shifted: NLL")
    assert [row[column].best for row in ranking(two(more)).rows] == [True, False]
    alone = two(np.array([[[0.1]]]))
    assert all(isinstance(table, Table) for table in all_tables(alone))
    assert math.isnan(spread(one).interval(0)[0])


def test_a_picture_that_cannot_be_read_is_left_blank(copy, tmp_path, monkeypatch):
    monkeypatch.setattr(
        exports, "all_figures", lambda results: [one for one in all_figures(results) if one[0] == "gallery"]
    )
    folder = copy("UPDATE gallery SET data = x'89504e47ffff' WHERE shift = 'fog'", *without("shift = 'contrast'"))
    written = write_figures(results_of(folder), tmp_path / "figures", progress=False)
    assert [path.name for path in written] == ["gallery.png", "gallery.svg"]


def unfinished_trend(kinds: int = 4) -> Results:
    """NLL grows with the intensity for every shift; the hard shifts are finished at intensity 1 only."""
    severities = (1, 3, 5)
    cells = [CLEAN, *((f"shift{k}", level) for k in range(kinds) for level in severities)]
    row = [0.1] + [k + level / 10 if k < 2 or level == 1 else np.nan for k in range(kinds) for level in severities]
    values = np.array([[row, row], [row, row]])
    methods = [MethodFacts(f"M{n}", n, seeds=(0, 1)) for n in range(2)]
    return Results("t", "s", ("",), methods, cells, {"nll": values}, {}, {}, {}, studies=("t",))


def test_the_trend_with_the_intensity_is_over_the_shifts_that_have_every_intensity():
    results = unfinished_trend()
    table = spearman(results)
    (row,) = table.rows
    assert [entry.value for entry in row[1:]] == [1.0, 1.0]
    assert "(0, 1, 3, 5) and the mean over the 2 of 4 kinds of shift that have all of them" in table.caption
    assert study_figure(results, "M0", "nll", "", "spearman").by_seed == (1.0, 1.0)
    whole = spearman(unfinished_trend(2))
    assert "between the intensity (0 … 5) and the mean over shifts." in whole.caption
    assert [entry.value for entry in whole.rows[0][1:]] == [1.0, 1.0]


def test_the_verdict_on_an_unfinished_study_counts_its_test_sets():
    values = unfinished_trend().values["nll"].copy()
    values[0] += 0.01
    said = " ".join(verdict(replace(unfinished_trend(), values={"nll": values})))
    assert "over 8 test sets of 4 kinds of shift it predicts best" in said
    whole = unfinished_trend(2)
    worse = np.concatenate([whole.values["nll"][:1] + 0.01, whole.values["nll"][1:]])
    assert "over 2 kinds of shift at 3 intensities it predicts best" in " ".join(
        verdict(replace(whole, values={"nll": worse}))
    )


def test_the_trend_of_two_studies_is_over_the_intensities_that_both_have():
    cells = [CLEAN, *(("fog", level) for level in range(1, 6))]
    values = np.array([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], [[6.0, 5.0, np.nan, 4.0, np.nan, 3.0]]])
    methods = [MethodFacts(f"M{n}", n, study=n, seeds=(0,)) for n in range(2)]
    results = Results("t", "s", ("",), methods, cells, {"nll": values}, {}, {}, {}, studies=("a", "b"))
    table = spearman(results)
    assert [entry.value for entry in table.rows[0][1:]] == [1.0, -1.0]
    assert "(0, 1, 3, 5) and the mean over the 1 of 1 kinds of shift" in table.caption
    none = replace(results, values={"nll": np.where(np.arange(6) > 0, np.nan, values)})
    assert all(np.isnan(entry.value) for entry in spearman(none).rows[0][1:])


@pytest.mark.parametrize("same_seeds", [True, False])
@pytest.mark.parametrize(("seeds", "others"), [(2, 2), (3, 3), (3, 5), (10, 10)])
def test_intervals_over_shifts_have_students_t_for_the_seeds(seeds: int, others: int, same_seeds: bool):
    """With the same values for every shift, only the seeds vary: the interval is that of a t-test.

    A bootstrap of the seeds has 0.78 of the cases in its interval with three seeds, not 0.95.
    """
    if same_seeds and seeds != others:
        pytest.skip("pairs need the same seeds")
    rng = np.random.default_rng(seeds)
    first, second = 3 + rng.normal(size=seeds), 1 + rng.normal(size=others)
    (low, high), wanted = (
        over_shifts(*(np.tile(each[:, None], 4) for each in (first, second)), np.mean, same_seeds=same_seeds)[1:],
        over_seeds(tuple(first), tuple(second), same_seeds=same_seeds),
    )
    assert high - low == pytest.approx(wanted.high - wanted.low, rel=0.2)  # the ends of 4,000 replicates lie far out
    assert (low + high) / 2 == pytest.approx(wanted.value, abs=0.1 * (wanted.high - wanted.low))


def test_one_seed_does_not_vary_over_shifts():
    values = np.arange(8.0).reshape(1, 8)
    result = over_shifts(values, np.zeros((1, 8)), np.mean)
    assert 0 < result.low < result.value < result.high < 7
    assert over_shifts(values, values, np.mean)[1:] == (0.0, 0.0)
