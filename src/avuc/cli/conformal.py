"""`avuc conformal`: sets of classes that contain the true class with a given probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from avuc.cli.command import SAMPLE_FILES, Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.cli.guarantees import (
    FILES_HELP,
    add_file_options,
    arrays_job,
    check_arguments,
    dependence,
    finish,
    fitted_on,
    held_out_check,
    in_order,
    is_saved,
    read_applied,
    read_labelled,
    share,
    show_table,
    table_job,
)
from avuc.cli.inputs import groups_of
from avuc.cli.outputs import console_for
from avuc.cli.padding import Padding
from avuc.core.errors import InputError

if TYPE_CHECKING:
    from avuc.conformal import ConformalClassifier
    from avuc.conformal.coverage import CoverageCheck
    from avuc.report.single.page import TitledTable as Titled

# the names in avuc.conformal.scores.METHODS, without importing torch; a test compares the two
METHODS = ("threshold", "aps", "raps")
# classes that the terminal shows; the JSON has all
MOST_CLASSES = 20
TEXT = f"""\
Give every row a set of classes that contains the true class with a given probability (conformal prediction). This
works for any model, if new rows come from the same source as those of FILE.

{FILES_HELP}"""
EXAMPLES = """\
examples:
  avuc conformal validation.npz --coverage 0.9 --apply test.npz --to sets.csv
  avuc conformal validation.npz --method raps --coverage 0.95 --out sets.json
  avuc conformal sets.json --check new.npz --json -
  avuc conformal clean.npz --check blur-1.npz blur-3.npz blur-5.npz"""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "--coverage", type=share, metavar="SHARE", help="share of sets with the true class (default: 0.9)"
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        help="threshold: the smallest sets; aps: sets that adapt to each row; raps: the same for many classes "
        "(default: threshold)",
    )
    parser.add_argument("--class-conditional", action="store_true", help="the coverage holds within every class")
    parser.add_argument("--no-empty", action="store_true", help="a set has at least the predicted class")
    add_file_options(parser, "the sets")


def run(args: Namespace) -> int:
    check_arguments(args, ("coverage", "method", "class_conditional", "no_empty"))
    import numpy as np

    from avuc.conformal import ConformalClassifier

    console = console_for(args)
    document: dict[str, Any] = {}
    lines: list[str] = []
    warnings: list[str] = []
    notes: list[str] = []
    tables: list[Titled] = []
    if is_saved(args):
        fitted = ConformalClassifier.load(args.file)
        fitted._check_fitted()
    else:
        file = read_labelled(args, console, args.file)
        notes += file.notes
        options: dict[str, Any] = {"class_conditional": args.class_conditional, "allow_empty": not args.no_empty}
        classifier = ConformalClassifier(args.method or METHODS[0], args.coverage or 0.9, seed=args.seed, **options)
        groups = groups_of(args, file)
        fitted = fitted_on(classifier, file, groups)
        held_out = held_out_check(classifier, file, args.seed, groups)
        if held_out is not None:
            tables.append(_show_check(console, "Coverage and set size on a held-out half", held_out, fitted))
            lines.append(f"On a held-out half: {held_out.sentence}")
            document["held_out"] = _named(held_out, fitted)
            warnings += _low_classes(held_out, fitted)
    lines.append(_promise(fitted))
    if every := int(np.isinf(fitted.thresholds_).sum()):
        what = f"{every} of {fitted.num_classes_} classes have" if fitted.class_conditional else "FILE has"
        few, remedy = "rows", "give more rows"
        if fitted.groups_ is not None:
            few = "images or groups"
            remedy = f"give at least {fitted.least_groups} images or groups with labels"
            remedy += " of each class" if fitted.class_conditional else ""
        warnings.append(
            f"{what} too few {few} for a coverage of {fitted.coverage:g}, so every set contains "
            f"{'them' if fitted.class_conditional else 'all classes'}; {remedy} or ask for a lower coverage"
        )
    result = None
    if args.apply:
        result = _sets_job(args, console, fitted, document, lines)
    checks = []
    for path in args.check or ():
        file = read_labelled(args, console, path, fitted)
        groups = groups_of(args, file)
        check = fitted.check(in_order(console, file, fitted), groups=groups)
        checks.append((path, check))
        warnings += dependence(fitted, path, groups)
        (warnings if check.drift else lines).append(f"{path}: {check.sentence}")
    if len(checks) == 1:
        tables.append(_show_check(console, "Coverage and set size on new rows", checks[0][1], fitted))
    elif checks:
        tables.append(_files_table(checks))
        show_table(console, tables[-1])
        tables += [_check_table(f"Coverage and set size: {path}", check, fitted) for path, check in checks]
    if checks:
        document["checks"] = [{"file": path} | _named(check, fitted) for path, check in checks]
    head = {
        "rows": fitted.rows_.tolist(),
        "num_classes": fitted.num_classes_,
        "params": fitted.get_params(),
        "thresholds": [None if math.isinf(q) else q for q in fitted.thresholds_.tolist()],
        "coverage_interval": list(fitted.coverage_interval()),
    }
    return finish(args, head | document | {"notes": notes}, fitted, result, lines, warnings, tables)


def _low_classes(check: CoverageCheck, fitted: ConformalClassifier) -> list[str]:
    """Return a warning if the coverage of all rows hides classes that are covered less."""
    classes = [(name, each) for name, each in zip(_names(fitted), check.classes, strict=True) if each.rows]
    low = [(name, each) for name, each in classes if each.high < fitted.coverage]
    if fitted.class_conditional or len(low) <= 0.05 * len(classes):  # some of many intervals miss by chance
        return []
    examples = ", ".join(f"{name} {100 * each.coverage:.0f} %" for name, each in low[:3])
    return [
        f"{len(low)} of {fitted.num_classes_} classes are covered less than {100 * fitted.coverage:g} %: {examples}"
        f"{', …' if len(low) > 3 else ''}; --class-conditional keeps the coverage within every class, with larger sets"
    ]


def _promise(fitted: ConformalClassifier) -> str:
    low, high = fitted.coverage_interval()
    enough = fitted.rows_[fitted.ranks <= fitted.rows_]
    rows = int((enough if len(enough) else fitted.rows_).min())
    source = "for rows from the same source"
    if fitted.images_ is not None:
        where = f"after a fit on {int(fitted.rows_.sum()):,} rows of {fitted.images_.number:,} images or groups"
        source = "for a random row of a new image or group from the same source"
    elif fitted.class_conditional:
        where = f"in the class with the fewest rows, {rows:,},"
    else:
        where = f"after a fit on {rows:,} rows"
    return (
        f"The sets contain the true class with a probability of {100 * fitted.coverage:g} %; {where} the share is "
        f"between {100 * low:.2f} and {100 * high:.2f} % in 95 % of cases, {source}."
    )


def _names(fitted: ConformalClassifier) -> list[str]:
    return list(fitted.class_names_ or map(str, range(fitted.num_classes_)))


def _named(check: CoverageCheck, fitted: ConformalClassifier) -> dict[str, Any]:
    """Return a check as JSON, with the name of each class."""
    content = check.as_json()
    for each, name in zip(content["classes"], _names(fitted), strict=True):
        each["name"] = name
    return content


def _check_table(heading: str, check: CoverageCheck, fitted: ConformalClassifier, most: int | None = None) -> Titled:
    """Return coverage and set size of all rows and of each class; of many classes, the `most` least covered."""
    classes = [each for each in check.classes if each.rows]
    if most is not None and len(classes) > most:
        classes = sorted(classes, key=lambda each: each.coverage)[:most]
    names = _names(fitted)
    # where the coverage of all rows should be; that of a class has an interval around what was measured
    interval = f"expected {100 * check.low:.1f} … {100 * check.high:.1f} %"
    rows = [("all rows", f"{check.rows:,}", f"{100 * check.coverage:.1f} %", interval, f"{check.mean_size:.2f}")]
    rows += [
        (
            names[each.label],
            f"{each.rows:,}",
            f"{100 * each.coverage:.1f} %",
            f"{100 * each.low:.1f} … {100 * each.high:.1f} %",
            f"{each.mean_size:.2f}",
        )
        for each in classes
    ]
    return heading, ("class", "rows", "coverage", "95 % interval", "classes per set"), rows


def _files_table(checks: Sequence[tuple[str, CoverageCheck]]) -> Titled:
    """Return coverage and set size of each file, such as each shift of a study."""
    rows = [
        (
            path,
            f"{check.rows:,}",
            f"{100 * check.coverage:.1f} %",
            f"{100 * check.low:.1f} … {100 * check.high:.1f} %",
            f"{check.mean_size:.2f}",
            "yes" if check.drift else "no",
        )
        for path, check in checks
    ]
    head = ("file", "rows", "coverage", "expected (95 %)", "classes per set", "drift")
    return "Coverage and set size of each file", head, rows


def _show_check(console: Console, heading: str, check: CoverageCheck, fitted: ConformalClassifier) -> Titled:
    """Print coverage and set size of each class, and return the table with all classes."""
    table = _check_table(heading, check, fitted, MOST_CLASSES)
    show_table(console, table)
    if len(table[2]) > MOST_CLASSES:
        console.paragraph(f"The {MOST_CLASSES} classes with the lowest coverage; --json has all.", style="dim")
    return _check_table(heading, check, fitted)


def _sets_job(
    args: Namespace, console: Console, fitted: ConformalClassifier, document: dict[str, Any], lines: list[str]
) -> Any:
    """Return the job that writes the sets of --apply."""
    from avuc.conformal.classifier import sets_as_names

    file = read_applied(args, console)
    predictions = in_order(console, file, fitted)
    padding = Padding.of(file)
    sets = padding.separately(fitted.predict_sets, predictions).cpu().numpy()
    size, names = sets.sum(1), _names(fitted)
    known = padding.real(size)
    document["applied"] = {"rows": len(known), "mean_size": float(known.mean()), "empty": int((known == 0).sum())}
    document["applied"] |= padding.count
    lines.append(
        f"{args.apply}: {known.mean():.2f} classes per set; {100 * (known == 1).mean():.1f} % of the sets have one "
        f"class, {100 * (known == 0).mean():.1f} % have none.{padding.remark}"
    )
    if args.to.lower().endswith(".npz"):
        from avuc.evaluation.files.row_groups import positions

        shape = positions(file)
        arrays = {"sets": sets.reshape(*shape, -1), "size": size.reshape(shape), "class_names": names}
        return arrays_job(arrays | padding.array(shape))
    if parted := next((name for name in names if "|" in name), None):
        raise InputError(
            f"{args.to}: the class {parted!r} has a '|', which stands between the classes of a set; write .npz instead"
        )
    rows = [(row, len(each), "|".join(each)) for row, each in enumerate(sets_as_names(sets, tuple(names)))]
    return table_job(args.to, *padding.table(("row", "size", "set"), rows))


COMMAND = Command(
    summary="sets that contain the true class with a given probability",
    text=TEXT,
    examples=EXAMPLES + SAMPLE_FILES,
    arguments=arguments,
    run=run,
)
