"""Rows that labels mark as padding, where labels are otherwise not needed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from avuc.core.tasks import not_ignored
from avuc.evaluation.files.decision.checks import Decision
from avuc.evaluation.files.layout import Layout
from avuc.evaluation.files.names import MARK, RawScores
from avuc.evaluation.files.reading import Reading
from avuc.evaluation.files.score_file import BLOCK

# the sum of a row of probabilities may be off by this share
MOST_OFF = 1e-2


def marks_padding(raw: RawScores, reading: Reading, layout: Layout) -> bool:
    """Return whether labels that are not needed mark some positions of dense scores, but not all, as padding.

    To be marked only, rows that are not dense may be padding, too, if the user named its label.
    """
    mark = layout.dense or (reading.padding == MARK and layout.ignore is not None)
    if not (reading.padding and mark) or raw.labels is None or math.prod(raw.labels.shape) != layout.flat[-2]:
        return False
    blocks = raw.labels.blocks(BLOCK) if hasattr(raw.labels, "blocks") else [raw.labels]
    kept = sum(int(not_ignored(block, layout.ignore).sum()) for block in blocks)
    return 0 < kept < layout.flat[-2]


def scores_with_padding(scores: Any, decision: Decision, ignored: Tensor) -> Tensor:
    """Return scores (…, N, C) as the decision about the other rows says; padding that it does not fit gets equal ones.

    Programs pad with 0 or −100, which are no probabilities.
    """
    converted, given = decision.scores(scores), torch.as_tensor(scores).double()
    wrong = ~given.isfinite().all(-1)
    if decision.kind == "probs":
        off = (given.sum(-1) / decision.scale - 1).abs() > MOST_OFF
        wrong |= (given < 0).any(-1) | ((given > decision.scale).any(-1) if decision.binary else off)
    equal = 1 / converted.shape[-1] if decision.kind == "probs" else 0.0
    return converted.masked_fill((wrong & ignored)[..., None], equal)
