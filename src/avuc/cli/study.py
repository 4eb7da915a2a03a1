"""`avuc study`: train and judge everything a recipe names, on every shift."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console

if TYPE_CHECKING:
    from avuc.study.recipe import Recipe

__all__ = ["COMMAND"]

OUT_OF_TIME = 75  # EX_TEMPFAIL: nothing is wrong, try again later

TEXT = """\
Train every method of a recipe with every seed, judge each on validation data, clean test data, every shift at every
severity and data of another kind, and put the results into one SQLite file. Stop it at any time, any way: the same
command goes on where it was. Start it twice on one folder and the two share the work.

RECIPE is a .toml file or the name of one that comes with avuc; 'avuc study --list' names them."""
EXAMPLES = """\
examples:
  avuc study demo --out out/demo
  avuc study cifar10-paper --out out/paper --set study.seeds=[0,1] --set train.epochs=60
  avuc study cifar10-best --dry-run
  avuc study cifar10-paper --out out/paper --only SVI,SVI-AvUC --minutes 9
  avuc study my-recipe.toml --engine ray
  avuc study --export out/paper --out results/paper"""


def arguments(parser: Parser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a .toml file, or a name")
    parser.add_argument("--list", action="store_true", help="name the recipes that come with avuc")
    parser.add_argument("--out", metavar="DIR", help="folder of the study (default: out/NAME)")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="who does the work (default: local)"
    )
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda:0 or cuda:0,cuda:1; auto: every GPU, else the CPU"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the recipe: train.epochs=2, methods.SVI.objective.beta=1; may be repeated",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW[,ROW]",
        help="train and judge these rows now; may be repeated",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="stop cleanly after so long (exit code 75); the same command goes on"
    )
    parser.add_argument("--export", metavar="DIR", help="write the study in DIR as a small copy to --out; runs nothing")
    parser.add_argument("--predictions", action="store_true", help="also keep every prediction (.safetensors)")
    parser.add_argument("--no-report", action="store_true", help="no page at the end; avuc report DIR writes it later")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done and what it costs")


def run(args: Namespace) -> int:
    from avuc.core.errors import InputError
    from avuc.study.recipe import load_recipe, recipe_names

    console = Console()
    if args.list:
        for name in recipe_names():
            console.line(name)
        return 0
    if args.export is not None:
        return _export(args, console)
    if args.recipe is None:
        raise InputError(f"name a recipe: a .toml file, or one of {', '.join(recipe_names())}")
    changes = [*args.set, "study.predictions=true"] if args.predictions else args.set
    recipe = load_recipe(args.recipe, changes)
    only = _rows(args.only, recipe)
    if args.minutes is not None and not args.minutes > 0:
        raise InputError(f"--minutes: expected a number above 0, found {args.minutes}")
    if args.dry_run:
        return _plan(recipe, only, args.device, console)
    from avuc.cli.report import conclude
    from avuc.report.study.results import read_results
    from avuc.study.engine import run_study
    from avuc.training.fit import OutOfTime

    began = time.monotonic()
    out = Path(args.out) if args.out else Path("out") / _folder(recipe.study.name)
    try:
        store = run_study(recipe, out, engine=args.engine, device=args.device, minutes=args.minutes, only=only)
    except OutOfTime as error:
        print(f"avuc: {error}", file=sys.stderr)
        return OUT_OF_TIME
    except KeyboardInterrupt:
        print("avuc: interrupted; everything finished is kept: the same command goes on", file=sys.stderr)
        return 130
    if not args.no_report:
        conclude(read_results(store), out / "report.html", console)
    console.line(f"{len(store.done()):,} cells in {store.path}; this run took {time.monotonic() - began:.0f} s", "dim")
    console.line(f"Figures and tables as files: avuc report {out}")
    if args.no_report:
        return 0
    console.line(f"Open the report in a browser: {(out / 'report.html').resolve()}", "bold")
    return 0


def _folder(name: str) -> str:
    """A study's name as a folder's: one below `out`, whatever the name is.

    >>> _folder("cifar10-paper"), _folder("../mine")
    ('cifar10-paper', 'mine-b8bc1f6f')
    """
    from avuc.study.names import marked

    plain = re.fullmatch(r"\w[\w .+-]{0,99}", name) is not None and not name.endswith((".", " "))
    return name if plain else marked(name, "study")


def _rows(given: list[str], recipe: Recipe) -> list[str]:
    """Names of rows, with commas between them; a name may have one in it."""
    names = {row.name for row in recipe.methods}
    return [
        name for text in given for name in ([text] if text in names else [part.strip() for part in text.split(",")])
    ]


def _export(args: Namespace, console: Console) -> int:
    from avuc.core.errors import InputError
    from avuc.study.export import export_study

    if args.recipe is not None or args.out is None:
        raise InputError("--export DIR --out FOLDER copies a study; it takes no recipe")
    path = export_study(args.export, args.out)
    console.line(f"{path.stat().st_size / 1e6:.1f} MB in {path}; avuc report {args.out} reads it")
    return 0


def _plan(recipe: Recipe, only: list[str], device: str, console: Console) -> int:
    from avuc.study.cost import cost_of
    from avuc.study.engine import devices_for
    from avuc.study.grid import Plan

    plan = Plan(recipe, tuple(only))
    head = ("row", "trained as", "seeds", "draws", "what it is")
    rows = []
    for row in recipe.methods:
        if only and row.name not in only:
            continue
        trained = repr(row.method) if row.method is not None else f"the model of {row.of}"
        how = row.objective.kind if row.method is not None else row.calibrator.kind if row.calibrator else "fewer draws"
        seeds = ", ".join(str(seed) for seed in recipe.seeds(row))
        rows.append((row.name, how, seeds, str(recipe.samples(row)), trained))
    console.table(head, rows, "<<<><")
    console.line()
    for sentence in cost_of(plan, devices_for(device)[0]).sentences():
        console.paragraph(sentence)
    return 0


COMMAND = Command(
    summary="train and judge every method of a recipe on every shift",
    text=TEXT,
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
