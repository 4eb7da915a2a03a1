"""Run one of the studies beyond CIFAR, publish its results, and rebuild its page.

    python reproduction/run_study.py camvid --data FOLDER        # make reproduce STUDY=camvid DATA=FOLDER
    python reproduction/run_study.py camvid --data FOLDER --minutes 8 -- --set train.epochs=1 --device cpu
    python reproduction/run_study.py camvid --publish-only --out out/studies/camvid --add

A study is a folder of reproduction/studies with a recipe. Its import paths ("data:load") refer to that folder;
`load` gets the folder of the data as `root`. The same command continues a stopped study; the exit code is 75 if
--minutes are over. With --add, published results stay, and those that they lack are added, so that a study can be run
in parts, on machines that are gone afterwards. These files are published in reproduction/results/studies/NAME:

    rows.csv      one line for each method, seed, shift and severity: number of rows and samples, and every metric
    models.csv    epochs, seconds and threshold of every trained model
    study.json    how many evaluations there are and how many are missing, and every run with its hardware and time
    recipe.toml   the recipe that was run, without paths of the machine
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from published_rows import COUNTS, KEY, MODELS, Publication, Row, join_recipes, minutes_of

from avuc.core.errors import InputError, run_script
from avuc.report.study.effort import effort_of
from avuc.study.store.recipe import StoredRecipe
from avuc.study.store.store import Store

HOME = Path(__file__).parents[1]
STUDIES = HOME / "reproduction" / "studies"
RESULTS = HOME / "reproduction" / "results" / "studies"
DIGITS = 5


def study_names() -> list[str]:
    """Return the names of all studies: folders with a recipe."""
    return sorted(path.parent.name for path in STUDIES.glob("*/recipe.toml"))


def run(folder: Path, data: Path | None, out: Path, minutes: float | None, changes: Sequence[str]) -> int:
    """Run a study in a new process, or continue it; return the exit code of `avuc study`."""
    command = [sys.executable, "-m", "avuc", "study", "recipe.toml", "--out", str(out.resolve())]
    if data is not None:
        command += ["--set", f"data.root={data.resolve()}"]
    if minutes is not None:
        command += ["--minutes", f"{minutes:g}"]
    # avuc looks for import paths in the working directory
    packages = os.pathsep.join([str(HOME / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": packages}
    return subprocess.run([*command, *changes], cwd=folder, env=env, check=False).returncode


def publish(out: Path, target: Path, *, add: bool = False) -> None:
    """Write the small files that the page is generated from.

    Args:
        out: folder of the study.
        target: folder for the published files.
        add: keep what is published, and add the results that it lacks.
    """
    store = Store(out, create=False)
    try:
        if store.lost:
            raise InputError(f"{store.damage()}; avuc study computes them again, then publish it")
        publication = _publication(store)
    finally:
        store.close()
    if add:
        publication = Publication.read(target).with_new(publication, out)
    size = publication.write(target)
    print(f"{out} -> {target}: {size / 1e6:.2f} MB")


def _publication(store: Store) -> Publication:
    """Return the results of a study as they are published: of all its runs, which may have other intensities."""
    texts = [store.stored_recipe().to_toml(), *(text for (text,) in store.select("SELECT recipe FROM runs"))]
    recipe = StoredRecipe.parse(reduce(join_recipes, dict.fromkeys(texts)))
    effort = effort_of(store)
    runs = [
        {
            "started": run.started,
            "seconds": round(run.at_least, 1),
            "device": run.device,
            "hardware": run.hardware,
            "torch": run.torch,
            "revision": run.revision,
        }
        for run in effort.runs
    ]
    rows = _rows(store)
    facts = {
        "name": recipe.study.name,
        "evaluations": len(rows),
        "missing": recipe.missing(store.done()),
        "models": effort.models,
        "minutes": minutes_of(runs),
        "runs": runs,
    }
    trained = store.select("SELECT method, seed, epochs, seconds, threshold FROM models")
    models = [_texts(dict(zip(MODELS, model, strict=True))) for model in trained]
    return Publication(rows, models, facts, recipe.to_toml())


def _rows(store: Store) -> list[Row]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {
        (method, seed, shift, severity): dict(
            zip((*KEY, *COUNTS), (method, seed, shift, severity, *counts), strict=False)
        )
        for method, seed, shift, severity, *counts in store.select("SELECT * FROM cells")
    }
    for *key, metric, value in store.rows():
        if tuple(key) in rows:
            rows[tuple(key)][metric] = value
    return [_texts(row) for row in rows.values()]


def _texts(row: Mapping[str, Any]) -> Row:
    return {name: str(_cell(value)) for name, value in row.items()}


def _cell(value: Any) -> Any:
    """Return a value as it is written to CSV.

    >>> _cell(0.123456789), _cell(float("nan")), _cell(None), _cell("fog")
    ('0.12346', '', '', 'fog')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="folder of reproduction/studies")
    parser.add_argument("--data", type=Path, help="folder of the data, `data.root` of the recipe")
    parser.add_argument("--out", type=Path, help="folder of the study (default: out/studies/NAME)")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes, with exit code 75")
    parser.add_argument("--publish-only", action="store_true", help="publish what is in --out; run nothing")
    parser.add_argument("--no-publish", action="store_true", help="run only, and publish nothing")
    parser.add_argument("--add", action="store_true", help="keep what is published; add the results that it lacks")
    parser.epilog = "After --: further arguments of avuc study."
    all_arguments = list(sys.argv[1:] if arguments is None else arguments)
    # argparse matches an empty list of positional arguments before it sees the options, so split the list here
    end = all_arguments.index("--") if "--" in all_arguments else len(all_arguments)
    args, changes = parser.parse_args(all_arguments[:end]), all_arguments[end + 1 :]
    names = study_names()
    if args.name not in names:
        raise InputError(f"{args.name}: no such study; there are {', '.join(names)}")
    folder, out = STUDIES / args.name, args.out or HOME / "out" / "studies" / args.name
    if args.data is not None and not args.data.is_dir():
        raise InputError(f"{args.data}: no such folder; --data names the folder of the data")
    if not args.publish_only:
        code = run(folder, args.data, out, args.minutes, changes)
        if code:
            return code
    if args.no_publish:
        return 0
    publish(out, RESULTS / args.name, add=args.add)
    sys.path.insert(0, str(HOME / "reproduction" / "pages"))
    import make_studies

    return make_studies.main([])


if __name__ == "__main__":
    run_script(main)
