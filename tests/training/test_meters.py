"""The rows that the meters of an epoch count."""

from __future__ import annotations

import pytest
import torch

from avuc.training.meters import labelled_rows


@pytest.mark.parametrize("samples", [0, 3])
def test_labelled_rows_of_dense_logits(samples):
    """Against a loop over positions."""
    shape = (2, 4, 3, 5)  # N, C, H, W
    logits = torch.randn((samples, *shape) if samples else shape)
    labels = torch.randint(4, (2, 3, 5))
    labels[0, 1] = -100
    rows, kept = labelled_rows(logits, labels)
    expected = [logits[..., n, :, h, w] for n in range(2) for h in range(3) for w in range(5) if labels[n, h, w] >= 0]
    assert torch.equal(rows, torch.stack(expected, -2))
    assert kept.tolist() == [label for label in labels.flatten().tolist() if label >= 0]
    plain = torch.randn(5, 4), torch.randint(4, (5,))
    assert labelled_rows(*plain)[0] is plain[0]
