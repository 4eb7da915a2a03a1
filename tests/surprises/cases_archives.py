"""Arrays: .npz with more in it, pairs of .npy, safetensors, and what Predictions.save wrote."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
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
    PROBS,
    ROWS,
    TRUTH,
    Case,
    npy,
    npz,
    several,
)

KEY = r"--scores-key"
Maker = Callable[[Path], Path]


def safetensors(**tensors: np.ndarray | torch.Tensor) -> Maker:
    def make(folder: Path) -> Path:
        save_file({n: torch.as_tensor(t).contiguous() for n, t in tensors.items()}, folder / "scores.safetensors")
        return folder / "scores.safetensors"

    return make


def predictions(build: Callable[[], avuc.Predictions], name: str = "scores.safetensors") -> Maker:
    def make(folder: Path) -> Path:
        build().save(folder / "scores.safetensors")
        return (folder / "scores.safetensors").rename(folder / name)

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


SOME = np.arange(ROWS) % 10 == 3
LOGITS_T, PROBS_T, LABELS_T = torch.tensor(LOGITS), torch.tensor(PROBS), torch.tensor(LABELS)
NPY = r"--labels"

CASES = [
    # ---- .npz
    Case(
        "npz with features, ids and a time",
        npz(logits=LOGITS, labels=LABELS, features=LOGITS @ LOGITS.T, ids=np.arange(ROWS), time=1.5),
        TRUTH,
    ),
    Case("npz with logits and their softmax", npz(logits=LOGITS, probs=PROBS, labels=LABELS), TRUTH),
    Case(
        "npz with logits, and probs of another model",
        npz(logits=LOGITS, probs=softmax(LOGITS / 3), labels=LABELS),
        TRUTH,
        KEY,
        (("--scores-key", "logits"),),
        says=KEY,
    ),
    Case(
        "npz with predictions (N,), the class, and scores (N, C)",
        npz(predictions=PROBS.argmax(1), scores=PROBS, labels=LABELS),
        TRUTH,
        KEY,
        (("--scores-key", "scores"),),
    ),
    Case(
        "npz with predictions (N,), the class, alone",
        npz(predictions=PROBS.argmax(1), labels=LABELS),
        None,
        r"column per class",
    ),
    Case(
        "npz with arr_0 and arr_1",
        npz(arr_0=LOGITS, arr_1=LABELS),
        TRUTH,
        KEY,
        (("--scores-key", "arr_0", "--labels-key", "arr_1"),),
    ),
    Case(
        "npz with y_pred and y_true",
        npz(y_pred=PROBS, y_true=LABELS),
        TRUTH,
        KEY,
        (("--scores-key", "y_pred", "--labels-key", "y_true"),),
    ),
    Case(
        "npz with y_prob and y",
        npz(y_prob=PROBS, y=LABELS),
        TRUTH,
        r"--scores-key y_prob$",
        (("--scores-key", "y_prob"),),
    ),
    Case(
        "npz with raw_score and y_test",
        npz(raw_score=LOGITS, y_test=LABELS),
        TRUTH,
        r"--scores-key raw_score$",
        (("--scores-key", "raw_score"),),
    ),
    Case(
        "npz with Logits and Labels",
        npz(Logits=LOGITS, Labels=LABELS),
        TRUTH,
        KEY,
        (("--scores-key", "Logits", "--labels-key", "Labels"),),
    ),
    Case("npz with scores of one number", npz(logits=3.5, labels=LABELS), None, r"column per class"),
    Case("npz with labels of one number", npz(logits=LOGITS, labels=2), None, r"label"),
    Case(
        "npz with labels and noisy targets",
        npz(logits=LOGITS, labels=LABELS, targets=(LABELS + SOME) % CLASSES),
        TRUTH,
        r"--label",
        (("--labels-key", "labels"), ("--label", "labels")),
        says=r"--label",
    ),
    Case(
        "npz with y as features and targets as labels",
        npz(logits=LOGITS, y=LOGITS[:, 0], targets=LABELS),
        TRUTH,
        r"--label",
        (("--labels-key", "targets"), ("--label", "targets")),
    ),
    Case(
        "npz packed",
        lambda folder: (np.savez_compressed(folder / "s.npz", logits=LOGITS, labels=LABELS), folder / "s.npz")[1],
        TRUTH,
    ),
    Case(
        "npz with a folder inside",
        folder_in_archive,
        TRUTH,
        KEY,
        (("--scores-key", "test/logits", "--labels-key", "test/labels"),),
    ),
    # ---- .npy
    *(
        Case(
            f"{scores}.npy beside {labels}.npy",
            npy(**{scores: PROBS if "prob" in scores else LOGITS, labels: LABELS}),
            TRUTH,
            NPY,
            (("--labels", f"{{folder}}/{labels}.npy"),),
        )
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
    Case(
        "test_logits.npy beside the labels of another split",
        npy(test_logits=LOGITS, val_labels=(LABELS + 1) % CLASSES),
        TRUTH,
        NPY,
    ),
    Case("probs.npy holds logits", npy(probs=LOGITS, labels=LABELS), TRUTH, r"--kind", (("--kind", "logits"),)),
    Case(
        "logits.npy beside labels.npy and targets.npy that differ",
        npy(logits=LOGITS, labels=LABELS, targets=(LABELS + 1) % 5),
        TRUTH,
        NPY,
        (("--labels", "{folder}/labels.npy"),),
    ),
    Case(
        "labels.npy given as the scores, logits.npy as the labels",
        npy(labels=LABELS, logits=LOGITS),
        None,
        r"\(N, C\)|column per class",
        words=("--labels", "{folder}/logits.npy"),
    ),
    Case(
        "logits.npy with --labels of other labels than beside it",
        npy(logits=LOGITS, labels=(LABELS + 1) % 5, right=LABELS),
        TRUTH,
        words=("--labels", "{folder}/right.npy"),
    ),
    # ---- safetensors, torch, Predictions
    Case(
        "safetensors with more tensors",
        safetensors(logits=LOGITS_T, labels=LABELS_T, embeddings=torch.ones(ROWS, 9)),
        TRUTH,
    ),
    Case("safetensors in bfloat16", safetensors(probs=PROBS_T.bfloat16(), labels=LABELS_T), TRUTH, within=6e-3),
    Case(
        "safetensors with float16 and int32",
        safetensors(logits=LOGITS_T.half(), labels=LABELS_T.int()),
        TRUTH,
        within=3e-3,
    ),
    Case(
        "safetensors with output and target",
        safetensors(output=LOGITS_T, target=LABELS_T),
        TRUTH,
        KEY,
        (("--scores-key", "output", "--labels-key", "target"),),
    ),
    Case("Predictions.save, one draw", predictions(lambda: avuc.Predictions.from_logits(LOGITS_T, LABELS_T)), TRUTH),
    Case(
        "Predictions.save, several draws",
        predictions(lambda: avuc.Predictions.from_samples(torch.tensor(DRAWN), LABELS_T)),
        DRAWN_TRUTH,
    ),
    Case(
        "Predictions.save without labels",
        predictions(lambda: avuc.Predictions.from_logits(LOGITS_T)),
        None,
        r"no labels|without (a )?label|unlabel|--labels",
    ),
    Case(
        "saved predictions renamed to .npz",
        predictions(lambda: avuc.Predictions.from_logits(LOGITS_T, LABELS_T), "scores.npz"),
        TRUTH,
        r"numpy\.savez|\.safetensors",
    ),
    Case("a torch.save file", pickled, None, r"save it as"),
    Case(
        "several archives side by side", several(npz(logits=LOGITS, labels=LABELS), npy(labels=(LABELS + 1) % 5)), TRUTH
    ),
]
