"""`avuc study`: train every method of a recipe, and evaluate it on every shift."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console

if TYPE_CHECKING:
    from avuc.study.recipe.config import Recipe

OUT_OF_TIME = 75  # EX_TEMPFAIL: nothing is wrong, try again later

TEXT = """\
Train every method of a recipe with every seed. Evaluate each on validation data, clean test data, every shift at every
severity, and out-of-distribution data. All results go into one SQLite file. You can interrupt it at any time: the same
command resumes it. If you start it twice on one folder, the two processes share the work.

RECIPE is a .toml file, or the name of a recipe that comes with avuc; 'avuc study --list' lists the names."""
EXAMPLES = """\
examples:
  avuc study demo --out out/demo
  avuc study cifar10-paper --out out/paper --set study.seeds=[0,1] --set train.epochs=60
  avuc study cifar10-best --dry-run
  avuc study cifar10-paper --out out/paper --only SVI,SVI-AvUC --minutes 9
  avuc study my-recipe.toml --engine ray
  avuc study --init my-study
  avuc study --export out/paper --out results/paper"""


def arguments(parser: Parser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a .toml file, or the name of a recipe")
    parser.add_argument("--list", action="store_true", help="list the recipes that come with avuc")
    parser.add_argument("--init", metavar="DIR", help="write a recipe and a module of your own to start from to DIR")
    parser.add_argument("--out", metavar="DIR", help="folder of the study (default: out/NAME)")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="where the work runs (default: local)"
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
        metavar="METHOD[,METHOD]",
        help="train and evaluate only these methods now; may be repeated",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="stop after M minutes (exit code 75); the same command resumes"
    )
    parser.add_argument("--export", metavar="DIR", help="write a small copy of the study in DIR to --out; runs nothing")
    parser.add_argument("--predictions", action="store_true", help="also save every prediction (.safetensors)")
    parser.add_argument("--no-report", action="store_true", help="write no report; avuc report DIR writes it later")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="try every shift, the network and every method on a few examples, and print the methods and the "
        "estimated time; trains nothing, but downloads data that are not there",
    )


def run(args: Namespace) -> int:
    from avuc.core.errors import InputError
    from avuc.study.recipe.load import load_recipe, recipe_names, recipe_summary

    console = Console()
    if args.list:
        names = recipe_names()
        width = max(map(len, names))
        for name in names:
            console.line(f"{name:{width}}  {recipe_summary(name)}")
        return 0
    if args.init is not None:
        return _init(args, console)
    if args.export is not None:
        return _export(args, console)
    if args.recipe is None:
        raise InputError(f"name a recipe: a .toml file, or one of {', '.join(recipe_names())}")
    changes = [*args.set, "study.predictions=true"] if args.predictions else args.set
    recipe = load_recipe(args.recipe, changes)
    only = _methods(args.only, recipe)
    if args.minutes is not None and not args.minutes > 0:
        raise InputError(f"--minutes: expected a number above 0, found {args.minutes}")
    if args.dry_run:
        return _plan(recipe, only, args.device, console)
    from avuc.cli.report import conclude
    from avuc.report.study.results import read_results
    from avuc.study.engines.run import run_study
    from avuc.training.fit import OutOfTime

    began = time.monotonic()
    out = Path(args.out) if args.out else Path("out") / _folder(recipe.study.name)
    try:
        store = run_study(recipe, out, engine=args.engine, device=args.device, minutes=args.minutes, only=only)
    except OutOfTime as error:
        print(f"avuc: {error}", file=sys.stderr)
        return OUT_OF_TIME
    except KeyboardInterrupt:
        print("avuc: interrupted; everything finished is kept: run the same command to resume", file=sys.stderr)
        return 130
    if not args.no_report:
        conclude(read_results(store), out / "report.html", console)
    took, done = time.monotonic() - began, len(store.done())
    console.line(f"{done:,} evaluations in {store.path}; this run took {took:.0f} s", "dim")
    if recipe.study.predictions and (unsaved := done - len(list((out / "predictions").glob("*/*.safetensors")))) > 0:
        console.paragraph(
            f"note: {unsaved:,} evaluations were finished without --predictions, so theirs are not saved; to save all, "
            "run the study with another --out"
        )
    console.line(f"Figures and tables as files: avuc report {shlex.quote(str(out))}")
    if args.no_report:
        return 0
    console.line(f"Open the report in a browser: {(out / 'report.html').resolve()}", "bold")
    return 0


def _folder(name: str) -> str:
    """Return a folder name for a study; it never leads out of the folder `out`.

    >>> _folder("cifar10-paper"), _folder("../mine")
    ('cifar10-paper', 'mine-b8bc1f6f')
    """
    from avuc.study.recipe.names import marked

    plain = re.fullmatch(r"\w[\w .+-]{0,99}", name) is not None and not name.endswith((".", " "))
    return name if plain else marked(name, "study")


def _methods(texts: list[str], recipe: Recipe) -> list[str]:
    """Return the names of methods in `--only`, which are separated by commas; a name may itself contain a comma."""
    names = {method.name for method in recipe.methods}
    return [
        name for text in texts for name in ([text] if text in names else [part.strip() for part in text.split(",")])
    ]


def _init(args: Namespace, console: Console) -> int:
    import shlex

    from avuc.core.errors import InputError
    from avuc.study.recipe.starter import write_starter

    if args.recipe is not None or args.out is not None:
        raise InputError("--init DIR writes a recipe to start from; give no recipe and no --out with it")
    recipe, module = write_starter(args.init)
    console.line(
        f"wrote {recipe} and {module.name}; next: cd {shlex.quote(str(recipe.parent))} && avuc study {recipe.name}"
    )
    return 0


def _export(args: Namespace, console: Console) -> int:
    from avuc.core.errors import InputError
    from avuc.study.store.export import export_study

    if args.recipe is not None or args.out is None:
        raise InputError("--export DIR --out FOLDER copies a study; give no recipe with it")
    path = export_study(args.export, args.out)
    console.line(f"{path.stat().st_size / 1e6:.1f} MB in {path}; avuc report {shlex.quote(str(args.out))} reads it")
    return 0


def _plan(recipe: Recipe, only: list[str], device: str, console: Console) -> int:
    from avuc.study.cost import cost_of
    from avuc.study.data.own import forget
    from avuc.study.engines.run import devices_for
    from avuc.study.grid import Plan
    from avuc.study.trial.run import try_own_code

    plan = Plan(recipe, tuple(only))
    plan.check_epochs()
    first = devices_for(device)[0]
    try:
        try_own_code(recipe, first)
        cost = cost_of(plan, first)
    finally:
        forget()
    head = ("method", "trained as", "seeds", "samples", "details")
    rows = []
    for method in recipe.methods:
        if only and method.name not in only:
            continue
        if method.method is not None:
            how, details = str(method.objective.kind), repr(method.method)
        else:
            how = method.calibrator.kind if method.calibrator else "fewer samples"
            details = f"the model of {method.reuse_model}"
        seeds = ", ".join(str(seed) for seed in recipe.seeds(method))
        rows.append((method.name, how, seeds, str(recipe.samples(method)), details))
    console.table(head, rows, "<<<><")
    for method in recipe.trained:
        reason = method.objective.unused_reason(method.train.epochs)
        if reason and not method.skip_training and (not only or method.name in only):
            console.paragraph(f"{method.name}: {reason}", style="warn", lead="WARNING  ")
    console.line()
    for sentence in cost.sentences():
        console.paragraph(sentence)
    return 0


COMMAND = Command(
    summary="train every method of a recipe and evaluate it on every shift",
    text=TEXT,
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
