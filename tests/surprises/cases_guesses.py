"""Files that invite a wrong guess: other numbers where scores could be, and scores of another kind."""

from __future__ import annotations

import numpy as np

from .own_figures import softmax
from .table import (
    CLASSES,
    LABELS,
    LABELS2,
    LOGITS,
    LOGITS2,
    NAMES,
    PROBS,
    PROBS2,
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
    npz,
    numbered,
    subset,
    text,
)

CHOOSE = r"--columns|--scores-key"
THESE = (("--columns", ",".join(NAMES)),)
PROB, LOGIT = columns(PROBS, NAMES), columns(LOGITS, NAMES)
RNG = np.random.default_rng(41)
AGE = ("age", [int(v) for v in RNG.integers(18, 90, ROWS)])
HEIGHT = ("height", [float(v) for v in RNG.normal(170, 9, ROWS).round(1)])
POSITIVE = ("positive", [float(p) for p in PROBS2[:, 1]])
ODD = LOGITS2[:, 1] - LOGITS2[:, 0]
SEEN = LABELS < 3
TREES = np.array([np.random.default_rng(i).multinomial(500, p) for i, p in enumerate(PROBS)])
BYTES = np.round(255 * PROBS).astype(np.uint8)
EXAMS = [(f"score_{name}", [int(v) for v in RNG.integers(20, 100, ROWS)]) for name in ("math", "reading")]
KIND = r"--kind|divide|sum"
VOTES = Truth(TREES / 500, LABELS)
FROM_0 = LOGITS - LOGITS.min()
THOUSANDTHS = np.round(1000 * PROBS)
SHARP = softmax(LOGITS / 0.01)


def beside(name: str, values: object, scores: list[tuple[str, list[float]]], what: str) -> Case:
    return Case(
        f"a column {name} beside {what}", text(lines([label(), (name, list(values)), *scores])), TRUTH, CHOOSE, THESE
    )


CASES = [
    # ---- names that no list of words foresees
    *(
        beside(name, values, LOGIT, "named logits")
        for name, values in (
            ("age", AGE[1]),
            ("patient", [int(v) for v in 1000 + SPLIT // 3]),
            ("iou", [float(v) for v in RNG.random(ROWS).round(3)]),
            ("rank", [int(v) for v in SPLIT]),
            ("lr", [0.001] * ROWS),
            ("x", [float(v) for v in RNG.normal(size=ROWS).round(3)]),
            ("temperature", [1.5] * ROWS),
            ("flag", [0] * ROWS),
        )
    ),
    *(
        beside(name, values, PROB, "named probabilities")
        for name, values in (
            ("age", AGE[1]),
            ("iou", [float(v) for v in RNG.random(ROWS).round(3)]),
            ("lr", [0.001] * ROWS),
            ("noise", [float(v) for v in (0.008 * RNG.random(ROWS)).round(5)]),
            ("flag", [0] * ROWS),
            ("late flag", [int(i >= 390) for i in range(ROWS)]),
            ("rare", [0.0] * 399 + [0.5]),
        )
    ),
    Case(
        "a flag that is 0 in the first 300 rows beside named probabilities",
        text(lines([label(), *PROB, ("drift", [0] * 300 + [1] * 100)])),
        TRUTH,
        CHOOSE,
        THESE,
    ),
    # ---- as many numbers as classes, but not the scores of the classes
    Case("an age and a height with labels 0 and 1", text(lines([AGE, HEIGHT, label(LABELS2)])), None, CHOOSE),
    Case(
        "the probability of the positive class and an age",
        text(lines([AGE, POSITIVE, label(LABELS2)])),
        TRUTH2,
        CHOOSE + r"|1 − p|both columns",
    ),
    Case(
        "the log-odds of the positive class and an age",
        text(lines([("z", [float(v) for v in ODD.round(4)]), AGE, label(LABELS2)])),
        TRUTH2,
        CHOOSE + r"|\[0, z\]",
    ),
    Case(
        "exam results score_math and score_reading beside the probabilities pass and fail",
        text(lines([*EXAMS, *columns(PROBS2, ("fail", "pass")), ("label", [("fail", "pass")[k] for k in LABELS2])])),
        TRUTH2,
        CHOOSE,
        (("--columns", "fail,pass"),),
    ),
    Case(
        "exam results score_math and score_reading beside the probabilities pass and fail, labels 0 and 1",
        text(lines([*EXAMS, *columns(PROBS2, ("fail", "pass")), label(LABELS2)])),
        TRUTH2,
        CHOOSE,
        (("--columns", "fail,pass"),),
    ),
    Case(
        "features x1, x2, x3 beside named probabilities",
        text(lines([*numbered(10 * LOGITS[:, :3], "x", 1), *PROB, label()])),
        TRUTH,
        CHOOSE,
        THESE,
    ),
    Case(
        "features x1, x2, x3 beside named logits",
        text(lines([*numbered(10 * LOGITS[:, :3], "x", 1), *LOGIT, label()])),
        TRUTH,
        CHOOSE,
        THESE,
    ),
    # ---- names as labels, and some classes absent from them
    Case(
        "names as labels, two classes absent, plain probabilities",
        text(lines([*columns(PROBS[SEEN], NAMES), label(names_of(LABELS[SEEN]))])),
        subset(SEEN),
        CHOOSE,
        THESE,
    ),
    Case(
        "names as labels, two classes absent, plain logits",
        text(lines([*columns(LOGITS[SEEN], NAMES), label(names_of(LABELS[SEEN]))])),
        subset(SEEN),
        CHOOSE,
        THESE,
    ),
    Case(
        "names as labels, two classes absent, logits p_cat, p_dog, …, and a fold",
        text(
            lines(
                [
                    ("fold", [int(i) % 5 for i in SPLIT[SEEN]]),
                    *columns(LOGITS[SEEN], [f"p_{n}" for n in NAMES]),
                    label(names_of(LABELS[SEEN])),
                ]
            )
        ),
        subset(SEEN),
        CHOOSE,
        (("--columns", ",".join(f"p_{n}" for n in NAMES)), ("--scores-key", "p_")),
    ),
    Case(
        "numbers as labels, the last class absent, plain logits",
        text(lines([*columns(LOGITS[LABELS < 4], NAMES), label(LABELS[LABELS < 4])])),
        subset(LABELS < 4),
        CHOOSE,
        THESE,
    ),
    # ---- scores of another kind
    Case("votes of 500 trees, named scores", npz(scores=TREES, labels=LABELS), VOTES, KIND),
    Case(
        "votes of 500 trees, named predictions",
        npz(predictions=TREES.astype(float), labels=LABELS),
        Truth(TREES / 500, LABELS),
        KIND,
    ),
    Case(
        "8-bit probabilities 0 … 255, named scores",
        npz(scores=BYTES, labels=LABELS),
        Truth(BYTES / BYTES.sum(1, keepdims=True), LABELS),
        KIND,
    ),
    Case(
        "probabilities times 1000, named predictions",
        npz(predictions=THOUSANDTHS, labels=LABELS),
        None,
        KIND,
    ),
    Case(
        "logits from 0 up, named scores",
        npz(scores=FROM_0, labels=LABELS),
        TRUTH,
        r"--kind",
        (("--kind", "logits"),),
    ),
    Case("logits from 0 up, named logits", npz(logits=FROM_0, labels=LABELS), TRUTH),
    Case(
        "softmax with a temperature of 0.01",
        npz(probs=softmax(LOGITS / 0.01), labels=LABELS),
        Truth(softmax(LOGITS / 0.01), LABELS),
    ),
]
assert LABELS.max() == CLASSES - 1
