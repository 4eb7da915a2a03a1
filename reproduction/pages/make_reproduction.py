"""Fill the generated parts of the pages about CIFAR-10 (`PAGES`) from the published rows and the paper's figures.

    python reproduction/pages/make_reproduction.py            # seconds; reads reproduction/results
    python reproduction/pages/make_reproduction.py --check    # writes nothing; ends with 1 where a file is out of date

Text outside the marks (see avuc.report.markers) is written by hand and stays. Sentences about differences, and which
row of our recipe is the one to be judged, are in reproduction/pages/reproduction.toml.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import make_studies
from reproduction_best import against_targets, best_row, rows_of_best
from reproduction_chart import flow_chart
from reproduction_choice import rehearsals
from reproduction_decision import decision, detection, intervals, pilot
from reproduction_decision import variants as variants_by_training
from reproduction_factorial import GAIN_FIGURE, effects, errors_left, gain_drawing, gain_values, progress
from reproduction_findings import finding_drawings, finding_values
from reproduction_more import ablation, beta, code_path, cost, curves, drawings, without_threshold
from reproduction_past import choice, past
from reproduction_seeds import by_seed, difference_text, paired_seeds, reproduced, svhn_readings, switches, variants
from reproduction_tables import BESIDE, NOT_RUN, PERCENT, Remarks, Study, markdown, means, number, ours
from reproduction_worth import worth

from avuc.core.atomic import atomic_path, write_text
from avuc.core.errors import InputError, run_script
from avuc.report.markers import block_names, fill
from avuc.report.study.effort import effort_of
from avuc.report.study.paper_comparison import Published, read_published
from avuc.report.study.results import read_results
from avuc.study.grid import Plan
from avuc.study.store import Store

HERE = Path(__file__).parent
HOME = HERE.parents[1]
DOCS = HOME / "docs"
PAGES = {
    DOCS / "reproduction" / "index.md": "docs/reproduction/index.md",
    DOCS / "reproduction" / "tables.md": "docs/reproduction/tables.md",
    DOCS / "reproduction" / "when-avuc-helps.md": "docs/reproduction/when-avuc-helps.md",
    DOCS / "when-to-use-avuc.md": "docs/when-to-use-avuc.md",
    DOCS / "guide" / "calibration.md": "docs/guide/calibration.md",
    HOME / "README.md": "README.md",
}
# what `make reproduce` runs, by folder
STUDIES = {
    "paper": "cifar10-paper",
    "code": "cifar10-code",
    "code-pretrained": "cifar10-code-pretrained",
    "code-switches": "code-switches",
    "beta": "beta-ablation",
    "ablation": "cifar10-ablation",
    "choice": "cifar10-choice",
    "best": "cifar10-best",
    "factorial": "factorial",
    "factorial-tenth": "factorial-tenth",
    "baselines": "baselines",
    "past-choice": "past-choice",
    "past": "past",
}
RESULTS = HOME / "reproduction" / "results"
SVHN = RESULTS / "cifar10" / "code" / "svhn.csv"
PILOT = RESULTS / "factorial-pilot.csv"
CHART = "when-to-use-avuc.svg"
MOST_NAMED = 12  # methods that are named one by one where they are missing
IN_README = ("Vanilla", "Temp scaling", "Ensemble", "Dropout")


def read_studies(folder: Path) -> dict[str, Study]:
    """The published studies: the folder itself is `paper` (as in the text); the others by their folders' names."""
    found = {"paper": folder} if (folder / "study.sqlite").is_file() else {}
    found |= {path.parent.name: path.parent for path in sorted(folder.glob("*/study.sqlite"))}
    return {name: read_study(name, place) for name, place in found.items()}


def read_study(name: str, folder: Path) -> Study:
    store = Store(folder, create=False)
    try:
        return Study(name, read_results(store), store.recipe(), effort_of(store))
    finally:
        store.close()


def all_blocks(
    studies: Mapping[str, Study], printed: Sequence[Published], notes: Mapping[str, Any]
) -> tuple[dict[str, str], Remarks]:
    """Every generated block by its name, and what the remarks leave open."""
    remarks = Remarks(notes.get("remarks", {}))
    printed = [one for one in printed if one.dataset == "cifar10"]
    paper = studies.get("paper")
    base, chosen = notes.get("ablation", {}).get("base", ""), notes.get("best", {})
    best, also = chosen.get("row", ""), chosen.get("also", ())
    past_row = notes.get("past", {}).get("row", "")
    blocks = {name: NOT_RUN if paper is None else make(paper, printed, remarks) for name, make in BESIDE.items()}
    blocks |= {
        "status": status(studies),
        "means": NOT_RUN if paper is None else means(paper, printed),
        "code": code_path(studies, printed),
        "auavuc": without_threshold(studies),
        "ablation": ablation(studies, base),
        "beta": beta(studies, base),
        "choice": rehearsals(studies),
        "curves": curves(studies),
        "worth": worth(studies),
        "best": against_targets(studies, best, also),
        "best-rows": rows_of_best(studies),
        "baselines": means(studies["baselines"], printed) if "baselines" in studies else NOT_RUN,
        "past": past(studies, past_row),
        "past-choice": choice(studies, past_row),
        "cost": cost(studies),
        "reproduced": reproduced(studies, printed),
        "paired-seeds": paired_seeds(studies),
        "variants": variants(studies),
        "switches": switches(studies),
        "svhn": svhn_readings(SVHN) if "code" in studies else NOT_RUN,
        "factorial": progress(studies),
        "factorial-effects": effects(studies),
        "errors-left": errors_left(studies),
        "decision": decision(studies),
        "decision-intervals": intervals(studies),
        "detection-effects": detection(studies),
        "variant-effects": variants_by_training(studies),
        "pilot": pilot(PILOT) if "factorial" in studies else NOT_RUN,
        "cifar10": in_short(studies, printed, best, also, past_row),
    }
    return blocks, remarks


def status(studies: Mapping[str, Study]) -> str:
    """Which studies are published, and how complete they are."""
    if not studies:
        return NOT_RUN
    lines = []
    for name, study in studies.items():
        seeds = sorted({len(method.seeds) for method in study.results.methods})
        span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        sets = f"{len(study.results.shifts)} × {len(study.results.severities)} + {len(study.results.outside)}"
        judged = "held-out training images" if study.recipe.data.evaluate_on_validation else "test images"
        rows = f"{len(study.results.methods)} of {len(study.recipe.methods)}"
        lines.append([name, study.results.title, judged, rows, span, sets])
    head = ["study", "recipe", "judged on", "rows", "seeds", "shifts × intensities + other data"]
    partial = [f"{s.results.title} ({_gaps(s):,} results)" for s in studies.values() if _gaps(s)]
    text = markdown(head, lines) + not_run(studies)
    return text + (f"\n\n**Unfinished:** {'; '.join(partial)}." if partial else "")


def not_run(studies: Mapping[str, Study], *, methods: bool = True) -> str:
    """Studies that are not published, and with `methods` the methods without results of those that are."""
    rest = []
    for study in studies.values() if methods else ():
        # candidates that were not chosen are not evaluated on test images on purpose
        candidates = studies["past-choice"].results.names if study.name == "past" and "past-choice" in studies else ()
        missing = [name for name in study.not_run if name not in candidates]
        if missing:
            few = len(missing) <= MOST_NAMED
            named = ", ".join(missing) if few else f"{len(missing)} of {len(study.recipe.methods)} methods"
            rest.append(f"{named} of `{study.results.title}`")
    rest += [f"`{recipe}`" for name, recipe in STUDIES.items() if name not in studies]
    return f"\n\n**Not run yet:** {'; '.join(rest)}." if rest else ""


def _gaps(study: Study) -> int:
    """Results that are missing in rows that have some."""
    sets = len(Plan(study.recipe).sets)
    seeds = sum(len(study.recipe.seeds(study.recipe.method(name))) for name in study.not_run)
    return study.results.missing - seeds * sets


def in_short(
    studies: Mapping[str, Study],
    printed: Sequence[Published],
    named: str,
    also: Sequence[str] = (),
    past_row: str = "",
) -> str:
    """The table of README: a few methods at intensity 5, the paper's figure in brackets where it prints one."""
    if "paper" not in studies:
        return NOT_RUN
    rows = [("baselines" if "baselines" in studies else "paper", name, name) for name in IN_README]
    rows += [("code", name, f"{name}, as the released code trains it") for name in ("SVI", "SVI-AvUC")]
    rows += [
        ("best", name, f"{name} (ours, `cifar10-best`)")
        for name in dict.fromkeys([best_row(studies, named), *also])
        if name
    ]
    rows.append(("past", past_row, "posterior and cautious temperature, ResNet-56 (ours, `past`)"))
    rows.append(("past", "Ensemble + TS", "Ensemble of five + TS, ResNet-56 (`past`)"))
    means_of_paper = {
        (row.method, row.metric): row.value
        for row in printed
        if (row.dataset, row.intensity, row.statistic) == ("cifar10", "5", "mean")
    }
    lines = []
    for name, method, title in rows:
        if name not in studies or method not in studies[name].results.names:
            continue
        study = studies[name]
        line = [title, str(study.get(method, "ece", "5").seeds)]
        line += [ours(study.get(method, "accuracy", where), digits=1, percent=True) for where in ("clean", "5")]
        for metric in ("ece", "nll"):
            paper = means_of_paper.get((method, metric))
            brackets = f" ({number(paper, metric)})" if paper is not None and name not in ("best", "past") else ""
            line.append(ours(study.get(method, metric, "5"), metric) + brackets)
        lines.append(line)
    head = ["method", "seeds", "accuracy, clean", "accuracy, shifted", "ECE, shifted (paper)", "NLL, shifted (paper)"]
    return markdown(head, lines) + not_run(studies, methods=False)


def one_number(studies: Mapping[str, Study], printed: Sequence[Published]) -> Callable[[Sequence[str]], str]:
    """What stands in a figure's mark: STUDY | ROW | METRIC | WHERE [| STATISTIC].

    STUDY `printed` is the paper; WHERE `learned` is what training noted last, or the temperature. ROW may be a
    difference, "ROW − OTHER": it has its interval over the seeds that both have. If OTHER is of another study, it is
    "STUDY: ROW".
    """

    def find(words: Sequence[str]) -> str:
        if not 4 <= len(words) <= 5:
            raise InputError(f"figure: {' | '.join(words)}: expected STUDY | ROW | METRIC | WHERE [| STATISTIC]")
        name, row, metric, where, *rest = words
        if name == "printed":
            wanted = rest or ["mean", "value", "spearman"]
            found = [
                one.value
                for one in printed
                if (one.dataset, one.method, one.metric) == ("cifar10", row, metric)
                and one.statistic in wanted
                and where in (one.intensity, one.shift, f"{one.shift} {one.intensity}")
            ]
            value = found[0] if found else float("nan")
        elif name not in studies:
            value = float("nan")
        elif " − " in row:
            first, second = row.split(" − ")
            place, _, other = second.rpartition(": ")
            compared = ((name, first), (place or name, other))
            values = [by_seed(studies[s], each, metric, where) if s in studies else {} for s, each in compared]
            text = difference_text(*values, metric).strip("*")
            if text == "–":
                raise InputError(f"figure: {' | '.join(words)}: both methods need the same seeds, at least two")
            return text
        elif where == "learned":
            value = studies[name].learned(row, metric).value
        else:
            value = studies[name].get(row, metric, where, *rest).value
        text = number(value, metric, percent=metric in PERCENT)
        if text == "–":
            raise InputError(f"figure: {' | '.join(words)}: no such number; studies: {', '.join(studies) or 'none'}")
        return text + (" %" if metric in PERCENT else "")

    return find


def _ends_with(path: Path, values: str) -> bool:
    """Whether a picture is there and is of these values (see `gain_values`)."""
    return path.is_file() and path.read_text(encoding="utf-8").endswith(values)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS / "cifar10", help="published studies")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where a file is out of date")
    args = parser.parse_args(arguments)
    studies = read_studies(args.results)
    printed = read_published(RESULTS / "paper" / "tables.csv")
    notes = tomllib.loads((HERE / "reproduction.toml").read_text(encoding="utf-8"))
    blocks, remarks = all_blocks(studies, printed, notes)
    if make_studies.IN_README in block_names((HOME / "README.md").read_text(encoding="utf-8")):
        blocks[make_studies.IN_README] = make_studies.beyond_cifar(make_studies.all_studies())
    # all pages are made before the first is written, so that a missing number leaves every page as it was
    find = one_number(studies, printed)
    pages = {path: (name, path.read_text(encoding="utf-8")) for path, name in PAGES.items()}
    made = {path: fill(text, blocks, find, name) for path, (name, text) in pages.items()}
    stale = [name for path, (name, text) in pages.items() if made[path] != text]
    if not args.check:
        for path, (_, text) in pages.items():
            if made[path] != text:
                write_text(path, made[path])
    used = {name for path in PAGES for name in block_names(path.read_text(encoding="utf-8"))}
    for name in sorted(set(blocks) - used):
        print(f"no page has a place for the block {name!r}", file=sys.stderr)
    for table, row in remarks.missing:
        print(
            f"reproduction/pages/reproduction.toml: {row} differs in table {table!r} and has no sentence",
            file=sys.stderr,
        )
    chart = DOCS / "figures" / CHART
    if args.check:
        current = chart.is_file() and chart.read_text(encoding="utf-8") == flow_chart(studies)
        wanted = {GAIN_FIGURE: gain_values(studies), **finding_values(studies, printed, SVHN)}
        old = [name for name, values in wanted.items() if values and not _ends_with(DOCS / "figures" / name, values)]
        return 1 if stale or not current or old else 0
    write_text(chart, flow_chart(studies))
    figures = drawings(studies, notes.get("ablation", {}).get("base", "")) | gain_drawing(studies)
    figures |= finding_drawings(studies, printed, SVHN)
    for name, content in figures.items():
        with atomic_path(DOCS / "figures" / name) as path:
            path.write_bytes(content)
    print(f"{len(studies)} studies; changed: {', '.join(stale) or 'nothing'}")
    return 0


if __name__ == "__main__":
    run_script(main)
