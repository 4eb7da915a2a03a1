"""`avuc select`: answer only the rows whose error rate is at most a limit."""

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
    finish,
    fitted_on,
    held_out_check,
    in_order,
    is_saved,
    new_checks,
    read_applied,
    read_labelled,
    share,
    show_table,
    table_job,
)
from avuc.cli.inputs import groups_of
from avuc.cli.outputs import console_for
from avuc.cli.padding import Padding

if TYPE_CHECKING:
    from avuc.conformal.selective import SelectiveCheck, SelectiveClassifier
    from avuc.evaluation.files import ScoreFile
    from avuc.report.single.page import TitledTable as Titled

# the names in avuc.conformal.selective.SCORES, without importing torch; a test compares the two
SCORES = ("confidence", "entropy")
# limits of the error rate to propose if the given one is too low for the rows
LIMITS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
TEXT = f"""\
Answer only the rows where the model is sure enough that at most a given share of the answers is wrong, with 95 %
probability. It needs independent rows, images or groups, and new ones that come from the same source as those of FILE;
the model need not be calibrated. Each image, sentence or group counts the same, however many rows it has.

{FILES_HELP}"""
EXAMPLES = """\
examples:
  avuc select validation.npz --risk 0.1 --apply test.npz --to answers.csv
  avuc select validation.npz --risk 0.2 --score entropy --out select.json
  avuc select select.json --check new.npz --json -"""


def arguments(parser: Parser) -> None:
    parser.add_argument("--risk", type=share, metavar="SHARE", help="highest share of wrong answers (default: 0.02)")
    parser.add_argument("--level", type=share, metavar="SHARE", help="probability of the guarantee (default: 0.95)")
    parser.add_argument("--score", choices=SCORES, help="what decides about an answer (default: confidence)")
    add_file_options(parser, "the answers")


def run(args: Namespace) -> int:
    check_arguments(args, ("risk", "level", "score"))
    from avuc.conformal import SelectiveClassifier

    console = console_for(args)
    document: dict[str, Any] = {}
    lines: list[str] = []
    warnings: list[str] = []
    notes: list[str] = []
    if is_saved(args):
        fitted = SelectiveClassifier.load(args.file)
        fitted._check_fitted()
        possible = ""
    else:
        file = read_labelled(args, console, args.file)
        notes += file.notes
        classifier = SelectiveClassifier(args.risk or 0.02, args.level or 0.95, score=args.score or SCORES[0])
        groups = groups_of(args, file)
        fitted = fitted_on(classifier, file, groups)
        possible = "" if fitted.answered_ else _possible(classifier, file, groups)
        held_out = held_out_check(classifier, file, args.seed, groups)
        if held_out is not None:
            none = "no row is answered: half of the rows are too few for this limit."
            found = held_out.sentence if held_out.answered else none
            lines.append(f"On a held-out half, after a fit on the other half: {found}")
            document["held_out"] = held_out.as_json()
    lines.append(_promise(fitted))
    if not fitted.answered_:
        what, count = ("rows", fitted.rows_) if fitted.images_ is None else ("images or groups", fitted.images_)
        warnings.append(
            f"no row can be answered with an error rate of at most {fitted.risk:g}: use more {what} (there are "
            f"{count:,}; at least {fitted.least_rows:,} are needed, and more if some answers are wrong), a higher "
            f"--risk{possible}, or a better model"
        )
    result = _answers_job(args, console, fitted, document, lines) if args.apply else None
    checks = new_checks(args, console, fitted, lines, warnings)
    tables = []
    if checks:
        tables.append(_files_table(checks))
        show_table(console, tables[0])
        document["checks"] = [{"file": path} | check.as_json() for path, check in checks]
    head = {
        "rows": fitted.rows_,
        "num_classes": fitted.num_classes_,
        "params": fitted.get_params(),
        "threshold": None if math.isinf(fitted.threshold_) else abs(fitted.threshold_),
        "images": fitted.images_,
        "answered": fitted.answered_,
        "errors": fitted.errors_,
    }
    return finish(args, head | document | {"notes": notes}, fitted, result, lines, warnings, tables)


def _possible(classifier: SelectiveClassifier, file: ScoreFile, groups: Any) -> str:
    """Return the lowest usual limit with which rows of the file are answered."""
    for risk in (limit for limit in LIMITS if limit > classifier.risk):
        fitted = fitted_on(type(classifier)(**classifier.get_params() | {"risk": risk}), file, groups)
        if fitted.answered_:
            share = f"{100 * fitted.answered_ / fitted.rows_:.0f} %"
            # the promise holds for a limit that does not depend on the rows
            return (
                f" ({risk:g} would answer {share} of these rows; if you choose it for this reason, fit on other rows)"
            )
    return ""


def _files_table(checks: Sequence[tuple[str, SelectiveCheck]]) -> Titled:
    """Return answers and errors of each file, such as each shift of a study."""
    rows = [
        (
            path,
            f"{check.rows:,}",
            f"{100 * check.coverage:.1f} %",
            "" if check.error is None else f"{100 * check.error:.2f} %",
            f"{100 * check.error_low:.2f} … {100 * check.error_high:.2f} %",
            "yes" if check.drift else "no",
        )
        for path, check in checks
    ]
    head = ("file", "rows", "answered", "of these wrong", f"{100 * checks[0][1].level:g} % interval", "drift")
    return "Answers of each file", head, rows


def _promise(fitted: Any) -> str:
    grouped = fitted.images_ is not None
    rows = f"{fitted.rows_:,} rows" + (f" of {fitted.images_:,} images or groups" if grouped else "")
    if not fitted.answered_:
        return f"None of the {rows} is answered."
    if math.isinf(fitted.threshold_):
        rule = "Every row is answered"
    elif fitted.score == "confidence":
        rule = f"A row is answered if its confidence is above {fitted.threshold_:.6g}"
    else:
        rule = f"A row is answered if its entropy is below {-fitted.threshold_:.6g} nats"
    return (
        f"{rule}: {100 * fitted.answered_ / fitted.rows_:.1f} % of {rows}, {fitted.errors_:,} of them wrongly. At most "
        f"{100 * fitted.risk:g} % of all future answers are wrong, with a probability of {100 * fitted.level:g} %, for "
        f"{'images or groups' if grouped else 'rows'} from the same source{', each counting the same' * grouped}."
    )


def _answers_job(args: Namespace, console: Console, fitted: Any, document: dict[str, Any], lines: list[str]) -> Any:
    """Return the job that writes the answers of --apply."""
    file = read_applied(args, console)
    predictions = in_order(console, file, fitted)
    answered, predicted = fitted.answers(predictions).cpu().numpy(), predictions.predicted.cpu().numpy()
    score = getattr(predictions, fitted.score).cpu().numpy()
    names = list(fitted.class_names_ or map(str, range(fitted.num_classes_)))
    padding = Padding.of(file)
    known = padding.real(answered)
    document["applied"] = {"rows": len(known), "answered": int(known.sum())} | padding.count
    lines.append(f"{args.apply}: {100 * known.mean():.1f} % of {len(known):,} rows are answered.{padding.remark}")
    if args.to.lower().endswith(".npz"):
        arrays = {"answered": answered, "predicted": predicted, fitted.score: score}
        from avuc.evaluation.files.row_groups import positions

        shape = positions(file)
        dense = {name: each.reshape(shape) for name, each in arrays.items()} | padding.array(shape)
        return arrays_job(dense | {"class_names": names})
    rows = [(row, names[predicted[row]] if answered[row] else "", f"{score[row]:.9g}") for row in range(len(answered))]
    return table_job(args.to, *padding.table(("row", "answer", fitted.score), rows))


COMMAND = Command(
    summary="answer only the rows whose error rate is at most a limit",
    text=TEXT,
    examples=EXAMPLES + SAMPLE_FILES,
    arguments=arguments,
    run=run,
)
