"""Options for saved predictions, which `evaluate`, `calibrate` and `apply` share, and how they are read."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from avuc.cli.command import Namespace, Parser

# names of version 0.1.0
from avuc.cli.outputs import add_output_options as add_output_options
from avuc.cli.outputs import check_outputs as check_outputs
from avuc.cli.outputs import json_text as json_text
from avuc.cli.outputs import text_job as text_job
from avuc.cli.outputs import write_all as write_all
from avuc.core.errors import InputError

if TYPE_CHECKING:
    from avuc.evaluation.files import ScoreFile, ScoreStream

File = TypeVar("File", "ScoreFile", "ScoreStream", "ScoreFile | ScoreStream")

# the suffixes of `avuc.evaluation.files.find.FORMATS`, without importing torch; a test compares the two
FORMATS = ("npz", "npy", "safetensors", "parquet", "csv", "tsv")
# classwise ECE keeps this many bins for each class
MOST_BINS = 1000
FILE_HELP = """\
FILE is .npz, .npy, .safetensors, .parquet, .csv or .tsv. It contains scores named logits, probs, predictions or
scores, of shape (N, C), or (S, N, C) for S posterior samples, and labels named labels, y, targets or ground_truth.
Binary scores are one number per row, (N,); dense scores are (N, C, H, W) with labels (N, H, W). The labels of
logits.npy are in labels.npy in the same folder. A table has one column per class (logits_0, logits_1, … or prob_cat,
prob_dog, …) or one list column, and a label column. If it is unclear which columns are the scores, the command asks
for --columns and --label."""


def add_input_options(parser: Parser) -> None:
    """Add FILE and the options for reading and evaluating it."""
    add_content_options(parser)
    add_evaluation_options(parser)


def add_content_options(parser: Parser, *, labels: bool = True) -> None:
    """Add FILE and the options for reading it; `labels`: also those for its labels."""
    parser.add_argument("file", metavar="FILE", help="saved predictions; -: standard input")
    group = parser.add_argument_group("content of the file")
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="format of standard input (default: detected from its first bytes)",
    )
    group.add_argument(
        "--kind",
        choices=("auto", "logits", "probs", "percent"),
        default="auto",
        help="what the scores are; percent: probabilities from 0 to 100; auto: decided by name and values, and printed "
        "(default: auto)",
    )
    if labels:
        group.add_argument("--labels", metavar="FILE", help="read the labels from another file")
    group.add_argument("--scores-key", metavar="NAME", help="name of the scores, or prefix of their columns")
    group.add_argument(
        "--columns",
        metavar="NAMES",
        help="score columns of a table in class order: cat,dog or first:last or 'prob_*'",
    )
    group.add_argument("--label", "--labels-key", dest="labels_key", metavar="NAME", help="name of the labels")
    if labels:
        group.add_argument(
            "--first-label",
            type=int,
            choices=(0, 1),
            help="label of the first class (default: decided by the labels; an error if both fit)",
        )
    group.add_argument(
        "--classes",
        type=_names,
        metavar="NAMES",
        help="names of the classes in the order of the scores, cat,dog, if labels are names and the scores have none",
    )
    group.add_argument(
        "--task",
        choices=("auto", "multiclass", "binary", *(("multilabel",) if labels else ())),
        default="auto",
        help="binary: one number per label; multilabel: one decision per label, never guessed (default: auto, by shape)"
        if labels
        else "binary: one number per row or position (default: auto, by shape)",
    )
    group.add_argument(
        "--class-dim",
        type=_dimension,
        metavar="N",
        help="dimension of the classes of dense scores, -1: the last (default: 1, if the labels fit)",
    )
    if labels:
        group.add_argument(
            "--ignore-index",
            type=_dimension,
            metavar="LABEL",
            help="leave out rows with this label (default: -100 for dense scores, else no row)",
        )
        group.add_argument(
            "--positive",
            metavar="LABEL",
            help="label that one number per row stands for (default: 1, or the second of two names in the alphabet)",
        )
    group.add_argument(
        "--max-gb", type=_positive, metavar="GB", help="memory limit for the data of a file, in gigabytes (default: 8)"
    )


def add_group_option(parser: Parser) -> None:
    """Add --group."""
    parser.add_argument(
        "--group",
        metavar="NAME",
        help="column or array with the group of each row or image, such as a patient or a sentence: rows of one group "
        "are not independent, so groups are counted instead",
    )


def groups_of(args: Namespace, file: ScoreFile) -> Any:
    """Return the number of the group of each row, by --group or else its image or sentence; None for other rows."""
    from avuc.evaluation.files.group_column import read_groups
    from avuc.evaluation.files.row_groups import file_groups, given_shape

    rows = given_shape(file)[0]
    names = None if args.group is None else read_groups(file.path, args.group, rows)
    if names is not None and names.dtype.kind == "U" and (missing := int((names == "").sum())):
        raise InputError(
            f"{file.path}: {missing} of {rows:,} rows have no group in {args.group!r}; give every row a group"
        )
    return file_groups(file, names)


def add_evaluation_options(parser: Parser) -> None:
    """Add the options for evaluating FILE."""
    group = parser.add_argument_group("evaluation")
    group.add_argument(
        "--threshold",
        type=_threshold,
        default="auto",
        metavar="auto|NATS",
        help="entropy up to which a prediction counts as certain; auto: midpoint between the mean entropies of right "
        "and wrong predictions (default: auto)",
    )
    group.add_argument(
        "--bins", type=_whole(1, MOST_BINS), default=15, metavar="N", help="number of bins of ECE and UCE (default: 15)"
    )
    group.add_argument(
        "--replicates",
        type=_whole(0),
        metavar="N",
        help="bootstrap replicates for the 95 %% intervals; 0: no intervals (default: 1000; fewer, but at least 200, "
        "for 20,000 to 100,000 rows)",
    )
    group.add_argument("--seed", type=_whole(0), default=0, metavar="N", help="random seed (default: 0)")


def _content(args: Namespace, *, labels: bool = True) -> dict[str, Any]:
    """Return the options of `read_scores` that say what a file contains."""
    shared = {name: getattr(args, name) for name in ("kind", "scores_key", "columns", "class_dim", "max_gb")}
    if not labels:
        return shared | {"needs_labels": False, "task": "auto" if args.task == "multilabel" else args.task}
    named = ("labels", "labels_key", "first_label", "classes", "task", "ignore_index", "positive")
    return shared | {name: getattr(args, name) for name in named}


def read_file(args: Namespace, fitted: tuple[str, ...] | None = None) -> ScoreFile:
    """Read FILE into memory; `fitted` has the names of the classes of a fit that it belongs to."""
    from avuc.evaluation.files import read_scores

    return read_scores(args.file, fitted=fitted, **_content(args))


def read_other(args: Namespace, path: str, first: ScoreFile, why: str) -> ScoreFile:
    """Read a second file (--apply) with the same number of classes; it needs no labels."""
    from avuc.evaluation.files import read_scores
    from avuc.evaluation.files.names import MARK

    marked = {"padding": MARK, "ignore_index": args.ignore_index}
    other = read_scores(path, like=first, **_content(args, labels=False), **marked)
    return _same_classes(args, path, _as_said(args, other), first, why)


def read_unlabelled(args: Namespace, **more: Any) -> ScoreFile:
    """Read FILE into memory without its labels, which only mark its padding; `more` is options of `read_scores`."""
    from avuc.evaluation.files import read_scores
    from avuc.evaluation.files.names import MARK

    named = {"labels_key": args.labels_key, "classes": args.classes, "padding": MARK}
    options = named | _content(args, labels=False) | more
    return _as_said(args, read_scores(args.file, **options))


def _as_said(args: Namespace, file: ScoreFile) -> ScoreFile:
    """Return the file; with --positive, the name of a column does not say which class one number per row stands for."""
    if getattr(args, "positive", None) is not None:
        file.raw.positive = None
    return file


def _same_classes(args: Namespace, path: str, other: File, first: ScoreFile | ScoreStream, why: str) -> File:
    if other.num_classes != first.num_classes:
        raise InputError(f"{path}: has {other.num_classes} classes, but {args.file} has {first.num_classes}; {why}")
    return other


def open_file(args: Namespace) -> ScoreFile | ScoreStream:
    """Open FILE; a large file is read in blocks later."""
    from avuc.evaluation.files import open_scores
    from avuc.metrics.blockwise import bytes_needed

    kept: dict[str, Any] = {"memory": partial(bytes_needed, bins=args.bins, detection=args.ood is not None)}
    return open_scores(
        args.file,
        **_content(args),
        **(_fixed_memory(args) if args.fixed_memory else kept),
    )


def _fixed_memory(args: Namespace) -> dict[str, Any]:
    """Return the options of `open_scores` for --fixed-memory: files of every size are read in blocks."""
    from avuc.metrics.streaming.suite import bytes_needed

    return {"memory": partial(bytes_needed, bins=args.bins), "most_scores": 0}


def open_other(args: Namespace, path: str, first: ScoreFile | ScoreStream, why: str) -> ScoreFile | ScoreStream:
    """Open a second file (--ood) with the same number of classes; it needs no labels."""
    from avuc.evaluation.files import open_scores
    from avuc.metrics.blockwise import WORKING

    # one float32 entropy per row
    kept: dict[str, Any] = {"memory": lambda rows, _: WORKING + 4 * rows, "most_scores": 1 << 22}
    other = open_scores(
        path,
        like=first,
        ignore_index=args.ignore_index if first.raw.layout is not None and first.raw.layout.dense else None,
        padding=True,
        **_content(args, labels=False),
        **(_fixed_memory(args) if args.fixed_memory else kept),
    )
    return _same_classes(args, path, other, first, why)


def evaluation_options(args: Namespace, rows: int, *, by_cells: bool = False) -> dict[str, Any]:
    """Return the options of `evaluate` and `compare`; a bootstrap over cells costs the same for any number of rows."""
    replicates = replicates_for(args, 1 if by_cells else rows)
    return {"threshold": args.threshold, "bins": args.bins, "replicates": replicates, "seed": args.seed}


def replicates_for(args: Namespace, rows: int) -> int:
    """Return --replicates; by default fewer for many rows, which make each replicate slow and the interval stable."""
    return min(1000, max(200, 20_000_000 // rows)) if args.replicates is None else int(args.replicates)


def _whole(least: int, most: int = 999_999_999) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} to {most:,}")
        return int(text)

    return parse


def _dimension(text: str) -> int:
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    """Return the names in a line of comma-separated values."""
    try:
        return tuple(name.strip() for name in next(csv.reader([text], strict=True, skipinitialspace=True), []))
    except csv.Error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _positive(text: str) -> float:
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def _threshold(text: str) -> float | str:
    if text == "auto":
        return text
    value = _number(text)
    if not (value >= 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 'auto' nor an entropy of 0 nats or more")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


judging = evaluation_options  # the name in version 0.1.0
