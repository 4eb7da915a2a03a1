"""Fill the generated parts of the pages about CIFAR-10 (`PAGES`) from the published results and the paper's figures.

    python reproduction/pages/make_reproduction.py            # takes seconds; reads reproduction/results
    python reproduction/pages/make_reproduction.py --check    # writes nothing; exits with 1 if a file is out of date

Text outside the marks (see avuc.report.markers) is written by hand and is kept. reproduction/pages/reproduction.toml
names the method of our recipe that is compared with the targets, and has the sentences that explain differences.
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
from reproduction_decision import all_decisions, decision, detection, intervals, pilot
from reproduction_decision import variants as variants_by_training
from reproduction_factorial import GAIN_FIGURE, effects, errors_left, gain_drawing, gain_values, progress
from reproduction_findings import finding_drawings, finding_values
from reproduction_more import ablation, beta, code_path, cost, curves, drawings, without_threshold
from reproduction_past import choice, past
from reproduction_second import second_network
from reproduction_seeds import by_seed, difference_text, paired_seeds, reproduced, svhn_readings, switches, variants
from reproduction_status import STUDIES as STUDIES
from reproduction_status import not_run, status
from reproduction_tables import BESIDE, NOT_RUN, PERCENT, Remarks, Study, markdown, means, number, ours
from reproduction_worth import worth

from avuc.core.atomic import atomic_path, write_text
from avuc.core.errors import InputError, run_script
from avuc.report.markers import block_names, fill
from avuc.report.study.effort import effort_of
from avuc.report.study.paper_comparison import Published, read_published
from avuc.report.study.results import read_results
from avuc.study.store.store import Store

HERE = Path(__file__).parent
HOME = HERE.parents[1]
DOCS = HOME / "docs"
PAGES = {
    DOCS / "reproduction" / "index.md": "docs/reproduction/index.md",
    DOCS / "reproduction" / "tables.md": "docs/reproduction/tables.md",
    DOCS / "reproduction" / "when-avuc-helps.md": "docs/reproduction/when-avuc-helps.md",
    DOCS / "when-to-use-avuc.md": "docs/when-to-use-avuc.md",
    DOCS / "guide" / "calibration.md": "docs/guide/calibration.md",
    DOCS / "concepts" / "avuc-pathology.md": "docs/concepts/avuc-pathology.md",
    DOCS / "reference" / "printed-loss.md": "docs/reference/printed-loss.md",
    HOME / "README.md": "README.md",
}
RESULTS = HOME / "reproduction" / "results"
# readings of SVHN by the models of two studies; the second file is optional
SVHN = (RESULTS / "cifar10" / "code" / "svhn.csv", RESULTS / "cifar10" / "code-49500" / "svhn.csv")
PILOT = RESULTS / "factorial-pilot.csv"
CHART = "when-to-use-avuc.svg"
IN_README = ("Vanilla", "Temp scaling", "Ensemble", "Dropout")


def read_studies(folder: Path) -> dict[str, Study]:
    """Return the published studies by name: `folder` itself is `paper`, the others have the names of their folders."""
    folders = {"paper": folder} if (folder / "study.sqlite").is_file() else {}
    folders |= {path.parent.name: path.parent for path in sorted(folder.glob("*/study.sqlite"))}
    return {name: read_study(name, study_folder) for name, study_folder in folders.items()}


def read_study(name: str, folder: Path) -> Study:
    """Return the study in a folder."""
    store = Store(folder, create=False)
    try:
        return Study(name, read_results(store), store.recipe(), effort_of(store))
    finally:
        store.close()


def all_blocks(
    studies: Mapping[str, Study], printed: Sequence[Published], notes: Mapping[str, Any]
) -> tuple[dict[str, str], Remarks]:
    """Return every generated block by its name, and the remarks; `notes` is reproduction.toml."""
    remarks = Remarks(notes.get("remarks", {}))
    printed = [entry for entry in printed if entry.dataset == "cifar10"]
    paper = studies.get("paper")
    base, best_notes = notes.get("ablation", {}).get("base", ""), notes.get("best", {})
    best_method, also_shown = best_notes.get("row", ""), best_notes.get("also", ())
    past_method = notes.get("past", {}).get("row", "")
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
        "best": against_targets(studies, best_method, also_shown),
        "best-rows": rows_of_best(studies),
        "baselines": means(studies["baselines"], printed) if "baselines" in studies else NOT_RUN,
        "past": past(studies, past_method),
        "past-choice": choice(studies, past_method),
        "cost": cost(studies),
        "reproduced": reproduced(studies, printed),
        "paired-seeds": paired_seeds(studies),
        "variants": variants(studies),
        "switches": switches(studies),
        "svhn": svhn_readings(SVHN) if "code" in studies else NOT_RUN,
        "factorial": progress(studies),
        "factorial-effects": effects(studies),
        "errors-left": errors_left(studies),
        "second-network": second_network(studies),
        "decision": decision(studies),
        "decision-all": all_decisions(studies),
        "decision-intervals": intervals(studies),
        "detection-effects": detection(studies),
        "variant-effects": variants_by_training(studies),
        "pilot": pilot(PILOT) if "factorial" in studies else NOT_RUN,
        "cifar10": in_short(studies, printed, best_method, also_shown, past_method),
    }
    return blocks, remarks


def in_short(
    studies: Mapping[str, Study],
    printed: Sequence[Published],
    named: str,
    also: Sequence[str] = (),
    past_method: str = "",
) -> str:
    """Return the table of README: a few methods at intensity 5, with the paper's figure in brackets if it prints one.

    `named` and `also` are methods of `cifar10-best`, `past_method` is the chosen method of `past`.
    """
    if "paper" not in studies:
        return NOT_RUN
    rows = [("baselines" if "baselines" in studies else "paper", name, name) for name in IN_README]
    rows += [("code", name, f"{name}, as the released code trains it") for name in ("SVI", "SVI-AvUC")]
    rows += [
        ("best", name, f"{name}, AugMix (`cifar10-best`)")
        for name in dict.fromkeys([best_row(studies, named), *also])
        if name
    ]
    rows.append(("past", past_method, "Posterior + cautious temperature, ResNet-56, AugMix (`past`)"))
    rows.append(("past", "Dropout + TS", "Dropout + TS, ResNet-56, AugMix (`past`)"))
    rows.append(("past", "Ensemble + TS", "Ensemble of five + TS, ResNet-56, AugMix (`past`)"))
    means_of_paper = {
        (entry.method, entry.metric): entry.value
        for entry in printed
        if (entry.dataset, entry.intensity, entry.statistic) == ("cifar10", "5", "mean")
    }
    lines = []
    for name, method, title in rows:
        if name not in studies or method not in studies[name].results.names:
            continue
        study = studies[name]
        cells = [title, str(study.get(method, "ece", "5").seeds)]
        cells += [ours(study.get(method, "accuracy", where), digits=1, percent=True) for where in ("clean", "5")]
        for metric in ("ece", "nll"):
            paper = means_of_paper.get((method, metric))
            brackets = f" ({number(paper, metric)})" if paper is not None and name not in ("best", "past") else ""
            cells.append(ours(study.get(method, metric, "5"), metric) + brackets)
        lines.append(cells)
    head = ["method", "seeds", "accuracy, clean", "accuracy, shifted", "ECE, shifted (paper)", "NLL, shifted (paper)"]
    return markdown(head, lines) + not_run(studies, methods=False)


def one_number(studies: Mapping[str, Study], printed: Sequence[Published]) -> Callable[[Sequence[str]], str]:
    """Return a function that replaces the mark of a figure, STUDY | ROW | METRIC | WHERE [| STATISTIC], by its number.

    STUDY `printed` is the paper. ROW is a method, or a difference "ROW − OTHER", which gets its interval over the seeds
    that both methods have; if OTHER is a method of another study, it is written "STUDY: ROW". WHERE `learned` is the
    last value that training logged, or the temperature.
    """

    def find(parts: Sequence[str]) -> str:
        """Return the number of a mark, whose parts are separated by "|"."""
        if not 4 <= len(parts) <= 5:
            raise InputError(f"figure: {' | '.join(parts)}: expected STUDY | ROW | METRIC | WHERE [| STATISTIC]")
        name, method, metric, where, *rest = parts
        if name == "printed":
            statistics = rest or ["mean", "value", "spearman"]
            matching = [
                entry.value
                for entry in printed
                if (entry.dataset, entry.method, entry.metric) == ("cifar10", method, metric)
                and entry.statistic in statistics
                and where in (entry.intensity, entry.shift, f"{entry.shift} {entry.intensity}")
            ]
            value = matching[0] if matching else float("nan")
        elif name not in studies:
            value = float("nan")
        elif " − " in method:
            first, second = method.split(" − ")
            other_study, _, other_method = second.rpartition(": ")
            values = [
                by_seed(studies[study_name], method_name, metric, where) if study_name in studies else {}
                for study_name, method_name in ((name, first), (other_study or name, other_method))
            ]
            text = difference_text(*values, metric).strip("*")
            if text == "–":
                raise InputError(f"figure: {' | '.join(parts)}: both methods need the same seeds, at least two")
            return text
        elif where == "learned":
            value = studies[name].learned(method, metric).value
        else:
            value = studies[name].get(method, metric, where, *rest).value
        text = number(value, metric, percent=metric in PERCENT)
        if name == "printed" and metric in PERCENT and text != "–":
            text = f"{100 * value:.4g}"  # with the decimals that the paper gives
        if text == "–":
            raise InputError(f"figure: {' | '.join(parts)}: no such number; studies: {', '.join(studies) or 'none'}")
        return text + (" %" if metric in PERCENT else "")

    return find


def _ends_with(path: Path, values: str) -> bool:
    """Return whether a figure exists and ends with these values (see `gain_values`)."""
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
    # all pages are filled before the first is written, so that a missing number leaves every page unchanged
    find = one_number(studies, printed)
    pages = {path: (name, path.read_text(encoding="utf-8")) for path, name in PAGES.items()}
    filled = {path: fill(text, blocks, find, name) for path, (name, text) in pages.items()}
    stale = [name for path, (name, text) in pages.items() if filled[path] != text]
    if not args.check:
        for path, (_, text) in pages.items():
            if filled[path] != text:
                write_text(path, filled[path])
    used_blocks = {name for path in PAGES for name in block_names(path.read_text(encoding="utf-8"))}
    for name in sorted(set(blocks) - used_blocks):
        print(f"no page has a place for the block {name!r}", file=sys.stderr)
    for table, method in remarks.missing:
        text = f"reproduction/pages/reproduction.toml: {method} differs in table {table!r} and has no sentence"
        print(text, file=sys.stderr)
    chart = DOCS / "figures" / CHART
    if args.check:
        current = chart.is_file() and chart.read_text(encoding="utf-8") == flow_chart(studies)
        expected = {GAIN_FIGURE: gain_values(studies), **finding_values(studies, printed, SVHN)}
        outdated = [
            name for name, values in expected.items() if values and not _ends_with(DOCS / "figures" / name, values)
        ]
        return 1 if stale or not current or outdated else 0
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
