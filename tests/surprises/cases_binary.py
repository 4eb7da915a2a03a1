"""Binary formats: Parquet, .npz with more in it, pairs of .npy, safetensors, and what Predictions.save wrote."""

from __future__ import annotations

import decimal
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

import avuc

from .own_figures import softmax
from .table import (
    CLASSES,
    DRAWN,
    DRAWN_TRUTH,
    LABELS,
    LOGITS,
    NAMES,
    PROBS,
    ROWS,
    TRUTH,
    Case,
    names_of,
    npy,
    npz,
    several,
    subset,
)

CHOOSE = r"--columns|--scores-key"
KEY = r"--scores-key"
NUMBERS = r"float|number"
Maker = Callable[[Path], Path]


def parquet(groups: int | None = None, **columns: Any) -> Maker:
    def make(folder: Path) -> Path:
        table = columns.get("table") or pa.table({n: c if isinstance(c, pa.Array) else pa.array(c) for n, c in columns.items()})
        pq.write_table(table, folder / "scores.parquet", row_group_size=groups)
        return folder / "scores.parquet"

    return make


def wide(values: np.ndarray, prefix: str, kind: Any) -> dict[str, Any]:
    return {f"{prefix}{k}": pa.array(values[:, k], kind) for k in range(values.shape[1])}


def listed(values: np.ndarray, kind: Any) -> Any:
    return pa.array(values.tolist(), kind)


def safetensors(**tensors: np.ndarray | torch.Tensor) -> Maker:
    def make(folder: Path) -> Path:
        save_file({n: torch.as_tensor(t).contiguous() for n, t in tensors.items()}, folder / "scores.safetensors")
        return folder / "scores.safetensors"

    return make


def predictions(build: Callable[[], avuc.Predictions], name: str = "scores.safetensors") -> Maker:
    def make(folder: Path) -> Path:
        build().save(folder / name)
        return folder / name

    return make


def folder_in_archive(folder: Path) -> Path:
    """An archive made with zip from a folder: its members are named test/logits.npy, test/labels.npy."""
    path = folder / "scores.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in (("logits", LOGITS), ("labels", LABELS)):
            data = io.BytesIO()
            np.save(data, values)
            archive.writestr(f"test/{name}.npy", data.getvalue())
    return path


def pickled(folder: Path) -> Path:
    torch.save({"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}, folder / "scores.pt")
    return folder / "scores.pt"


ANSWERS = pa.array(LABELS)
SOME = np.arange(ROWS) % 10 == 3
STRUCT = pa.array([dict(zip(NAMES, row, strict=True)) for row in PROBS.tolist()])
DECIMAL = [pa.array([decimal.Decimal(f"{p:.6f}") for p in PROBS[:, k]], pa.decimal128(9, 6)) for k in range(CLASSES)]
LOGITS_T, PROBS_T, LABELS_T = torch.tensor(LOGITS), torch.tensor(PROBS), torch.tensor(LABELS)
NPY = r"--labels"

CASES = [
    # ---- Parquet
    *(
        Case(f"parquet, {name} columns", parquet(label=ANSWERS, **wide(LOGITS.astype(kind), "logits_", arrow)), TRUTH, within=tol)
        for name, kind, arrow, tol in (
            ("float16", np.float16, pa.float16(), 3e-3),
            ("float32", np.float32, pa.float32(), 2e-4),
            ("float64", np.float64, pa.float64(), 2e-4),
        )
    ),
    Case("parquet, decimal columns", parquet(label=ANSWERS, **{f"prob_{k}": c for k, c in enumerate(DECIMAL)}), TRUTH, NUMBERS),
    Case("parquet, a list column", parquet(probs=listed(PROBS, pa.list_(pa.float64())), label=ANSWERS), TRUTH),
    Case("parquet, a fixed-size list column", parquet(probs=listed(PROBS, pa.list_(pa.float32(), 5)), label=ANSWERS), TRUTH),
    Case("parquet, a large list column", parquet(logits=listed(LOGITS, pa.large_list(pa.float32())), label=ANSWERS), TRUTH),
    Case(
        "parquet, lists of draws in a row",
        parquet(logits=listed(DRAWN.transpose(1, 0, 2), pa.list_(pa.list_(pa.float64()))), label=ANSWERS),
        DRAWN_TRUTH,
    ),
    Case("parquet, lists of different length", parquet(probs=pa.array([[0.5, 0.5], [1.0]]), label=[0, 0]), None, r"length"),
    Case("parquet, a list column of unknown name", parquet(softmax_output=listed(PROBS, pa.list_(pa.float64())), label=ANSWERS),
         TRUTH, CHOOSE, (("--columns", "softmax_output"), ("--scores-key", "softmax_output"))),
    Case("parquet, a list of embeddings beside named probabilities",
         parquet(embedding=listed(LOGITS[:, :3], pa.list_(pa.float32())), label=ANSWERS, **wide(PROBS, "p_", pa.float64())),
         TRUTH, CHOOSE, (("--columns", "p_0,p_1,p_2,p_3,p_4"), ("--scores-key", "p_"))),
    Case("parquet, nullable whole labels without nulls", parquet(label=pa.array(LABELS.tolist(), pa.int16()),
         **wide(LOGITS, "logits_", pa.float64())), TRUTH),
    Case("parquet, nulls among the labels", parquet(label=pa.array([None if s else int(k) for s, k in zip(SOME, LABELS, strict=True)]),
         **wide(LOGITS, "logits_", pa.float64())), subset(~SOME), r"empty|null"),
    Case("parquet, nulls among the scores", parquet(label=ANSWERS, logits_0=pa.array([None, *LOGITS[1:, 0].tolist()]),
         logits_1=LOGITS[:, 1]), None, r"empty|null"),
    Case("parquet, categories as labels", parquet(label=pa.array(names_of(LABELS)).dictionary_encode(),
         **{f"prob_{n}": PROBS[:, k] for k, n in enumerate(NAMES)}), TRUTH),
    Case("parquet, categories of numbers as labels", parquet(label=pa.array(LABELS).dictionary_encode(),
         **wide(PROBS, "prob_", pa.float64())), TRUTH, NUMBERS),
    Case("parquet, labels as bool", parquet(label=pa.array(LABELS[LABELS < 2] == 1),
         **wide(softmax(LOGITS[LABELS < 2][:, :2]), "prob_", pa.float64())), None, r"0 … |class number|number"),
    Case("parquet, labels as numbers in text", parquet(label=pa.array([str(k) for k in LABELS]), **wide(PROBS, "prob_", pa.float64())),
         TRUTH),
    Case("parquet, pandas' index", parquet(**wide(PROBS, "", pa.float64()), label=ANSWERS,
         __index_level_0__=pa.array(range(ROWS))), TRUTH, CHOOSE),
    Case("parquet, several row groups", parquet(groups=37, label=ANSWERS, **wide(LOGITS, "logits_", pa.float32())), TRUTH),
    Case("parquet, a record of classes in one column", parquet(probs=STRUCT, label=ANSWERS), TRUTH, r"number|column|list"),
    Case("parquet, a date beside named probabilities", parquet(day=pa.array([18000] * ROWS, pa.date32()), label=ANSWERS,
         **{n: PROBS[:, k] for k, n in enumerate(NAMES)}), TRUTH, CHOOSE, (("--columns", ",".join(NAMES)),)),
    Case("parquet, a fold beside named probabilities", parquet(fold=pa.array(LABELS[::-1] % 3), label=ANSWERS,
         **{n: PROBS[:, k] for k, n in enumerate(NAMES)}), TRUTH, CHOOSE, (("--columns", ",".join(NAMES)),)),
    Case("parquet, a chunked text column of file names", parquet(file_name=pa.array([f"{i}.png" for i in range(ROWS)]),
         label=ANSWERS, **wide(LOGITS, "logit_", pa.float64())), TRUTH),
    # ---- .npz
    Case("npz with features, ids and a time", npz(logits=LOGITS, labels=LABELS, features=LOGITS @ LOGITS.T, ids=np.arange(ROWS),
         time=1.5), TRUTH),
    Case("npz with logits and their softmax", npz(logits=LOGITS, probs=PROBS, labels=LABELS), TRUTH),
    Case("npz with logits, and probs of another model", npz(logits=LOGITS, probs=softmax(LOGITS / 3), labels=LABELS), TRUTH,
         KEY, (("--scores-key", "logits"),), says=KEY),
    Case("npz with predictions (N,), the class, and scores (N, C)", npz(predictions=PROBS.argmax(1), scores=PROBS, labels=LABELS),
         TRUTH, KEY, (("--scores-key", "scores"),)),
    Case("npz with predictions (N,), the class, alone", npz(predictions=PROBS.argmax(1), labels=LABELS), None, r"column per class"),
    Case("npz with arr_0 and arr_1", npz(arr_0=LOGITS, arr_1=LABELS), TRUTH, KEY,
         (("--scores-key", "arr_0", "--labels-key", "arr_1"),)),
    Case("npz with y_pred and y_true", npz(y_pred=PROBS, y_true=LABELS), TRUTH, KEY,
         (("--scores-key", "y_pred", "--labels-key", "y_true"),)),
    Case("npz with y_prob and y", npz(y_prob=PROBS, y=LABELS), TRUTH, KEY, (("--scores-key", "y_prob"),)),
    Case("npz with Logits and Labels", npz(Logits=LOGITS, Labels=LABELS), TRUTH, KEY,
         (("--scores-key", "Logits", "--labels-key", "Labels"),)),
    Case("npz with scores of one number", npz(logits=3.5, labels=LABELS), None, r"column per class"),
    Case("npz with labels of one number", npz(logits=LOGITS, labels=2), None, r"label"),
    Case("npz with labels and noisy targets", npz(logits=LOGITS, labels=LABELS, targets=(LABELS + SOME) % CLASSES), TRUTH,
         r"--label", (("--labels-key", "labels"), ("--label", "labels")), says=r"--label"),
    Case("npz with y as features and targets as labels", npz(logits=LOGITS, y=LOGITS[:, 0], targets=LABELS), TRUTH,
         r"--label", (("--labels-key", "targets"), ("--label", "targets"))),
    Case("npz packed", lambda folder: (np.savez_compressed(folder / "s.npz", logits=LOGITS, labels=LABELS), folder / "s.npz")[1],
         TRUTH),
    Case("npz with a folder inside", folder_in_archive, TRUTH, KEY,
         (("--scores-key", "test/logits", "--labels-key", "test/labels"),)),
    # ---- .npy
    *(
        Case(f"{scores}.npy beside {labels}.npy", npy(**{scores: PROBS if "prob" in scores else LOGITS, labels: LABELS}), TRUTH,
             NPY, (("--labels", f"{{folder}}/{labels}.npy"),))
        for scores, labels in (
            ("logits", "labels"),
            ("test_logits", "test_labels"),
            ("logits_test", "labels_test"),
            ("probs-val", "targets-val"),
            ("resnet.probs", "resnet.y"),
            ("y_prob", "y_true"),
            ("test_probs", "labels"),
            ("predicted_logits", "gt"),
            ("Logits", "Labels"),
        )
    ),
    Case("test_logits.npy beside the labels of another split", npy(test_logits=LOGITS, val_labels=(LABELS + 1) % CLASSES), TRUTH,
         NPY),
    Case("probs.npy holds logits", npy(probs=LOGITS, labels=LABELS), TRUTH, r"--kind", (("--kind", "logits"),)),
    Case("logits.npy beside labels.npy and targets.npy that differ", npy(logits=LOGITS, labels=LABELS, targets=(LABELS + 1) % 5),
         TRUTH, NPY, (("--labels", "{folder}/labels.npy"),)),
    Case("logits.npy with --labels of other labels than beside it", npy(logits=LOGITS, labels=(LABELS + 1) % 5, right=LABELS),
         TRUTH, words=("--labels", "{folder}/right.npy")),
    # ---- safetensors, torch, Predictions
    Case("safetensors with more tensors", safetensors(logits=LOGITS_T, labels=LABELS_T, embeddings=torch.ones(ROWS, 9)), TRUTH),
    Case("safetensors in bfloat16", safetensors(probs=PROBS_T.bfloat16(), labels=LABELS_T), TRUTH, within=6e-3),
    Case("safetensors with float16 and int32", safetensors(logits=LOGITS_T.half(), labels=LABELS_T.int()), TRUTH, within=3e-3),
    Case("safetensors with output and target", safetensors(output=LOGITS_T, target=LABELS_T), TRUTH, KEY,
         (("--scores-key", "output", "--labels-key", "target"),)),
    Case("Predictions.save, one draw", predictions(lambda: avuc.Predictions.from_logits(LOGITS_T, LABELS_T)), TRUTH),
    Case("Predictions.save, several draws", predictions(lambda: avuc.Predictions.from_samples(torch.tensor(DRAWN), LABELS_T)),
         DRAWN_TRUTH),
    Case("Predictions.save without labels", predictions(lambda: avuc.Predictions.from_logits(LOGITS_T)), None, r"label"),
    Case("Predictions.save under the name .npz", predictions(lambda: avuc.Predictions.from_logits(LOGITS_T, LABELS_T), "scores.npz"),
         TRUTH, r"numpy\.savez|\.safetensors"),
    Case("a torch.save file", pickled, None, r"save it as"),
    Case("several archives side by side", several(npz(logits=LOGITS, labels=LABELS), npy(labels=(LABELS + 1) % 5)), TRUTH),
]
