"""Parquet: types of columns, lists, nulls, categories, what stands beside the scores."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .table import (
    CLASSES,
    DRAWN,
    DRAWN_TRUTH,
    LABELS,
    LABELS2,
    LOGITS,
    NAMES,
    PROBS,
    PROBS2,
    ROWS,
    TRUTH,
    TRUTH2,
    Case,
    names_of,
    subset,
)

CHOOSE = r"--columns|--scores-key"
NUMBERS = r"float|number"
Maker = Callable[[Path], Path]


def parquet(groups: int | None = None, **columns: Any) -> Maker:
    def make(folder: Path) -> Path:
        table = pa.table({n: c if isinstance(c, pa.Array) else pa.array(c) for n, c in columns.items()})
        pq.write_table(table, folder / "scores.parquet", row_group_size=groups)
        return folder / "scores.parquet"

    return make


def wide(values: np.ndarray, prefix: str, kind: Any) -> dict[str, Any]:
    return {f"{prefix}{k}": pa.array(values[:, k], kind) for k in range(values.shape[1])}


def listed(values: np.ndarray, kind: Any) -> Any:
    return pa.array(values.tolist(), kind)


ANSWERS = pa.array(LABELS)
SOME = np.arange(ROWS) % 10 == 3
STRUCT = pa.array([dict(zip(NAMES, row, strict=True)) for row in PROBS.tolist()])
DECIMAL = [pa.array([decimal.Decimal(f"{p:.6f}") for p in PROBS[:, k]], pa.decimal128(9, 6)) for k in range(CLASSES)]

CASES = [
    # ---- Parquet
    *(
        Case(
            f"parquet, {name} columns",
            parquet(label=ANSWERS, **wide(LOGITS.astype(kind), "logits_", arrow)),
            TRUTH,
            within=tol,
        )
        for name, kind, arrow, tol in (
            ("float16", np.float16, pa.float16(), 3e-3),
            ("float32", np.float32, pa.float32(), 2e-4),
            ("float64", np.float64, pa.float64(), 2e-4),
        )
    ),
    Case(
        "parquet, decimal columns",
        parquet(label=ANSWERS, **{f"prob_{k}": c for k, c in enumerate(DECIMAL)}),
        TRUTH,
        r"float|cast",
    ),
    Case("parquet, a list column", parquet(probs=listed(PROBS, pa.list_(pa.float64())), label=ANSWERS), TRUTH),
    Case(
        "parquet, a fixed-size list column",
        parquet(probs=listed(PROBS, pa.list_(pa.float32(), 5)), label=ANSWERS),
        TRUTH,
    ),
    Case(
        "parquet, a large list column",
        parquet(logits=listed(LOGITS, pa.large_list(pa.float32())), label=ANSWERS),
        TRUTH,
    ),
    Case(
        "parquet, lists of draws in a row",
        parquet(logits=listed(DRAWN.transpose(1, 0, 2), pa.list_(pa.list_(pa.float64()))), label=ANSWERS),
        DRAWN_TRUTH,
    ),
    Case(
        "parquet, lists of different length",
        parquet(probs=pa.array([[0.5, 0.5], [1.0]]), label=[0, 0]),
        None,
        r"length",
    ),
    Case(
        "parquet, a list column of unknown name",
        parquet(softmax_output=listed(PROBS, pa.list_(pa.float64())), label=ANSWERS),
        TRUTH,
        CHOOSE,
        (("--columns", "softmax_output"), ("--scores-key", "softmax_output")),
    ),
    Case(
        "parquet, a list of embeddings beside named probabilities",
        parquet(
            embedding=listed(LOGITS[:, :3], pa.list_(pa.float32())), label=ANSWERS, **wide(PROBS, "p_", pa.float64())
        ),
        TRUTH,
        CHOOSE,
        (("--columns", "p_0,p_1,p_2,p_3,p_4"), ("--scores-key", "p_")),
    ),
    Case(
        "parquet, nullable whole labels without nulls",
        parquet(label=pa.array(LABELS.tolist(), pa.int16()), **wide(LOGITS, "logits_", pa.float64())),
        TRUTH,
    ),
    Case(
        "parquet, nulls among the labels",
        parquet(
            label=pa.array([None if s else int(k) for s, k in zip(SOME, LABELS, strict=True)]),
            **wide(LOGITS, "logits_", pa.float64()),
        ),
        subset(~SOME),
        r"label every|drop|leave out|without a label",
    ),
    Case(
        "parquet, nulls among the scores",
        parquet(label=ANSWERS, logits_0=pa.array([None, *LOGITS[1:, 0].tolist()]), logits_1=LOGITS[:, 1]),
        None,
        r"empty|null",
    ),
    Case(
        "parquet, categories as labels",
        parquet(
            label=pa.array(names_of(LABELS)).dictionary_encode(),
            **{f"prob_{n}": PROBS[:, k] for k, n in enumerate(NAMES)},
        ),
        TRUTH,
    ),
    Case(
        "parquet, categories of numbers as labels",
        parquet(label=pa.array(LABELS).dictionary_encode(), **wide(PROBS, "prob_", pa.float64())),
        TRUTH,
        NUMBERS,
    ),
    Case(
        "parquet, labels as bool",
        parquet(label=pa.array(LABELS2 == 1), **wide(PROBS2, "prob_", pa.float64())),
        TRUTH2,
        r"0 … |class number",
    ),
    Case(
        "parquet, labels as numbers in text",
        parquet(label=pa.array([str(k) for k in LABELS]), **wide(PROBS, "prob_", pa.float64())),
        TRUTH,
    ),
    Case(
        "parquet, pandas' index",
        parquet(**wide(PROBS, "", pa.float64()), label=ANSWERS, __index_level_0__=pa.array(range(ROWS))),
        TRUTH,
        CHOOSE,
    ),
    Case(
        "parquet, several row groups", parquet(groups=37, label=ANSWERS, **wide(LOGITS, "logits_", pa.float32())), TRUTH
    ),
    Case(
        "parquet, a record of classes in one column",
        parquet(probs=STRUCT, label=ANSWERS),
        TRUTH,
        r"list column|column per class|one column",
    ),
    Case(
        "parquet, a date beside named probabilities",
        parquet(
            day=pa.array([18000] * ROWS, pa.date32()), label=ANSWERS, **{n: PROBS[:, k] for k, n in enumerate(NAMES)}
        ),
        TRUTH,
        CHOOSE,
        (("--columns", ",".join(NAMES)),),
    ),
    Case(
        "parquet, a fold beside named probabilities",
        parquet(fold=pa.array(LABELS[::-1] % 3), label=ANSWERS, **{n: PROBS[:, k] for k, n in enumerate(NAMES)}),
        TRUTH,
        CHOOSE,
        (("--columns", ",".join(NAMES)),),
    ),
    Case(
        "parquet, a chunked text column of file names",
        parquet(
            file_name=pa.array([f"{i}.png" for i in range(ROWS)]), label=ANSWERS, **wide(LOGITS, "logit_", pa.float64())
        ),
        TRUTH,
    ),
    Case(
        "parquet, a list column logits and a number logits_temperature",
        parquet(
            logits=listed(LOGITS, pa.list_(pa.float64())), logits_temperature=pa.array([1.5] * ROWS), label=ANSWERS
        ),
        TRUTH,
        CHOOSE,
        (("--columns", "logits"), ("--scores-key", "logits")),
    ),
]
