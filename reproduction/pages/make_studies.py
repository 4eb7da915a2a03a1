"""Fill the generated parts of docs/studies/*.md from reproduction/results/studies.

    python reproduction/pages/make_studies.py            # takes seconds
    python reproduction/pages/make_studies.py --check    # writes nothing; exits with 1 if a page is out of date

Every folder of reproduction/studies has a page; a missing page is created. Text outside the marks (see
avuc.report.markers) is written by hand and is kept. reproduction/studies/NAME/page.toml says what the page shows:

    title = "CamVid"                        # in the table of docs/studies/index.md, with task, data and net
    task = "segmentation"
    data = "CamVid, 367 / 101 / 233 images"
    net = "U-Net"
    metrics = ["mean_iou", "nll", "ece"]    # columns of the tables
    compare = [["AvUC", "Cross-entropy"]]   # differences of pairs of methods; the first pair is in the index
    paper = "imagenet"                      # optional, for the block "paper": the paper's figures on that data set
    validation = true                       # also show the validation data, if the test data are already shifted
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction_tables import NOT_RUN
from studies_differences import difference, differences, holds, interval, says
from studies_paper import beside_the_paper
from studies_tables import (
    Published,
    by_intensity,
    clean,
    detection,
    held_out,
    quartiles,
    read_published,
    shifted,
)

from avuc.core.atomic import write_text
from avuc.core.errors import InputError, run_script
from avuc.report.markers import BLOCK, block_names, fill

HOME = Path(__file__).parents[2]
STUDIES = HOME / "reproduction" / "studies"
RESULTS = HOME / "reproduction" / "results" / "studies"
PAGES = HOME / "docs" / "studies"
METRICS = ("accuracy", "nll", "brier", "ece", "uce", "avu_auc", "aurc")
IN_README = "beyond-cifar"  # a block of README.md
SKELETON = """\
# {title}

{task}: {data}; {net}.

<!-- generated: run -->
<!-- end: run -->

## Clean test data

<!-- generated: clean -->
<!-- end: clean -->

## Under shift

<!-- generated: shifted -->
<!-- end: shifted -->

## Does AvUC help here?

<!-- generated: differences -->
<!-- end: differences -->

## Details

<!-- generated: details -->
<!-- end: details -->
"""


@dataclass(frozen=True)
class Study:
    """One study: the texts and choices of its page.toml, and its results if it was run."""

    name: str
    title: str
    task: str
    data: str
    net: str
    metrics: tuple[str, ...]
    compare: tuple[tuple[str, str], ...]
    published: Published | None
    validation: bool = False
    paper: str = ""

    @property
    def command(self) -> str:
        """Return the command that runs the study."""
        return f"make reproduce STUDY={self.name} DATA=FOLDER"


def read_study(folder: Path, results: Path) -> Study:
    """Read a study's folder and its published results."""
    path = folder / "page.toml"
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: is not valid TOML ({error})") from error
    known = ("title", "task", "data", "net", "metrics", "compare", "validation", "paper")
    if unknown := set(table) - set(known):
        raise InputError(f"{path}: no key {sorted(unknown)[0]!r}; there are {', '.join(known)}")
    pairs = table.get("compare", [])
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise InputError(f"{path}: compare: expected pairs of methods, found {pairs}")
    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    methods = {method["name"] for method in recipe["methods"]}
    for name in (name for pair in pairs for name in pair):
        if name not in methods:
            raise InputError(f"{path}: compare: the recipe has no method {name!r}")
    return Study(
        folder.name,
        table.get("title", folder.name),
        table.get("task", "study"),
        table.get("data", folder.name),
        table.get("net", recipe["net"]["name"]),
        tuple(table.get("metrics", METRICS)),
        tuple((first, second) for first, second in pairs),
        read_published(results / folder.name, folder / "recipe.toml"),
        bool(table.get("validation", False)),
        str(table.get("paper", "")),
    )


def status(study: Study) -> str:
    """Return whether the study was run, on which hardware and for how long, and the command that runs it."""
    if study.published is None:
        return f"*Not run yet.* It is run with\n\n    {study.command}"
    facts = study.published.facts
    hardware = sorted({run["hardware"] for run in facts["runs"]})
    versions = sorted({run["torch"] for run in facts["runs"]})
    missing = f" **{facts['missing']:,} evaluations are missing.**" if facts["missing"] else ""
    return (
        f"{facts['models']} networks, {facts['evaluations']:,} evaluations (one method with one seed on one test set), "
        f"{facts['minutes']:.1f} minutes on {', '.join(hardware)} with torch {', '.join(versions)}.{missing} "
        f"{_changed(study.published.changes)}[Rows of the results](../../reproduction/results/studies/{study.name}). "
        f"Run it again with\n\n    {study.command}"
    )


def _changed(changes: Sequence[str]) -> str:
    """Return a sentence with the settings that differ from the recipe of the study's folder; empty if none does."""
    return f"**It was run with changes: {'; '.join(f'`{change}`' for change in changes)}.** " if changes else ""


def blocks(study: Study) -> dict[str, str]:
    """Return the generated parts of a study's page, by name."""
    texts = {"run": status(study)}
    if study.paper:
        texts["paper"] = beside_the_paper(study.paper, study.published.results if study.published else None)
    if study.published is None:
        return texts | dict.fromkeys(("clean", "shifted", "differences", "details"), NOT_RUN)
    results, metrics = study.published.results, study.metrics
    texts["clean"] = clean(results, metrics)
    if study.validation and study.published.validation.names:
        texts["clean"] += "\n\n" + held_out(study.published.validation, metrics)
    texts["shifted"] = shifted(results, metrics) if results.shifts else "The study has no shifts."
    texts["differences"] = differences(results, metrics, study.compare) if study.compare else "No pair is compared."
    parts = [by_intensity(results, metrics), quartiles(results)] if results.shifts else []
    parts.append(detection(results))
    texts["details"] = "\n\n".join(part for part in parts if part) or "Nothing more."
    return texts


def index_table(studies: Sequence[Study]) -> str:
    """Return the table of docs/studies/index.md: one line for each study, with the effect of AvUC."""
    lines = [
        "| study | task | data | network | seeds | clean | shifted | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for study in studies:
        link = f"[{study.title}]({study.name}.md)"
        if study.published is None:
            cells = ["not run yet", "", "", ""]
        else:
            results, pair = study.published.results, study.compare[0] if study.compare else None
            effects = [says(results, pair, where) if pair else "" for where in ("clean", "shifted")]
            cells = [str(results.seeds), *effects, _minutes(study.published)]
        lines.append(f"| {' | '.join([link, study.task, study.data, study.net, *cells])} |")
    return "\n".join(lines)


def beyond_cifar(studies: Sequence[Study]) -> str:
    """Return the table of README: one line for each study, with the effect of AvUC under shift."""
    lines = [
        "| study | AvUC compared with | seeds | ECE, % | NLL | does it help? |",
        "|---|---|---:|---:|---:|---|",
    ]
    for study in studies:
        link = f"[{study.title}](docs/studies/{study.name}.md), {study.task}"
        if study.published is None or not study.compare:
            cells = [f"{study.compare[0][1]}" if study.compare else "", "", "", "", "not run yet"]
        else:
            results, pair = study.published.results, study.compare[0]
            where = "shifted" if results.shifts else "clean"
            effects = [interval(results, pair, metric, where) for metric in ("ece", "nll")]
            cells = [pair[1], str(difference(results, pair, "ece", where)[1]), *effects, holds(results, pair, where)]
        lines.append(f"| {' | '.join([link, *cells])} |")
    return "\n".join(lines)


def all_studies() -> list[Study]:
    """Return every study of reproduction/studies, with its results if it was run."""
    return read_studies(STUDIES, RESULTS)


def read_studies(studies: Path, results: Path) -> list[Study]:
    """Return every study of the folder `studies`, with its results in the folder `results` if it was run."""
    return [read_study(path.parent, results) for path in sorted(studies.glob("*/recipe.toml"))]


def _readme(text: str) -> str:
    """Return README.md with its block of studies filled; make_reproduction.py fills the other blocks."""
    if IN_README not in block_names(text):
        return text
    table = beyond_cifar(all_studies())

    def filled(match: re.Match[str]) -> str:
        return f"{match[1]}\n{table}\n\n{match[3]}" if match["name"] == IN_README else match[0]

    return BLOCK.sub(filled, text)


def _minutes(published: Published) -> str:
    """Return the minutes and the devices; a note if the recipe was changed or results are missing."""
    devices = sorted({"GPU" if run["device"].startswith("cuda") else "CPU" for run in published.facts["runs"]})
    notes = ["changed recipe"] * bool(published.changes) + ["incomplete"] * bool(published.facts["missing"])
    return ", ".join([f"{published.facts['minutes']:.1f} ({' and '.join(devices)})", *notes])


def make(studies: Path, results: Path, pages: Path) -> dict[Path, str]:
    """Return the text of every page by its path.

    Args:
        studies: folder of the studies.
        results: folder of the published results.
        pages: folder of the pages.
    """
    entries = read_studies(studies, results)
    texts = {}
    for study in entries:
        page = pages / f"{study.name}.md"
        text = page.read_text(encoding="utf-8") if page.is_file() else SKELETON.format(**vars(study))
        if "run" not in block_names(text):
            raise InputError(f"{page}: needs the block 'run', which says whether the study was run")
        texts[page] = fill(text, blocks(study), _no_number, str(page))
    index = pages / "index.md"
    texts[index] = fill(index.read_text(encoding="utf-8"), {"studies": index_table(entries)}, _no_number, str(index))
    return texts


def _no_number(parts: Sequence[str]) -> str:
    """Refuse the mark of a single number, which these pages do not have."""
    raise InputError(f"no number is generated for {' | '.join(parts)}; use a table")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is out of date")
    args = parser.parse_args(arguments)
    outdated, texts = [], make(STUDIES, RESULTS, PAGES)
    readme = HOME / "README.md"
    if readme.is_file():
        texts[readme] = _readme(readme.read_text(encoding="utf-8"))
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            outdated.append(path)
            if not args.check:
                write_text(path, text)
    for path in outdated:
        print(f"{path.relative_to(HOME)}: {'is out of date' if args.check else 'written'}")
    return 1 if args.check and outdated else 0


if __name__ == "__main__":
    run_script(main)
