"""What the numbers are: rounded, in per cent, logarithms, counts, margins, missing, infinite, extreme."""

from __future__ import annotations

import numpy as np

from .own_figures import softmax
from .table import (
    CLASSES,
    DRAWN,
    DRAWN_PROBS,
    DRAWN_TRUTH,
    LABELS,
    LABELS2,
    LABELS12,
    LOGITS,
    LOGITS2,
    NAMES,
    PROBS,
    PROBS2,
    PROBS12,
    ROWS,
    TRUTH,
    TRUTH2,
    TRUTH12,
    Case,
    Truth,
    columns,
    data,
    label,
    lines,
    npz,
    numbered,
    text,
)

KIND = r"--kind"
LOGIT_KIND, PROB_KIND = (("--kind", "logits"),), (("--kind", "probs"),)
PERCENT = r"--kind percent|divide.*100"
PERCENT_KIND = (("--kind", "percent"),)
ROUNDED = r"round|digits|divide|normali"
LARGE = r"float32|row"


def rounded(values: np.ndarray, digits: int) -> Truth:
    """The rows as rounded, each divided by its sum."""
    kept = np.round(values, digits)
    return Truth(kept / kept.sum(1, keepdims=True), LABELS if len(kept[0]) == CLASSES else LABELS12)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest number with 8 significant bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def put(values: np.ndarray, row: int, column: int, value: float) -> np.ndarray:
    changed = values.astype(np.float64).copy()
    changed[row, column] = value
    return changed


def file(labels: np.ndarray = LABELS, **scores: np.ndarray) -> object:
    return npz(labels=labels, **scores)


# a sum below 0.99 or above 1.01 in some row, as twelve rounded classes have it
TWO_DIGITS12 = np.round(PROBS12, 2)
VOTES = np.array([np.random.default_rng(i).multinomial(100, p) for i, p in enumerate(PROBS)])
FOREST = Truth(VOTES / 100, LABELS)
SIGMOID = 1 / (1 + np.exp(-LOGITS))
CONSTANT = Truth(np.full((ROWS, CLASSES), 1 / CLASSES), LABELS)
HARD = np.eye(CLASSES)[PROBS.argmax(1)]
SATURATED = np.where(PROBS.max(1, keepdims=True) > 0.9, HARD, PROBS)
MASKED = LOGITS.copy()
MASKED[np.arange(ROWS), (LABELS + 1 + np.arange(ROWS) % 3) % CLASSES] = -np.inf
SHIFTED = LOGITS - 1e7  # joint log-likelihoods, as naive Bayes has them
TWICE = np.repeat(np.arange(ROWS), 2)
RARE, RARE_LABELS = data(300, 5, seed=11)
MANY, MANY_LABELS = data(60, 10_000, seed=12, margin=9.0)
ONE_CLASS = LABELS == 2

CASES = [
    # ---- rounded
    *(
        Case(f"probabilities with {n} digits", file(probs=np.round(PROBS, n)), rounded(PROBS, n), within=1e-3)
        for n in (3, 4)
    ),
    Case(
        "probabilities with 2 digits, sums 0.98 … 1.02",
        file(probs=np.round(PROBS, 2)),
        rounded(PROBS, 2),
        ROUNDED,
        within=1e-3,
    ),
    Case(
        "probabilities of 12 classes with 2 digits, named probs",
        file(LABELS12, probs=TWO_DIGITS12),
        rounded(PROBS12, 2),
        ROUNDED,
        within=1e-3,
    ),
    Case(
        "probabilities of 12 classes with 2 digits, named predictions",
        file(LABELS12, predictions=TWO_DIGITS12),
        rounded(PROBS12, 2),
        r"--kind probs|" + ROUNDED,
        PROB_KIND,
        within=1e-3,
    ),
    Case(
        "probabilities of 12 classes with 2 digits, in a .csv",
        text(lines([label(LABELS12), *numbered(PROBS12, "class_")], digits=".2f")),
        rounded(PROBS12, 2),
        r"--kind probs|--columns|" + ROUNDED,
        (*PROB_KIND, ("--columns", ",".join(f"class_{k}" for k in range(12)), "--kind", "probs")),
        within=1e-3,
    ),
    Case("probabilities as float16", file(probs=PROBS.astype(np.float16)), TRUTH, within=2e-3),
    Case("logits as float16", file(logits=LOGITS.astype(np.float16)), TRUTH, within=2e-3),
    Case("probabilities rounded to bfloat16", file(probs=bfloat16(PROBS)), TRUTH, within=6e-3),
    Case("probabilities rounded to bfloat16, named scores", file(scores=bfloat16(PROBS)), TRUTH, within=6e-3),
    # ---- per cent
    Case("per cent, named probs", file(probs=100 * PROBS), TRUTH, PERCENT, PERCENT_KIND),
    Case("per cent, named predictions", file(predictions=100 * PROBS), TRUTH, PERCENT, PERCENT_KIND),
    Case("per cent, named scores", file(scores=(100 * PROBS).astype(np.float32)), TRUTH, PERCENT, PERCENT_KIND),
    Case(
        "per cent with one digit, in a .csv with plain names",
        text(lines([*columns(100 * PROBS, NAMES), label()], digits=".1f")),
        rounded(PROBS, 3),
        PERCENT + r"|--columns",
        PERCENT_KIND,
        within=1e-3,
    ),
    Case(
        "per cent in columns prob_*",
        text(lines([label(), *numbered(100 * PROBS, "prob_")])),
        TRUTH,
        PERCENT,
        PERCENT_KIND,
    ),
    Case(
        "per cent with a % sign in a .csv",
        text(lines([label(), *((n, [f"{v:.2f}%" for v in c]) for n, c in columns(100 * PROBS, NAMES))])),
        rounded(PROBS, 4),
        r"%|per ?cent",
        within=1e-3,
    ),
    # ---- logarithms
    Case("log-probabilities, named logits", file(logits=np.log(PROBS)), TRUTH),
    Case("log-probabilities, named scores", file(scores=np.log(PROBS)), TRUTH, KIND, LOGIT_KIND),
    Case("log-probabilities, named probs", file(probs=np.log(PROBS)), TRUTH, KIND, LOGIT_KIND),
    Case(
        "log-probabilities, named log_probs",
        file(log_probs=np.log(PROBS)),
        TRUTH,
        r"--scores-key",
        (("--scores-key", "log_probs"),),
    ),
    Case("log2-probabilities, named logits", file(logits=np.log2(PROBS)), TRUTH, r"log2|base 2|natural"),
    Case("log10-probabilities, named scores", file(scores=np.log10(PROBS)), TRUTH, r"log10|base 10|natural|--kind"),
    Case("binary log-odds, one column", file(LABELS2, logits=LOGITS2[:, 1:] - LOGITS2[:, :1]), TRUTH2),
    # ---- kinds under another name
    Case("probabilities, named logits", file(logits=PROBS), TRUTH, KIND, PROB_KIND),
    Case("probabilities, named predictions", file(predictions=PROBS), TRUTH),
    Case("logits, named predictions", file(predictions=LOGITS), TRUTH, KIND, LOGIT_KIND),
    Case("logits, named probs", file(probs=LOGITS), TRUTH, KIND, LOGIT_KIND),
    Case("softmax of draws, named logits", file(logits=DRAWN_PROBS), DRAWN_TRUTH, KIND, PROB_KIND),
    Case(
        "probabilities read with --kind logits",
        file(probs=PROBS),
        Truth(softmax(PROBS), LABELS),
        KIND,
        words=("--kind", "logits"),
        says=r"probabilit|sum to 1",
    ),
    Case("logits read with --kind probs", file(logits=LOGITS), None, KIND, words=("--kind", "probs")),
    Case("softmax of draws, stacked (S, N, C)", file(probs=DRAWN_PROBS), DRAWN_TRUTH),
    Case("logits of draws, stacked (S, N, C)", file(logits=DRAWN), DRAWN_TRUTH),
    Case(
        "temperature-scaled probabilities",
        file(probs=softmax(LOGITS / 1.7)),
        Truth(softmax(LOGITS / 1.7), LABELS),
    ),
    # ---- not normalised
    Case(
        "votes of 100 trees, named scores", file(scores=VOTES), FOREST, KIND + r"|100|sum", only=("accuracy", "brier")
    ),
    Case("votes of 100 trees, named probs", file(probs=VOTES), FOREST, r"divide|100|sum"),
    Case("shares of 100 trees", file(probs=VOTES / 100), FOREST),
    Case("odds p/(1−p), named scores", file(scores=PROBS / (1 - PROBS)), TRUTH, KIND),
    Case("odds p/(1−p), named probs", file(probs=PROBS / (1 - PROBS)), TRUTH, r"softmax|normal|divide"),
    Case("one-against-rest sigmoids, named scores", file(scores=SIGMOID), None, KIND),
    Case("one-against-rest sigmoids, named probs", file(probs=SIGMOID), None, r"softmax|sum"),
    Case(
        "multi-label sigmoids with multi-hot labels",
        npz(predictions=SIGMOID, labels=(SIGMOID > 0.6).astype(int)),
        None,
        r"class number|multi-label|one label per row",
    ),
    # ---- binary
    Case("probability of the positive class (N,)", file(LABELS2, probs=PROBS2[:, 1]), TRUTH2),
    Case("probability of the positive class (N, 1)", file(LABELS2, probs=PROBS2[:, 1:]), TRUTH2),
    Case(
        "probability of the positive class in a .csv",
        text(lines([label(LABELS2), ("prob", [float(p) for p in PROBS2[:, 1]])])),
        TRUTH2,
    ),
    Case("predict_proba of a binary classifier (N, 2)", file(LABELS2, predictions=PROBS2), TRUTH2),
    Case(
        "margins of a support vector machine (N,)",
        file(LABELS2, scores=LOGITS2[:, 1] - LOGITS2[:, 0]),
        TRUTH2,
        r"--kind logits if these are the log-odds",
        (("--kind", "logits"),),
    ),
    Case("confidence of the predicted class", file(LABELS2, probs=PROBS2.max(1)), None, r"confidences"),
    Case(
        "the predicted class, named predictions", file(LABELS2, predictions=PROBS2.argmax(1)), None, r"predicted class"
    ),
    Case("outputs of a regression (N,)", file(np.sort(LOGITS[:, 0]), predictions=LOGITS[:, 0]), None, r"column|class"),
    Case("outputs of a regression (N, 2)", file(LOGITS[:, 0], predictions=LOGITS[:, :2]), None, r"class number"),
    # ---- missing, infinite
    Case("NaN in one cell", file(logits=put(LOGITS, 7, 2, np.nan)), None, r"row 7.*drop"),
    Case("+inf in one cell", file(logits=put(LOGITS, 7, 2, np.inf)), None, r"row 7.*drop"),
    Case("−inf for impossible classes", file(logits=MASKED), Truth(softmax(MASKED), LABELS), r"row \d+.*drop"),
    Case("−inf in a whole row", file(logits=np.where(np.arange(ROWS)[:, None] == 7, -np.inf, LOGITS)), None, r"row 7"),
    *(
        Case(
            f"a missing cell written {word!r}",
            text(lines([label(), *numbered(LOGITS, "logits_")]).replace(f"{LOGITS[7, 2]:.9g}", word, 1)),
            None,
            r"row|line",
        )
        for word in ("", "NA", "nan", "None", "-", "#N/A", "?", "1e999")
    ),
    # ---- exact and extreme
    Case("hard predictions 0 and 1", file(probs=HARD), Truth(HARD, LABELS)),
    Case(
        "hard predictions 0 and 1, integers named predictions", file(predictions=HARD.astype(int)), Truth(HARD, LABELS)
    ),
    Case("hard predictions, bool", file(predictions=HARD == 1), Truth(HARD, LABELS), r"probabilities"),
    Case("some probabilities exactly 0 and 1", file(probs=SATURATED), Truth(SATURATED, LABELS)),
    Case("constant logits", file(logits=np.zeros((ROWS, CLASSES))), CONSTANT),
    Case("constant probabilities", file(probs=np.full((ROWS, CLASSES), 0.2)), CONSTANT),
    Case("every row twice", file(LABELS[TWICE], logits=LOGITS[TWICE]), Truth(PROBS[TWICE], LABELS[TWICE])),
    Case("whole logits", file(logits=np.round(LOGITS).astype(np.int64)), Truth(softmax(np.round(LOGITS)), LABELS)),
    Case("logits of 1e6", file(logits=1e6 * LOGITS), Truth(softmax(1e6 * LOGITS), LABELS)),
    Case("logits of 1e300", file(logits=1e300 * LOGITS), Truth(softmax(1e300 * LOGITS), LABELS), LARGE),
    Case("log-likelihoods near −1e7, float64", file(logits=SHIFTED), Truth(softmax(SHIFTED), LABELS), LARGE),
    Case(
        "probabilities down to 1e-310",
        file(probs=np.where(PROBS.max(1, keepdims=True) == PROBS, 1.0, 1e-310)),
        Truth(HARD, LABELS),
    ),
    # ---- classes and rows
    Case(
        "one class only among the labels",
        file(LABELS[ONE_CLASS], logits=LOGITS[ONE_CLASS]),
        Truth(PROBS[ONE_CLASS], LABELS[ONE_CLASS]),
    ),
    Case(
        "a rare class",
        file(np.where(RARE_LABELS == 4, 3, RARE_LABELS), logits=RARE),
        Truth(softmax(RARE), np.where(RARE_LABELS == 4, 3, RARE_LABELS)),
    ),
    Case("2 classes", file(LABELS2, logits=LOGITS2), TRUTH2),
    Case("12 classes", file(LABELS12, probs=PROBS12), TRUTH12),
    Case("10,000 classes", file(MANY_LABELS, logits=MANY.astype(np.float32)), Truth(softmax(MANY), MANY_LABELS)),
    Case("1 row", file(LABELS[:1], logits=LOGITS[:1]), Truth(PROBS[:1], LABELS[:1])),
    Case("0 rows", file(LABELS[:0], logits=LOGITS[:0]), None, r"at least one row"),
    Case("0 rows in a .csv", text("label,logits_0,logits_1\n"), None, r"at least one row"),
]
