"""Tables: which columns are scores, in which order, and what else stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .own_figures import softmax
from .table import (
    CLASSES,
    LABELS,
    LABELS2,
    LABELS12,
    LOGITS,
    LOGITS12,
    NAMES,
    PROBS,
    PROBS2,
    PROBS12,
    ROWS,
    SPLIT,
    TRUTH,
    TRUTH2,
    TRUTH12,
    Case,
    Truth,
    columns,
    label,
    lines,
    names_of,
    numbered,
    text,
)

Column = tuple[str, Sequence[Any]]
CHOOSE = r"--columns|--scores-key"
THESE = (("--columns", ",".join(NAMES)),)
PREDICTED = PROBS.argmax(1)
EXTRA: dict[str, Column] = {
    "a row number id": ("id", list(range(ROWS))),
    "a sample_id that jumps": ("sample_id", [int(i) for i in 10_000 + 3 * SPLIT]),
    "a fold": ("fold", [int(i) for i in SPLIT % 5]),
    "a confidence": ("confidence", [float(p) for p in PROBS.max(1)]),
    "a predicted class": ("predicted", [int(k) for k in PREDICTED]),
    "a predicted name": ("pred", names_of(PREDICTED)),
    "a flag correct": ("correct", [int(k) for k in PREDICTED == LABELS]),
    "a split in text": ("split", ["test"] * ROWS),
    "a timestamp": ("timestamp", [1_700_000_000 + 7 * i for i in range(ROWS)]),
    "a weight": ("weight", [float(w) for w in 0.5 + SPLIT / ROWS]),
    "a path with a comma": ("image_path", [f"images/set {i % 3}, part {i}.png" for i in range(ROWS)]),
    "a loss": ("loss", [float(v) for v in -np.log(PROBS[np.arange(ROWS), LABELS])]),
    "pandas' row number": ("Unnamed: 0", list(range(ROWS))),
    "pandas' row number twice": ("Unnamed: 0.1", list(range(ROWS))),
}
PROB, LOGIT = columns(PROBS, NAMES), columns(LOGITS, NAMES)
PREFIXED = columns(PROBS, [f"prob_{name}" for name in NAMES])
TEXT_ORDER = sorted(range(12), key=str)  # 0, 1, 10, 11, 2, …
SHUFFLED = [3, 0, 4, 2, 1]


def placed(extra: Column, scores: list[Column], where: str) -> str:
    """The label first, and the extra column before the scores, among them or after them."""
    place = {"before": 0, "among": 2, "after": len(scores)}[where]
    return lines([label(), *scores[:place], extra, *scores[place:]])


def as_text(prefix: str) -> list[Column]:
    return columns(PROBS12[:, TEXT_ORDER], [f"{prefix}{k}" for k in TEXT_ORDER])


CASES = [
    *(
        Case(f"{what} {where} named probabilities", text(placed(extra, PROB, where)), TRUTH, CHOOSE, THESE)
        for (what, extra), where in zip(EXTRA.items(), ["before", "after", "among"] * 5, strict=False)
    ),
    *(
        Case(
            f"{what} {where} named logits",
            text(placed(EXTRA[what], LOGIT, where)),
            TRUTH,
            CHOOSE,
            THESE,
        )
        for what, where in (
            ("a fold", "before"),
            ("a confidence", "after"),
            ("a weight", "among"),
            ("a predicted class", "after"),
            ("a timestamp", "before"),
            ("a loss", "after"),
            ("pandas' row number twice", "before"),
        )
    ),
    Case(
        "every kind of column beside prob_cat, prob_dog, …",
        text(lines([*EXTRA.values(), label(), *PREFIXED])),
        TRUTH,
    ),
    Case(
        "every kind of column among prob_cat, prob_dog, …",
        text(lines([*PREFIXED[:2], *EXTRA.values(), *PREFIXED[2:], label()])),
        TRUTH,
    ),
    Case(
        "prob_* in another order with names as labels",
        text(lines([label(names_of(LABELS)), *(PREFIXED[k] for k in SHUFFLED)])),
        Truth(PROBS[:, SHUFFLED], np.array([SHUFFLED.index(k) for k in LABELS])),
    ),
    Case(
        "prob_3, prob_0, … numbered in another order",
        text(lines([label(), *(numbered(PROBS, "prob_")[k] for k in SHUFFLED)])),
        TRUTH,
    ),
    Case(
        "logits_0 … logits_11 sorted as text",
        text(lines([label(LABELS12), *columns(LOGITS12[:, TEXT_ORDER], [f"logits_{k}" for k in TEXT_ORDER])])),
        TRUTH12,
    ),
    *(
        Case(
            f"{prefix}0 … {prefix}11 sorted as text",
            text(lines([label(LABELS12), *as_text(prefix)])),
            TRUTH12,
            CHOOSE,
            (("--columns", ",".join(f"{prefix}{k}" for k in range(12))), ("--scores-key", prefix)),
        )
        for prefix in ("p", "class_", "prob_class_", "prob_c", "softmax.", "Class ", "probability_")
    ),
    Case("columns 0 … 11 sorted as text", text(lines([label(LABELS12), *as_text("")])), TRUTH12, CHOOSE),
    Case(
        "class_01 … class_12 sorted",
        text(lines([label(LABELS12), *columns(PROBS12, [f"class_{k:02}" for k in range(1, 13)])])),
        TRUTH12,
        CHOOSE,
        (("--scores-key", "class_"),),
    ),
    Case(
        "columns 0 … 4 of a data frame",
        text(lines([("", list(range(ROWS))), *numbered(PROBS, ""), label()])),
        TRUTH,
        CHOOSE,
    ),
    # ---- several families
    Case(
        "logits_* and probs_* of the same model",
        text(lines([label(), *numbered(LOGITS, "logits_"), *numbered(PROBS, "probs_")])),
        TRUTH,
        r"--scores-key",
        (("--scores-key", "logits_"),),
    ),
    Case(
        "logits_* before and prob_* after calibration",
        text(lines([label(), *numbered(LOGITS, "logits_"), *numbered(softmax(LOGITS / 3), "prob_")])),
        TRUTH,
        CHOOSE,
        (("--scores-key", "logits_"),),
        says=CHOOSE,
    ),
    Case(
        "logits of two models, logits_a_* and logits_b_*",
        text(lines([label(), *numbered(LOGITS, "logits_a_"), *numbered(-LOGITS, "logits_b_")])),
        TRUTH,
        CHOOSE,
        (("--scores-key", "logits_a_"),),
    ),
    Case(
        "probabilities of two models, prob_a_* and prob_b_*",
        text(lines([label(), *numbered(PROBS, "prob_a_"), *numbered(PROBS[:, ::-1], "prob_b_")])),
        TRUTH,
        CHOOSE,
        (("--scores-key", "prob_a_"),),
    ),
    Case(
        "logits_0 … logits_4 and logits_max",
        text(lines([label(), *numbered(LOGITS, "logits_"), ("logits_max", [float(z) for z in LOGITS.max(1)])])),
        TRUTH,
        CHOOSE,
        (("--columns", "logits_0,logits_1,logits_2,logits_3,logits_4"),),
    ),
    Case(
        "prob_cat … prob_horse and prob_max",
        text(lines([label(), *PREFIXED, ("prob_max", [float(p) for p in PROBS.max(1)])])),
        TRUTH,
        CHOOSE,
        (("--columns", ",".join(f"prob_{name}" for name in NAMES)),),
    ),
    Case(
        "score_cat … score_horse and score_entropy, logits",
        text(lines([label(), *columns(LOGITS, [f"score_{n}" for n in NAMES]), ("score_entropy", [0.5] * ROWS)])),
        TRUTH,
        CHOOSE,
        (("--columns", ",".join(f"score_{name}" for name in NAMES)),),
    ),
    Case(
        "predictions (the class) beside named probabilities",
        text(lines([label(), *PROB, ("predictions", [int(k) for k in PREDICTED])])),
        TRUTH,
        CHOOSE,
        THESE,
    ),
    Case(
        "score (the confidence) beside named probabilities",
        text(lines([label(), ("score", [float(p) for p in PROBS.max(1)]), *PROB])),
        TRUTH,
        CHOOSE,
        THESE,
    ),
    Case(
        "prob (the confidence) beside logit_0 … logit_4",
        text(lines([label(), ("prob", [float(p) for p in PROBS.max(1)]), *numbered(LOGITS, "logit_")])),
        TRUTH,
    ),
    Case(
        "features beside the probabilities",
        text(lines([*numbered(LOGITS[:, :3] * 7, "feature_"), *numbered(PROBS, "p_"), label()])),
        TRUTH,
        CHOOSE,
        (("--columns", "p_0,p_1,p_2,p_3,p_4"), ("--scores-key", "p_")),
    ),
    Case(
        "Prob_0 … Prob_4 in capitals, and a fold",
        text(lines([label(), EXTRA["a fold"], *numbered(PROBS, "Prob_")])),
        TRUTH,
        CHOOSE,
        (("--scores-key", "Prob_"),),
    ),
    Case(
        "Logits_0 … Logits_4 in capitals, and a predicted class",
        text(lines([label(), *numbered(LOGITS, "Logits_"), EXTRA["a predicted class"]])),
        TRUTH,
        CHOOSE,
        (("--scores-key", "Logits_"),),
    ),
    Case(
        "one-hot labels in columns label_0 … label_4",
        text(
            lines(
                [*columns(np.eye(CLASSES)[LABELS], [f"label_{k}" for k in range(CLASSES)]), *numbered(PROBS, "prob_")]
            )
        ),
        TRUTH,
        r"--label|one-hot|argmax",
    ),
    Case(
        "digits 3 and 7 as classes, prob_3 and prob_7",
        text(lines([label(np.where(LABELS2 == 1, 7, 3)), *columns(PROBS2, ["prob_3", "prob_7"])])),
        TRUTH2,
        r"gaps|0, 1, 2",
    ),
    Case(
        "prob_negative and prob_positive",
        text(lines([label(LABELS2), *columns(PROBS2, ["prob_negative", "prob_positive"])])),
        TRUTH2,
    ),
    Case(
        "prob_positive before prob_negative, labels in words",
        text(
            lines(
                [
                    ("label", [("negative", "positive")[k] for k in LABELS2]),
                    *columns(PROBS2[:, ::-1], ["prob_positive", "prob_negative"]),
                ]
            )
        ),
        Truth(PROBS2[:, ::-1], 1 - LABELS2),
    ),
    Case(
        "only three of five classes saved",
        text(lines([label(), *numbered(PROBS, "prob_")[:3]])),
        None,
        r"sum|out of range",
    ),
    Case(
        "a class number missing, prob_0, prob_1, prob_3",
        text(lines([label(LABELS2), *(numbered(PROBS, "prob_")[k] for k in (0, 1, 3))])),
        None,
        r"gaps|without gaps",
    ),
]
assert len(NAMES) == CLASSES
