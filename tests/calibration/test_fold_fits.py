"""Fits that share a temperature and their searches: the same as fits of their own."""

from __future__ import annotations

import pytest
import torch

from avuc.calibration import CALIBRATORS
from avuc.calibration.fold_fits import FoldFits
from avuc.calibration.structured import MatrixScaling, StructuredVectorScaling


@pytest.mark.parametrize("classes", [2, 5, 15, 40])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_same_as_fits_of_their_own(classes: int, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (400,), generator=generator)
    logits = 3 * (torch.randn(400, classes, generator=generator) + torch.eye(classes)[labels]).double()
    weight = torch.rand(400, generator=generator).double() + 0.5 if weighted else None
    made = {
        "matrix": MatrixScaling(tolerance=1e-7),
        "loose": MatrixScaling(ridge=0.1, tolerance=1e-7),
        "vector": StructuredVectorScaling(tolerance=1e-7),
        "smoothed": CALIBRATORS["smoothed"](),
        "isotonic": CALIBRATORS["isotonic"](),
    }
    fits = FoldFits(logits, labels, weight)
    kept = [torch.arange(400) % 3 != fold for fold in range(2)]
    for some in kept:
        known = logits[some], labels[some], None if weight is None else weight[some]
        fits.next_fold(*known)
        for name, one in made.items():
            own = type(one)(**one.get_params()).fit(*known[:2], *(() if weight is None else known[2:]))
            torch.testing.assert_close(fits.fit(name, one)._apply(logits), own._apply(logits), atol=1e-5, rtol=1e-5)
    fits.next_fold(logits, labels, weight)
    last = fits.finish(made)
    for name, one in made.items():
        own = type(one)(**one.get_params()).fit(logits, labels, *(() if weight is None else (weight,)))
        torch.testing.assert_close(last[name]._apply(logits), own._apply(logits), atol=1e-5, rtol=1e-5)
        assert last[name].loss_ == pytest.approx(own.loss_, abs=1e-7)
        assert last[name].to_json()


def test_a_subclass_has_a_fit_of_its_own() -> None:
    class Other(MatrixScaling):
        def _fit(self, *args: object) -> None:
            raise ValueError("mine")

    fits = FoldFits(torch.zeros(2, 2), torch.tensor([0, 1]), None)
    fits.next_fold(torch.zeros(2, 2), torch.tensor([0, 1]), None)
    with pytest.raises(ValueError, match="mine"):
        fits.fit("other", Other())
