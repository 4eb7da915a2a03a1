"""The table of the published studies, and what is missing of them, for docs/reproduction/tables.md and README.

`python reproduction/pages/make_reproduction.py` writes them into the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reproduction_tables import NOT_RUN, Study, markdown

from avuc.study.grid import Plan

# folder of the study → recipe; `make reproduce` runs them
STUDIES = {
    "paper": "cifar10-paper",
    "code": "cifar10-code",
    "code-pretrained": "cifar10-code-pretrained",
    "code-switches": "code-switches",
    "code-49500": "code-49500",
    "beta": "beta-ablation",
    "ablation": "cifar10-ablation",
    "choice": "cifar10-choice",
    "best": "cifar10-best",
    "factorial": "factorial",
    "factorial-tenth": "factorial-tenth",
    "factorial-noisy-labels": "factorial-noisy-labels",
    "factorial-resnet56": "factorial-resnet56",
    "baselines": "baselines",
    "past-choice": "past-choice",
    "past": "past",
}
MOST_NAMED = 12  # more missing methods than this are counted, not named


def status(studies: Mapping[str, Study]) -> str:
    """Return the table of the published studies, and what is missing."""
    if not studies:
        return NOT_RUN
    lines = []
    for name, study in studies.items():
        seeds = sorted({len(method.seeds) for method in study.results.methods})
        seeds_text = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        sets = f"{len(study.results.shifts)} × {len(study.results.severities)} + {len(study.results.outside)}"
        images = "held-out training images" if study.recipe.data.evaluate_on_validation else "test images"
        methods = f"{len(study.results.methods)} of {len(study.recipe.methods)}"
        lines.append([name, study.results.title, images, methods, seeds_text, sets])
    head = ["study", "recipe", "judged on", "rows", "seeds", "shifts × intensities + other data"]
    partial = [f"{study.results.title} ({_gaps(study):,} results)" for study in studies.values() if _gaps(study)]
    text = markdown(head, lines) + not_run(studies)
    some = [line for study in studies.values() for line in some_intensities(study)]
    text += f"\n\n**Not at every intensity:** {'; '.join(some)}." if some else ""
    return text + (f"\n\n**Unfinished:** {'; '.join(partial)}." if partial else "")


def some_intensities(study: Study) -> list[str]:
    """Return the methods that have only some of the study's intensities, grouped by those that they have.

    A method has an intensity if all its seeds have all shifts of the recipe.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for method in study.results.methods:
        counts = {level: study.get(method.name, "nll", str(level)).seeds for level in study.results.severities}
        levels = tuple(level for level, seeds in counts.items() if seeds == len(method.seeds))
        if len(levels) < len(counts):
            groups.setdefault(levels, []).append(method.name)
    return [
        f"{quoted(names)} of `{study.results.title}` ({', '.join(map(str, levels)) or 'none'} only)"
        for levels, names in groups.items()
    ]


def quoted(names: Iterable[str]) -> str:
    """Return the names in quotes: many of them have commas."""
    return ", ".join(f'"{name}"' for name in names)


def not_run(studies: Mapping[str, Study], *, methods: bool = True) -> str:
    """Return the unpublished studies; with `methods`, also the methods without results of the published studies."""
    not_run_yet = []
    for study in studies.values() if methods else ():
        # candidates that were not chosen are deliberately not evaluated on test images
        candidates = studies["past-choice"].results.names if study.name == "past" and "past-choice" in studies else ()
        missing = [name for name in study.not_run if name not in candidates]
        if missing:
            name_them = len(missing) <= MOST_NAMED
            text = quoted(missing) if name_them else f"{len(missing)} of {len(study.recipe.methods)} methods"
            not_run_yet.append(f"{text} of `{study.results.title}`")
    not_run_yet += [f"`{recipe}`" for name, recipe in STUDIES.items() if name not in studies]
    return f"\n\n**Not run yet:** {'; '.join(not_run_yet)}." if not_run_yet else ""


def _gaps(study: Study) -> int:
    """Return the number of missing results of methods that have some results."""
    sets = len(Plan(study.recipe).sets)
    seeds = sum(len(study.recipe.seeds(study.recipe.method(name))) for name in study.not_run)
    return study.results.missing - seeds * sets
