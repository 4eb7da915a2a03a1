"""Stand-ins for the kernels of `linear_avuc`, for machines without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from avuc.gpu import linear
from avuc.losses.linear import tiles
from avuc.losses.linear.tiles import Coefficients, Options, Partial


def update(
    z: Tensor, bias: Tensor | None, labels: Tensor, part: Partial, options: Options, start: bool = False
) -> None:
    """What the kernel does to the online softmax, in torch: a layer whose inputs are its outputs."""
    if start:
        part.largest.fill_(torch.finfo(torch.float32).min), part.rest.fill_(-1)
        part.spread.zero_(), part.label_logit.zero_(), part.predicted.zero_()
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    new = tiles.forward_tiles(z, eye, bias, labels, options)
    largest = torch.maximum(part.largest, new.largest)
    shifts = [(each.largest - largest, each) for each in (part, new)]
    spread = sum(d.exp() * (each.spread + (1 + each.rest) * d) for d, each in shifts)
    rest = sum(d.exp() * (1 + each.rest) for d, each in shifts) - 1
    inside = (labels >= options.first) & (labels < options.first + z.shape[1])
    part.label_logit.copy_(torch.where(inside, new.label_logit, part.label_logit))
    part.predicted.copy_(torch.where(new.largest > part.largest, new.predicted, part.predicted))
    part.largest.copy_(largest)
    part.rest.copy_(rest)
    part.spread.copy_(spread)


def replace(
    z: Tensor, bias: Tensor | None, labels: Tensor, predicted: Tensor, coefficients: Coefficients, options: Options
) -> None:
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    (dz, _, _) = tiles.backward_tiles(
        z.clone(), eye, bias, labels, predicted, coefficients, options._replace(width=None), (True, False, False)
    )
    z.copy_(dz)  # type: ignore[arg-type]


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(z: Tensor, bias: Tensor | None, word: int, options: Options) -> tuple[Tensor | None, Options]:
        return None if bias is None else bias[word : word + z.shape[1]], options._replace(first=options.first + word)

    def updater(dtype: Any, bias: Tensor | None, labels: Tensor, part: Partial, options: Options) -> Any:
        def start(z: Tensor, word: int) -> None:
            words, at = place(z, bias, word, options)
            update(z, words, labels, part, at, word == 0)

        return start

    def writer(dtype: Any, bias: Tensor | None, *columns: Any) -> Any:
        def start(z: Tensor, word: int) -> None:
            words, at = place(z, bias, word, columns[-1])
            replace(z, words, *columns[:-1], at)

        return start

    monkeypatch.setattr(linear, "softmax_updater", updater)
    monkeypatch.setattr(linear, "gradient_writer", writer)
