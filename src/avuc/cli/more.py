"""`avuc evaluate --more` and `--group`: metrics on request, parts of NLL and Brier score, calibration within groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from avuc.cli.command import Namespace, Parser
from avuc.cli.console import Console
from avuc.core.errors import InputError, NoColumnError

if TYPE_CHECKING:
    from avuc.evaluation.files import ScoreFile, ScoreStream
    from avuc.evaluation.groups import GroupResult
    from avuc.metrics import Interval

Titled = tuple[str, Sequence[str], Sequence[Sequence[str]]]

TEXTS = {
    "smooth_ece": ("SmoothECE", "ECE with a kernel in place of bins"),
    "overconfidence": ("Overconfidence", "part of ECE where it is too sure"),
    "underconfidence": ("Underconfidence", "part of ECE where it is not sure enough"),
    "augrc": ("AUGRC", "undetected errors, averaged over all coverages"),
    "nll_refinement": ("NLL, refinement", "NLL that a temperature cannot repair"),
    "nll_calibration": ("NLL, calibration", "NLL that a temperature repairs, on held-out rows"),
    "brier_refinement": ("Brier, refinement", "the same for the Brier score"),
    "brier_calibration": ("Brier, calibration", "the same for the Brier score"),
}
# resamples of a group, and groups that the terminal shows; the JSON has all
REPLICATES = 200
MOST_PRINTED = 20
# intervals of fewer groups than this would say little, so rows are resampled
LEAST_RESAMPLED = 20


def add_more_options(parser: Parser) -> None:
    """Add --more and --group."""
    parser.add_argument(
        "--more",
        action="store_true",
        help="also SmoothECE, over- and underconfidence, AUGRC, NLL and Brier score as refinement and calibration, and "
        "the calibration of each predicted class",
    )
    parser.add_argument(
        "--group",
        metavar="NAME",
        help="calibration for each value of this column of a table, or array of an .npz or .safetensors file (of dense "
        f"scores, one value per image); with {LEAST_RESAMPLED} values or more, such as patients, intervals resample "
        "these instead of rows or images",
    )


def check_more(args: Namespace, file: ScoreFile | ScoreStream | None = None) -> None:
    """Raise if --more or --group does not fit other options or the file."""
    if not (args.more or args.group):
        return
    option = "--more" if args.more else "--group"
    if args.fixed_memory:
        raise InputError(f"{option}: with --fixed-memory no rows are kept; leave out one of the two")
    if args.task == "multilabel":
        raise InputError(f"{option}: is not for --task multilabel; leave out one of the two")
    if file is None:
        return
    if not hasattr(file, "predictions"):
        raise InputError(f"{args.file}: is read in blocks, so there is no {option}; evaluate a sample of its rows")


def resampled_groups(args: Namespace, file: ScoreFile) -> tuple[Any, bool, str | None]:
    """Return the group of each row, by number, if intervals resample groups; whether --group has enough; and a note."""
    import numpy as np

    from avuc.evaluation.files.row_groups import file_groups

    images = file_groups(file)
    if not args.group:
        return images, False, None
    groups, entry_of_row = _group_column(args, file)
    count = len(np.unique(groups[entry_of_row]))
    if count >= LEAST_RESAMPLED:
        numbers = np.unique(_numbered(groups)[entry_of_row], return_inverse=True)[1]
        missing, what = int(np.sum(groups == "")), "rows" if images is None else "images or sentences"
        alone = f"{missing:,} {what} have no group in {args.group!r}, and count as independent" if missing else None
        return (None if int(numbers.max()) + 1 == len(numbers) else numbers), True, alone
    few = f"{count} values of {args.group!r} are too few to resample (at least {LEAST_RESAMPLED})"
    return images, False, f"{few}, so intervals resample {'rows' if images is None else 'images or sentences'}"


def _group_column(args: Namespace, file: ScoreFile) -> tuple[Any, Any]:
    """Return the value of --group for each row or image of the file, and the index of its value for each kept row."""
    from avuc.evaluation.files.group_column import read_groups
    from avuc.evaluation.files.row_groups import given_shape, row_positions

    shape = given_shape(file)
    return read_groups(args.file, args.group, shape[0]), row_positions(file) // math.prod(shape[1:])


def _numbered(names: Any) -> Any:
    """Return the number of the group of each row; a row without a group ("") forms its own group."""
    import numpy as np

    numbers = np.unique(names, return_inverse=True)[1]
    if names.dtype.kind != "U":
        return numbers
    alone = names == ""
    return np.unique(np.where(alone, len(names) + alone.cumsum(), numbers), return_inverse=True)[1]


def outside_groups(args: Namespace, other: ScoreFile | ScoreStream, *, by_group: bool) -> tuple[Any, str | None]:
    """Return the group of each row of the --ood file, by number; and a note if it has no column --group.

    Args:
        args: the arguments of the command.
        other: the --ood file.
        by_group: whether the values of --group are resampled; otherwise images or rows are.
    """
    import numpy as np

    from avuc.evaluation.files.group_column import read_groups
    from avuc.evaluation.files.row_groups import image_counts

    counts = image_counts(other)
    images = None if counts is None else np.repeat(np.arange(len(counts)), counts)
    names, note = None, None
    if by_group:
        try:
            names = read_groups(args.ood, args.group, other.num_rows if counts is None else len(counts))
        except NoColumnError:
            what = "rows" if images is None else "images or sentences"
            note = f"{other.path.name} has no column {args.group!r}, so detection takes its {what} as independent"
    groups = images
    if names is not None:
        groups = _numbered(names) if images is None else _numbered(names)[images]
    # without gaps, if all positions of an image were left out
    return None if groups is None else np.unique(groups, return_inverse=True)[1], note


def more_figures(
    args: Namespace, file: ScoreFile, replicates: int, units: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of --more and --group, and their JSON; intervals resample `units`."""
    from avuc.evaluation.decomposition import decompose
    from avuc.evaluation.files.row_groups import file_groups
    from avuc.evaluation.groups import evaluate_groups
    from avuc.metrics.more import more_intervals
    from avuc.metrics.statistics import prediction_statistics

    predictions = file.predictions()
    results: dict[str, Any] = {}
    document: dict[str, Any] = {}
    few: dict[str, Any] = {"bins": args.bins, "replicates": min(replicates, REPLICATES), "seed": args.seed}
    if args.more:
        statistics = prediction_statistics(predictions.probs, predictions.labels)
        figures = more_intervals(statistics, replicates=replicates, seed=args.seed, bins=args.bins, groups=units)
        if len(predictions) >= 2:
            folds = min(5, len(predictions))
            figures |= decompose(predictions, folds=folds, replicates=replicates, seed=args.seed, groups=units)
        classes = evaluate_groups(predictions, predictions.predicted.tolist(), units=units, **few)
        names = file.class_labels
        results |= {"more": figures, "classes": [(names[int(each.name)], each) for each in classes]}
        labelled = {names[number] for number in predictions.labels.unique().tolist()}
        predicted = {name for name, _ in results["classes"]}
        results["never"] = [name for name in names if name in labelled - predicted]
        document["more"] = {
            "metrics": {name: each.value for name, each in figures.items()},
            "intervals": {name: [each.low, each.high] for name, each in figures.items() if not math.isnan(each.low)},
            "classes": [each.as_json() | {"name": name} for name, each in results["classes"]],
        }
    if args.group:
        values, entry_of_row = _group_column(args, file)
        groups = evaluate_groups(predictions, values[entry_of_row], units=file_groups(file), **few)
        results["groups"] = [(each.name or "(none)", each) for each in groups]
        document |= {"group": args.group, "groups": [each.as_json() for each in groups]}
    return results, document


def more_tables(args: Namespace, results: Mapping[str, Any], most: int | None = None) -> list[Titled]:
    """Return heading, head and rows of each table; of many groups, only the `most` groups with the highest ECE."""
    tables: list[Titled] = []
    if "more" in results:
        figures: Mapping[str, Interval] = results["more"]
        rows = [(TEXTS[name][0], f"{each.value:.4f}", _range(each), TEXTS[name][1]) for name, each in figures.items()]
        tables.append(("More metrics", ("metric", "value", "95 % interval", "what it means"), rows))
        table = _group_table("Calibration of each predicted class", "predicted class", results["classes"], most)
        # classes that occur among the labels and that the model never predicts
        never = [(name, "0", *("–" for _ in table[1][2:])) for name in results["never"][:most]]
        tables.append((*table[:2], [*table[2], *never]))
    if "groups" in results:
        tables.append(_group_table(f"Calibration by {args.group}", args.group, results["groups"], most))
    return tables


def show_more(console: Console, args: Namespace, results: Mapping[str, Any]) -> None:
    """Print the tables of --more and --group."""
    for heading, head, rows in more_tables(args, results, MOST_PRINTED):
        console.line()
        console.line(heading, "bold")
        console.table(head, rows, "<" + ">" * (len(head) - 2) + "<")
        kind = "groups" if heading.startswith("Calibration by") else "classes"
        if head[1] == "rows" and len(results[kind]) > MOST_PRINTED:
            console.paragraph(f"The {MOST_PRINTED} {kind} with the highest ECE; --json has all.", style="dim")
        if head[0] == "predicted class" and (never := len(results["never"])) > MOST_PRINTED:
            console.paragraph(f"{never} classes are never predicted; {MOST_PRINTED} of them are shown.", style="dim")


def _group_table(heading: str, name: str, groups: Sequence[tuple[str, GroupResult]], most: int | None) -> Titled:
    selected = list(groups)
    if most is not None and len(selected) > most:
        selected = sorted(selected, key=lambda pair: -pair[1].metrics["ece"].value)[:most]
    rows = [
        (
            title,
            f"{each.rows:,}",
            f"{100 * each.metrics['accuracy'].value:.1f} %",
            f"{100 * each.confidence:.1f} %",
            f"{each.metrics['ece'].value:.4f}",
            _range(each.metrics["ece"]),
            f"{each.metrics['overconfidence'].value:.4f}",
            f"{each.metrics['underconfidence'].value:.4f}",
        )
        for title, each in selected
    ]
    head = (name, "rows", "accuracy", "confidence", "ECE", "95 % interval", "overconfident", "underconfident")
    return heading, head, rows


def _range(interval: Interval) -> str:
    return "" if math.isnan(interval.low) else f"{interval.low:.4f} … {interval.high:.4f}"
