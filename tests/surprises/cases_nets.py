"""`avuc.predict` and the streaming metrics, given the nets, labels and batches that scripts have."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import avuc
from avuc import metrics
from avuc.methods.vanilla import DeterministicPosterior
from avuc.metrics.streaming import StreamingMetrics

from .table import CLASSES, LABELS, LOGITS, ONE_HOT, PROBS, ROWS, TRUTH, PythonCase, Truth

IMAGES = torch.tensor(LOGITS, dtype=torch.float32)
ANSWERS = torch.tensor(LABELS)
PARTS = np.array_split(np.arange(ROWS), 7)


class Net(nn.Module):
    """The logits are the input; `after` is what the last layer makes of them."""

    def __init__(self, after: Callable[[Tensor], Any] = lambda z: z) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(0.5)
        self.after = after

    def forward(self, x: Tensor) -> Any:
        return self.after(self.dropout(self.scale * x))


def predicted(
    name: str,
    net: Callable[[], Any],
    labels: Any = ANSWERS,
    refused: str | None = None,
    right: Truth | None = TRUTH,
    images: Any = IMAGES,
) -> PythonCase:
    def call() -> dict[str, float]:
        return metrics.evaluate(avuc.predict(net(), images, labels, samples=1, progress=False))

    return PythonCase(f"predict: {name}", call, right and right.figures, refused, 2e-4, "predict")


def posterior(after: Callable[[Tensor], Any] = lambda z: z) -> Callable[[], Any]:
    return lambda: DeterministicPosterior(Net(after))


def streamed(
    name: str, batches: Callable[[], Any], refused: str | None = None, right: Truth | None = TRUTH
) -> PythonCase:
    def call() -> dict[str, float]:
        stream = StreamingMetrics(CLASSES)
        for probs, labels in batches():
            stream.update(probs, labels)
        return stream.compute()

    return PythonCase(f"StreamingMetrics: {name}", call, right and right.figures, refused, 1e-4, "metrics")


CASES = [
    predicted("a posterior", posterior()),
    predicted("a net in training mode, with dropout", lambda: DeterministicPosterior(Net().train())),
    predicted("a plain net", Net),
    predicted("an ensemble of one", lambda: [Net()]),
    predicted("a net that ends in softmax", posterior(lambda z: z.softmax(-1)), refused=r"softmax|probabilit"),
    predicted("a net that ends in log_softmax", posterior(lambda z: z.log_softmax(-1))),
    predicted("a net that returns half precision", posterior(lambda z: z.half())),
    predicted("a net that returns a tuple", posterior(lambda z: (z, z)), refused=r"tensor|logits"),
    predicted(
        "a net that returns an object with .logits",
        posterior(lambda z: SimpleNamespace(logits=z)),
        refused=r"tensor|logits",
    ),
    predicted(
        "a net that returns (N, C, 1, 1)",
        posterior(lambda z: z[..., None, None]),
    ),
    predicted("a net with one output for five classes", posterior(lambda z: z[:, :1]), ANSWERS, r"binary", None),
    predicted("a net that returns NaN", posterior(lambda z: z * float("nan")), refused=r"NaN", right=None),
    predicted("labels as an array", posterior(), LABELS),
    predicted("labels as a list", posterior(), LABELS.tolist()),
    predicted("labels as floats", posterior(), ANSWERS.double(), r"class numbers"),
    predicted("labels (N, 1)", posterior(), ANSWERS[:, None], r"one per image"),
    predicted("one-hot labels", posterior(), torch.tensor(ONE_HOT), r"one-hot"),
    predicted("labels from 1", posterior(), ANSWERS + 1, r"0…4|0 … 4", None),
    predicted("labels of another length", posterior(), ANSWERS[:-1], r"one per image", None),
    predicted("images as an array", posterior(), images=IMAGES.numpy()),
    predicted("images as float64", posterior(), images=torch.tensor(LOGITS), refused=r"float32|dtype"),
    predicted("images as a list", posterior(), images=LOGITS.tolist(), refused=r"tensor|array"),
    streamed("batches", lambda: ((PROBS[part], LABELS[part]) for part in PARTS)),
    streamed("one row at a time", lambda: ((PROBS[i : i + 1], LABELS[i : i + 1]) for i in range(ROWS))),
    streamed("tensors", lambda: [(torch.tensor(PROBS), ANSWERS)]),
    streamed("an empty last batch", lambda: [(PROBS, LABELS), (PROBS[:0], LABELS[:0])], r"no samples|0 rows"),
    streamed("logits", lambda: [(LOGITS, LABELS)], r"softmax", None),
    streamed("labels from 1", lambda: [(PROBS, LABELS + 1)], r"0…4", None),
    streamed(
        "a batch of other classes",
        lambda: [(PROBS, LABELS), (PROBS[:, :4] / PROBS[:, :4].sum(1, keepdims=True), LABELS % 4)],
        r"5 classes|classes",
        None,
    ),
    streamed("nothing", list, r"no |least|update", None),
]
