"""`avuc calibrate`: files like the others, one fitted and one transformed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .calibrate_checks import (
    BEST,
    HOT,
    SEEN,
    SHUFFLED,
    TEST,
    TEST_LABELS,
    VOTES,
    accuracy_stays,
    before,
    by_name,
    every,
    finite,
    no_worse,
    temperature,
    transformed,
    transformed_table,
    warned,
)
from .own_figures import best_temperature, softmax
from .table import (
    CLASSES,
    LABELS,
    LABELS2,
    LOGITS2,
    NAMES,
    PROBS,
    ROWS,
    CalibrateCase,
    columns,
    label,
    lines,
    names_of,
    numbered,
    text,
)


def files(method: str = "temperature", *, fit: dict[str, Any] | str, apply: dict[str, Any] | str | None = None) -> Any:
    """Archives of arrays, or tables in text."""

    def write(folder: Path, name: str, content: dict[str, Any] | str) -> str:
        if isinstance(content, str):
            return str(text(content, f"{name}.csv")(folder))
        np.savez(folder / f"{name}.npz", **content)
        return str(folder / f"{name}.npz")

    def make(folder: Path) -> list[str]:
        words = [write(folder, "validation", fit), "--method", method]
        if apply is not None:
            path = write(folder, "test", apply)
            words += ["--apply", path, "--to", str(folder / ("out" + Path(path).suffix))]
        return words

    return make


HOT_FILE = {"logits": HOT, "labels": LABELS}
HOT_TABLE = lines([label(names_of(LABELS)), *columns(HOT, [f"logits_{name}" for name in NAMES])])
TEST_RIGHT = softmax(TEST / BEST)
PERCENT = r"--kind percent|divide.*100"
PER_CENT = 100 * softmax(HOT)
RIGHT_HOT = every(temperature(), before(softmax(HOT), LABELS))

CASES = [
    CalibrateCase("logits", files(fit=HOT_FILE), RIGHT_HOT),
    CalibrateCase("probabilities", files(fit={"probs": softmax(HOT), "labels": LABELS}), RIGHT_HOT),
    CalibrateCase("log-probabilities", files(fit={"logits": np.log(softmax(HOT)), "labels": LABELS}), RIGHT_HOT),
    CalibrateCase(
        "per cent",
        files(fit={"predictions": PER_CENT, "labels": LABELS}),
        RIGHT_HOT,
        PERCENT,
        "scores",
    ),
    CalibrateCase(
        "probabilities named logits",
        files(fit={"logits": softmax(HOT), "labels": LABELS}),
        RIGHT_HOT,
        r"--kind",
        "scores",
    ),
    CalibrateCase(
        "labels from 1",
        files(fit={"logits": HOT, "labels": LABELS + 1}),
        RIGHT_HOT,
        r"--first-label|subtract 1",
        "scores",
    ),
    CalibrateCase(
        "labels from 1, the last class absent",
        files(fit={"logits": HOT[LABELS < 4], "labels": LABELS[LABELS < 4] + 1}),
        temperature(best_temperature(HOT[LABELS < 4], LABELS[LABELS < 4])),
        r"--first-label|subtract 1",
        "scores",
    ),
    CalibrateCase(
        "a fold beside plain columns",
        files(fit=lines([label(), ("fold", [i % 5 for i in range(ROWS)]), *columns(HOT, NAMES)])),
        RIGHT_HOT,
        r"--columns|--scores-key",
        "scores",
    ),
    CalibrateCase("float16", files(fit={"logits": HOT.astype(np.float16), "labels": LABELS}), temperature(within=1e-2)),
    CalibrateCase(
        "log-likelihoods near −1e7, float64",
        files(fit={"logits": HOT - 1e7, "labels": LABELS}),
        RIGHT_HOT,
        r"float32",
        "scores",
    ),
    *(
        CalibrateCase(
            f"a random forest with zeros, {method}",
            files(method, fit={"probs": VOTES, "labels": LABELS}),
            every(before(VOTES, LABELS), finite, no_worse),
        )
        for method in ("temperature", "cautious", "avuts", "auavuts", "vector", "smoothed", "ets")
    ),
    CalibrateCase(
        "probabilities with 3 digits, zeros where none were",
        files(fit={"probs": np.round(softmax(HOT), 3), "labels": LABELS}),
        every(finite, no_worse),
    ),
    CalibrateCase(
        "a class missing from the validation rows, temperature",
        files(fit={"logits": HOT[SEEN], "labels": LABELS[SEEN]}),
        temperature(best_temperature(HOT[SEEN], LABELS[SEEN])),
    ),
    CalibrateCase(
        "a class missing from the validation rows, vector",
        files(
            "vector", fit={"logits": HOT[SEEN], "labels": LABELS[SEEN]}, apply={"logits": TEST, "labels": TEST_LABELS}
        ),
        accuracy_stays,
        r"class",
    ),
    CalibrateCase("one class only", files(fit={"logits": HOT[LABELS == 2], "labels": LABELS[LABELS == 2]}), finite),
    CalibrateCase(
        "never wrong",
        files(fit={"logits": 3 * np.eye(5)[LABELS], "labels": LABELS}),
        every(finite, warned("no minimum|bound")),
    ),
    CalibrateCase("constant logits", files(fit={"logits": np.zeros((ROWS, 5)), "labels": LABELS}), finite),
    CalibrateCase(
        "logits of 1e6",
        files(fit={"logits": 1e6 * HOT, "labels": LABELS}),
        every(finite, temperature(1e6 * BEST)),
    ),
    CalibrateCase("1 row", files(fit={"logits": HOT[:1], "labels": LABELS[:1]}), finite),
    CalibrateCase("3 rows and 5 parts", files(fit={"logits": HOT[:3], "labels": LABELS[:3]}), finite),
    CalibrateCase(
        "2 classes",
        files(fit={"logits": 2 * LOGITS2, "labels": LABELS2}),
        temperature(best_temperature(2 * LOGITS2, LABELS2)),
    ),
    # ---- applied
    CalibrateCase(
        "applied to logits", files(fit=HOT_FILE, apply={"logits": TEST}), every(RIGHT_HOT, transformed(TEST_RIGHT))
    ),
    CalibrateCase(
        "applied to probabilities",
        files(fit=HOT_FILE, apply={"probs": softmax(TEST)}),
        transformed(TEST_RIGHT, "probs"),
    ),
    CalibrateCase(
        "applied to whole logits",
        files(fit=HOT_FILE, apply={"logits": np.round(TEST).astype(int)}),
        transformed(softmax(np.round(TEST) / BEST)),
    ),
    CalibrateCase(
        "applied to float16",
        files(fit=HOT_FILE, apply={"logits": TEST.astype(np.float16)}),
        transformed(TEST_RIGHT, within=1e-2),
    ),
    CalibrateCase(
        "applied to draws",
        files(fit=HOT_FILE, apply={"logits": np.stack([TEST, 2 * TEST])}),
        transformed(softmax(np.stack([TEST, 2 * TEST]) / BEST)),
    ),
    CalibrateCase(
        "applied to rows with labels of other classes",
        files(fit=HOT_FILE, apply={"logits": TEST, "labels": TEST_LABELS + 30}),
        transformed(TEST_RIGHT),
        room="scores",
    ),
    CalibrateCase(
        "applied to per cent",
        files(fit=HOT_FILE, apply={"predictions": 100 * softmax(TEST)}),
        transformed(TEST_RIGHT, "predictions"),
        PERCENT,
        "scores",
    ),
    CalibrateCase(
        "applied to probabilities named logits",
        files(fit=HOT_FILE, apply={"logits": softmax(TEST)}),
        transformed(TEST_RIGHT),
        r"--kind|logits_from_probs",
        "scores",
    ),
    CalibrateCase(
        "applied to more classes",
        files(fit=HOT_FILE, apply={"logits": np.hstack([TEST, TEST])}),
        lambda *_: ["answered"],
        r"come from the same model",
    ),
    CalibrateCase(
        "applied to a table with text beside the scores",
        files(
            fit=HOT_FILE,
            apply=lines([("path", [f"a, {i}.png" for i in range(300)]), *numbered(TEST, "logits_")], comma=";"),
        ),
        lambda folder, _: [] if (folder / "out.csv").read_text().startswith("path;logits_0") else ["another dialect"],
    ),
    CalibrateCase(
        "applied to a table with a fold beside the scores",
        files(fit=HOT_FILE, apply=lines([("fold", [i % 5 for i in range(300)]), *numbered(softmax(TEST), "prob_")])),
        transformed_table(
            {f"prob_{k}": TEST_RIGHT[:, k] for k in range(CLASSES)}, {"fold": [str(i % 5) for i in range(300)]}
        ),
    ),
    CalibrateCase(
        "applied to columns in another order, temperature",
        files(fit=HOT_TABLE, apply=lines(columns(TEST[:, SHUFFLED], [f"logits_{NAMES[k]}" for k in SHUFFLED]))),
        transformed_table({f"logits_{n}": TEST[:, k] / BEST for k, n in enumerate(NAMES)}),
    ),
    CalibrateCase(
        "applied to columns in the same order, vector",
        files("vector", fit=HOT_TABLE, apply=lines(columns(TEST, [f"logits_{name}" for name in NAMES]))),
        by_name,
    ),
    CalibrateCase(
        "applied to columns in another order, vector",
        files(
            "vector", fit=HOT_TABLE, apply=lines(columns(TEST[:, SHUFFLED], [f"logits_{NAMES[k]}" for k in SHUFFLED]))
        ),
        by_name,
        r"order|class",
        "scores",
    ),
    CalibrateCase(
        "applied to columns of other classes, vector",
        files("vector", fit=HOT_TABLE, apply=lines(columns(TEST, [f"logits_{name}" for name in "abcde"]))),
        lambda *_: ["answered for classes of other names"],
        r"class|name",
        "scores",
    ),
]
assert PROBS.shape == (ROWS, CLASSES)
