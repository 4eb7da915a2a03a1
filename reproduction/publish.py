"""Publish finished studies: small SQLite copies without pictures, and tables; for the main study also its figures.

    python reproduction/publish.py out/reproduce reproduction/results/cifar10

Every study in the first folder becomes a folder of the same name in the second. The study named `paper` becomes the
second folder itself, so that `avuc report reproduction/results/cifar10` shows it. A copy leaves out data that is large
or that we may not publish. Its tables hold:

    rows        everything; of the factorial, whose 180 networks are too many, only METRICS
    history     everything, rounded; of the factorial, LOGGED of all epochs, and everything of each tenth epoch
    shown       single images of the clean set and the first seed, without pictures of mistakes
    curves      the first seed and the sets that figures show, without AvU curves and coverage of conformal sets (the
                latter would need all seeds and sets); of studies on held-out images, only the clean set
    gallery     nothing: pictures of test images, and CIFAR-10 states no licence
    entropies   nothing: entropies of single test images, which are only needed to continue a study
    recipes     without paths of the machine that ran the study; the study's recipe has the intensities of all runs

Studies on held-out images and the factorial have nothing in `shown`; the factorial has nothing in `curves`.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from avuc.core.atomic import atomic_path, write_text
from avuc.core.errors import InputError, run_script
from avuc.report.study.exports import file_names, write_tables
from avuc.report.study.figures import all_figures, saved
from avuc.report.study.results import read_results
from avuc.study.recipe.config import Recipe
from avuc.study.recipe.load import parse_recipe
from avuc.study.store.integrity import check, has_checks
from avuc.study.store.store import Store

MAIN = "paper"
FILE = "study.sqlite"
# the paper's figures show this shift at this intensity, too
ALSO_DRAWN = ("gaussian_blur", 3)
# studies whose name begins with this have too many networks to publish everything
LARGE = "factorial"
METRICS = ("accuracy", "aurc", "auroc", "avu_auc", "brier", "ece", "mean_confidence", "nll", "temperature", "threshold")
METRICS += ("uce",)
LOGGED, FULL_EPOCH = ("accuracy", "seconds", "images_per_second"), 10
# figures that are published, of the main study only; `avuc report` draws all figures of any study in a minute
DRAWN = r"box-(ece|uce|nll|brier|accuracy|avu_auc)|entropy-svhn.*"


def studies_below(folder: Path) -> dict[str, Path]:
    """Return the folder of every study by its name; `folder` itself is the main study."""
    main_study = {MAIN: folder} if (folder / FILE).is_file() else {}
    return main_study | {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{FILE}"))}


def small_copy(source: Path, target: Path) -> None:
    """Write a copy of the study's file that can be published; opening it later does not change it."""
    store = Store(source, create=False)
    store.close()
    if store.lost:
        raise InputError(f"{store.damage()}; avuc study computes them again, then publish it")
    target.mkdir(parents=True, exist_ok=True)
    with (
        atomic_path(target / FILE) as path,
        closing(sqlite3.connect(source / FILE)) as old,
        closing(sqlite3.connect(path, isolation_level=None)) as db,
    ):
        old.backup(db)
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("BEGIN")
        _leave_out(db)
        _shorten(db)
        _all_intensities(db)
        _without_paths(db)
        if has_checks(db):
            check(db)
        db.execute("COMMIT")
        db.execute("VACUUM")


def _has_results(folder: Path) -> bool:
    """Return whether a study has results on more than held-out images; the first step of an evaluation is theirs."""
    with closing(sqlite3.connect(folder / FILE)) as db:
        return db.execute("SELECT 1 FROM rows WHERE shift != 'validation' LIMIT 1").fetchone() is not None


def _leave_out(db: sqlite3.Connection) -> None:
    """Delete the rows that are not published."""
    highest_severity = db.execute("SELECT max(severity) FROM cells").fetchone()[0]
    db.execute("DELETE FROM gallery")
    db.execute("DELETE FROM entropies")
    db.execute("DELETE FROM shown WHERE shift != 'clean'")
    for table in ("shown", "curves"):
        first_seed = f"SELECT min(seed) FROM cells WHERE cells.method = {table}.method"
        db.execute(f"DELETE FROM {table} WHERE seed > ({first_seed})")
    recipe = _recipe(db)
    if recipe.data.evaluate_on_validation:
        db.execute("DELETE FROM shown")
        db.execute("DELETE FROM curves WHERE shift != 'clean'")
    if recipe.study.name.startswith(LARGE):
        db.execute("DELETE FROM shown")
        db.execute("DELETE FROM curves")
        db.execute(f"DELETE FROM rows WHERE metric NOT IN ({','.join('?' * len(METRICS))})", METRICS)
    shown_in_figures = (
        "shift IN ('validation', 'clean') OR shift LIKE 'ood:%' OR severity = ? OR (shift = ? AND severity = ?)"
    )
    # keep no curve of conformal sets: reports average them over all seeds and shifts
    db.execute(
        f"DELETE FROM curves WHERE name IN ('avu', 'conformal') OR NOT ({shown_in_figures})",
        (highest_severity, *ALSO_DRAWN),
    )


def _shorten(db: sqlite3.Connection) -> None:
    """Round the history of the training, and remove the mistakes from the examples."""
    for *key, text in db.execute("SELECT method, seed, shift, severity, data FROM shown").fetchall():
        data = json.dumps({**json.loads(text), "mistakes": []}, separators=(",", ":"))
        db.execute("UPDATE shown SET data=? WHERE method=? AND seed=? AND shift=? AND severity=?", (data, *key))
    recipe = _recipe(db)
    for *key, text in db.execute("SELECT method, seed, member, epoch, data FROM history").fetchall():
        # seconds keep six decimals: equal seconds identify networks that trained side by side
        record = {
            name: _rounded(value) if name != "seconds" else round(value, 6) for name, value in json.loads(text).items()
        }
        if recipe.study.name.startswith(LARGE) and (key[-1] + 1) % FULL_EPOCH:
            record = {name: value for name, value in record.items() if name in LOGGED}
        line = (json.dumps(record, separators=(",", ":")), *key)
        db.execute("UPDATE history SET data=? WHERE method=? AND seed=? AND member=? AND epoch=?", line)


def _recipe(db: sqlite3.Connection) -> Recipe:
    """Return the recipe of the study."""
    return parse_recipe(db.execute("SELECT value FROM meta WHERE key = 'recipe'").fetchone()[0])


def _rounded(value: object) -> object:
    """Return a float with five significant digits, which are enough to draw it; anything else unchanged."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _all_intensities(db: sqlite3.Connection) -> None:
    """Give the study its intensities of all runs: its recipe is that of the last run, which may have fewer."""
    recipe = _recipe(db)
    runs = [parse_recipe(text) for (text,) in db.execute("SELECT recipe FROM runs")]
    severities = tuple(sorted({level for each in (recipe, *runs) for level in each.study.severities}))
    if severities != tuple(recipe.study.severities):
        whole = replace(recipe, study=replace(recipe.study, severities=severities))
        db.execute("UPDATE meta SET value=? WHERE key = 'recipe'", (whole.stored_text(),))


def _without_paths(db: sqlite3.Connection) -> None:
    """Remove paths of the machine from every stored recipe."""
    columns = (("meta", "value", "key", "WHERE key = 'recipe'"), ("runs", "recipe", "id", ""))
    for table, column, key_column, where in columns:
        for key_value, text in db.execute(f"SELECT {key_column}, {column} FROM {table} {where}").fetchall():
            db.execute(f"UPDATE {table} SET {column}=? WHERE {key_column}=?", (_portable(text), key_value))


def _portable(text: str) -> str:
    """Return the recipe with names instead of paths; results do not depend on where the files were."""
    recipe = parse_recipe(text)
    ood = tuple(replace(entry, path="") if entry.first else entry.name for entry in recipe.study.others)
    weights = Path(recipe.net.weights).name if recipe.net.weights else ""
    portable = replace(
        recipe,
        study=replace(recipe.study, ood=ood),
        data=replace(recipe.data, root="", corruptions_dir=Path(recipe.data.corruptions_dir).name),
        net=replace(recipe.net, weights=weights),
    )
    return portable.stored_text()


def write_beside(folder: Path, drawn: str = DRAWN) -> None:
    """Write recipe.toml, the report's tables, and the figures whose name matches the pattern `drawn`."""
    store = Store(folder, create=False)
    try:
        results = read_results(store)
        write_text(folder / "recipe.toml", store.recipe().to_toml())
    finally:
        store.close()
    write_tables(results, folder / "tables")
    figures = [figure for figure in all_figures(results) if re.fullmatch(drawn, figure[0])] if drawn else []
    if figures:
        (folder / "figures").mkdir(exist_ok=True)
    files = file_names([name for name, _, _ in figures])
    for name, size, paint in figures:
        with atomic_path(folder / "figures" / f"{files[name]}.png") as path:
            path.write_bytes(saved(name, size, paint)["png"])


def main(source: Path, target: Path, *, figures: bool = True) -> None:
    """Publish every study of `source` into `target`."""
    studies = studies_below(source)
    if not studies:
        raise InputError(f"{source}: no study here ({FILE} is missing); expected a folder of studies")
    for name, folder in studies.items():
        published_folder = target if name == MAIN else target / name
        if not _has_results(folder):  # the pages could not be made from it
            print(f"{folder / FILE}: no results on test images yet; not published")
            continue
        small_copy(folder, published_folder)
        write_beside(published_folder, DRAWN if figures and name == MAIN else "")
        print(f"{folder / FILE} -> {published_folder / FILE}: {(published_folder / FILE).stat().st_size / 1e6:.1f} MB")


def from_command_line() -> None:
    """Run `main` with the two arguments of the command line."""
    if len(sys.argv) != 3:
        raise InputError("usage: python reproduction/publish.py FOLDER_OF_STUDIES TARGET")
    main(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    run_script(from_command_line)
