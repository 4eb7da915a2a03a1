"""Label conventions: where classes count from, what marks a row without a label, names, types, a file of their own."""

from __future__ import annotations

import numpy as np

from .table import (
    CLASSES,
    LABELS,
    LABELS2,
    LOGITS,
    LOGITS2,
    NAMES,
    ONE_HOT,
    PROBS,
    ROWS,
    SPLIT,
    TRUTH,
    TRUTH2,
    Case,
    Truth,
    columns,
    label,
    lines,
    names_of,
    npy,
    npz,
    numbered,
    several,
    subset,
    text,
)

# the last class, and the first, never occur in these rows
NO_LAST, NO_FIRST = LABELS < CLASSES - 1, LABELS > 0
UNLABELLED = np.where(np.arange(ROWS) % 10 == 3, -1, LABELS)
COUNT_FROM_1 = r"--first-label|subtract 1|count from"
DROP = r"--ignore|drop|leave out|remove|without a label|unlabel"
RANGE = r"0 … |0…|class number"
FIRST_1 = (("--first-label", "1"),)
SHUFFLED = lines([("id", [int(i) for i in SPLIT]), label(LABELS[SPLIT])])
ORDERED = lines([("id", list(range(ROWS))), *numbered(LOGITS, "logits_")])
OTHER = ("--labels", "{folder}/labels.csv")


def logits(labels: np.ndarray) -> dict[str, np.ndarray]:
    return {"logits": LOGITS, "labels": labels}


def scores_and_labels(scores: str, labels: str) -> object:
    return several(text(scores), text(labels, "labels.csv"))


CASES = [
    Case("labels from 0, int64", npz(**logits(LABELS)), TRUTH),
    Case("labels as int8", npz(**logits(LABELS.astype(np.int8))), TRUTH),
    Case("labels as uint8", npz(**logits(LABELS.astype(np.uint8))), TRUTH),
    Case("labels as uint64", npz(**logits(LABELS.astype(np.uint64))), TRUTH),
    Case("labels as floats 0.0, 1.0", npz(**logits(LABELS.astype(np.float32))), TRUTH),
    Case("labels of shape (N, 1)", npz(**logits(LABELS[:, None])), TRUTH),
    Case(
        "labels of shape (1, N)", npz(**logits(LABELS[None])), TRUTH, r"^(?!.*argmax).*\(400,\)"
    ),  # argmax(1) would be wrong
    Case("labels from 1, every class there", npz(**logits(LABELS + 1)), TRUTH, COUNT_FROM_1, FIRST_1),
    Case(
        "labels from 1, the last class absent",
        npz(logits=LOGITS[NO_LAST], labels=LABELS[NO_LAST] + 1),
        subset(NO_LAST),
        COUNT_FROM_1,
        FIRST_1,
    ),
    Case(
        "labels from 0, the first class absent",
        npz(logits=LOGITS[NO_FIRST], labels=LABELS[NO_FIRST]),
        subset(NO_FIRST),
    ),
    Case("labels from 0, the last class absent", npz(logits=LOGITS[NO_LAST], labels=LABELS[NO_LAST]), subset(NO_LAST)),
    Case(
        "labels from 1 in a .csv, the last class absent",
        text(lines([label(LABELS[NO_LAST] + 1), *columns(PROBS[NO_LAST], [f"prob_{n}" for n in NAMES])])),
        subset(NO_LAST),
        COUNT_FROM_1,
        FIRST_1,
    ),
    Case(
        "columns prob_1 … prob_5 and labels 1 … 5",
        text(lines([*numbered(PROBS, "prob_", 1), label(LABELS + 1)])),
        TRUTH,
        COUNT_FROM_1,
        FIRST_1,
    ),
    Case(
        "columns prob_1 … prob_5 and labels 1 … 4",
        text(lines([*numbered(PROBS[NO_LAST], "prob_", 1), label(LABELS[NO_LAST] + 1)])),
        subset(NO_LAST),
        COUNT_FROM_1,
        FIRST_1,
    ),
    Case(
        "columns prob_1 … prob_5 and labels 0 … 4",
        text(lines([*numbered(PROBS, "prob_", 1), label()])),
        TRUTH,
        r"--first-label|0 … 4|prob_1",
        (("--first-label", "0"),),
    ),
    Case("−1 for rows without a label", npz(**logits(UNLABELLED)), subset(UNLABELLED >= 0), DROP),
    Case(
        "−100 for rows without a label",
        npz(**logits(np.where(UNLABELLED < 0, -100, LABELS))),
        subset(UNLABELLED >= 0),
        DROP,
    ),
    Case(
        "255 for rows without a label, uint8",
        npz(**logits(np.where(UNLABELLED < 0, 255, LABELS).astype(np.uint8))),
        subset(UNLABELLED >= 0),
        DROP + "|" + RANGE,
    ),
    Case(
        "NaN for rows without a label",
        npz(**logits(np.where(UNLABELLED < 0, np.nan, LABELS))),
        subset(UNLABELLED >= 0),
        DROP + "|" + RANGE,
    ),
    Case("labels −1 and +1 of a binary model", npz(logits=LOGITS2, labels=2 * LABELS2 - 1), TRUTH2, r"0 …|0 and 1|0…"),
    Case("labels 1 and 2 of a binary model", npz(logits=LOGITS2, labels=LABELS2 + 1), TRUTH2, COUNT_FROM_1, FIRST_1),
    Case("labels True and False", npz(logits=LOGITS2, labels=LABELS2 == 1), TRUTH2, RANGE),
    Case("one-hot labels", npz(**logits(ONE_HOT)), TRUTH, r"argmax"),
    Case("one-hot labels, bool", npz(**logits(ONE_HOT == 1)), TRUTH, r"argmax"),
    Case("soft labels", npz(**logits(0.9 * ONE_HOT + 0.02)), TRUTH, r"class numbers|argmax"),
    Case("multi-hot labels", npz(probs=PROBS, labels=(PROBS > 0.25).astype(int)), None, r"multi|several|more than one"),
    Case(
        "labels as text in .npz",
        npz(**logits(np.array(names_of(LABELS)))),
        TRUTH,
        r"--classes",
        (("--classes", ",".join(NAMES)),),
    ),
    Case(
        "labels as text in .npz, and class names",
        npz(**logits(np.array(names_of(LABELS))), class_names=np.array(NAMES)),
        TRUTH,
    ),
    Case("labels as Python objects", npz(**logits(np.array(names_of(LABELS), object))), None, r"numbers"),
    Case(
        "names as labels, columns in another order",
        text(lines([label(names_of(LABELS)), *columns(PROBS[:, ::-1], [f"prob_{name}" for name in reversed(NAMES)])])),
        Truth(PROBS[:, ::-1], CLASSES - 1 - LABELS),
    ),
    Case(
        "names as labels, plain column names",
        text(lines([*columns(PROBS, NAMES), label(names_of(LABELS))])),
        TRUTH,
        r"--columns|--scores-key",
        (("--columns", ",".join(NAMES)),),
    ),
    Case(
        "names as labels, written with capitals",
        text(lines([label(n.title() for n in names_of(LABELS)), *columns(PROBS, [f"prob_{n}" for n in NAMES])])),
        TRUTH,
        r"'Bird'|'Cat'",
    ),
    Case(
        "names as labels, with spaces around them",
        text(lines([label(f" {n} " for n in names_of(LABELS)), *columns(PROBS, [f"prob_{n}" for n in NAMES])])),
        TRUTH,
        r"' cat|' bird",
    ),
    Case(
        "labels 0.0, 1.0 in a .csv",
        text(lines([label(f"{k}.0" for k in LABELS), *numbered(LOGITS, "logits_")])),
        TRUTH,
    ),
    Case(
        "empty cell among the labels",
        text(lines([label("" if k < 0 else str(k) for k in UNLABELLED), *numbered(LOGITS, "logits_")])),
        subset(UNLABELLED >= 0),
        r"empty|'' is|" + DROP,
    ),
    Case(
        "NA among the labels",
        text(lines([label("NA" if k < 0 else str(k) for k in UNLABELLED), *numbered(LOGITS, "logits_")])),
        subset(UNLABELLED >= 0),
        r"'NA'|" + DROP,
    ),
    Case(
        "True and False as text",
        text(lines([label(str(k == 1) for k in LABELS2), *numbered(LOGITS2, "logits_")])),
        TRUTH2,
        r"0 … ",
    ),
    *(
        Case(
            f"label column {name!r}",
            text(lines([label(name=name), *columns(PROBS, [f"prob_{n}" for n in NAMES])])),
            TRUTH,
            r"--label",
            (("--label", name), ("--labels-key", name)),
        )
        for name in ("LABEL", "Y_true", "Class", "Target", "ground truth", "метка", "true_label")
    ),
    Case(
        "label column 'class' beside plain column names",
        text(lines([*columns(PROBS, NAMES), label(names_of(LABELS), "class")])),
        TRUTH,
        r"--label|--columns",
        (("--label", "class"), ("--labels-key", "class")),
    ),
    Case(
        "coordinates x, y beside the label",
        text(
            lines(
                [
                    ("x", [int(i) for i in SPLIT % 5]),
                    ("y", [int(i) for i in SPLIT % 4]),
                    label(),
                    *numbered(PROBS, "prob_"),
                ]
            )
        ),
        TRUTH,
        r"--label",
        (("--label", "label"), ("--labels-key", "label")),
    ),
    Case(
        "two label columns, names and numbers",
        text(lines([label(), label(names_of(LABELS), "target"), *columns(PROBS, [f"prob_{n}" for n in NAMES])])),
        TRUTH,
        r"--label",
        (("--label", "label"), ("--labels-key", "label")),
    ),
    Case(
        "two label columns that differ",
        text(lines([label((LABELS + 1) % CLASSES, "y"), label(), *numbered(PROBS, "prob_")])),
        TRUTH,
        r"--label",
        (("--label", "label"), ("--labels-key", "label")),
    ),
    # ---- labels in a file of their own
    Case("labels in another .csv", scores_and_labels(ORDERED, lines([label()])), TRUTH, words=OTHER),
    Case(
        "labels in another .csv, in another order, both with an id",
        scores_and_labels(ORDERED, SHUFFLED),
        TRUTH,
        r"\bid\b|order",
        words=OTHER,
    ),
    Case(
        "labels in another .csv, more rows",
        scores_and_labels(ORDERED, lines([label([*LABELS, 0, 1])])),
        None,
        r"one label per row|402",
        words=OTHER,
    ),
    Case(
        "labels in another .csv, column 'class'",
        scores_and_labels(ORDERED, lines([label(name="class")])),
        TRUTH,
        r"--label",
        (("--label", "class"), ("--labels-key", "class")),
        OTHER,
    ),
    Case(
        "labels in another .csv without a header",
        scores_and_labels(ORDERED, "\n".join(str(k) for k in LABELS) + "\n"),
        TRUTH,
        r"header",
        words=OTHER,
    ),
    Case(
        "labels as names in another .csv",
        scores_and_labels(lines(columns(PROBS, [f"prob_{n}" for n in NAMES])), lines([label(names_of(LABELS))])),
        TRUTH,
        r"^(?!.*names of the score columns).*0 … C",  # they are the names of the score columns
        words=OTHER,
    ),
    Case(
        "labels in another file, and the scores' table has a column y_true too",
        scores_and_labels(lines([*numbered(LOGITS, "z"), label(name="y_true")]), lines([label()])),
        TRUTH,
        r"--columns|--scores-key|y_true",
        (("--columns", "z0,z1,z2,z3,z4"), ("--scores-key", "z")),
        OTHER,
    ),
    Case(
        "labels in another file, and other labels in the scores' file",
        several(npz(logits=LOGITS, labels=(LABELS + 1) % CLASSES), npy(labels=LABELS)),
        TRUTH,
        words=("--labels", "{folder}/labels.npy"),
    ),
    Case("labels of another length", npz(**logits(LABELS[:-1])), None, r"one label per row|399"),
]
