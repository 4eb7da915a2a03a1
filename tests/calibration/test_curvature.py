"""The rough Hessian against autograd, where it is computed in full."""

from __future__ import annotations

import pytest
import torch

from avuc.calibration.curvature import matrix_solver, vector_solver


@pytest.mark.parametrize("form", ["vector", "matrix"])
def test_the_full_hessian_is_that_of_autograd(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    classes = 4
    x = torch.randn(30, classes, generator=generator, dtype=torch.float64).log_softmax(-1)
    weight = torch.rand(30, 1, generator=generator, dtype=torch.float64)
    weight /= weight.sum()
    shape = (2, classes) if form == "vector" else (classes, classes + 1)
    ridge = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.01
    theta = torch.zeros(shape, dtype=torch.float64)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        t = flat.reshape(shape)
        out = x * (1 + t[0]) + t[1] if form == "vector" else x + x @ t[:, :-1].T + t[:, -1]
        # the part of the NLL with a second derivative
        return (weight[:, 0] * out.logsumexp(-1)).sum() + (ridge * t * t).sum() / 2

    hessian = torch.autograd.functional.hessian(loss, theta.flatten())
    solver = vector_solver if form == "vector" else matrix_solver
    solve = solver(x, x.exp(), weight, ridge)
    gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
    wanted = torch.linalg.solve(hessian, gradient.flatten()).reshape(shape)
    torch.testing.assert_close(solve(gradient), wanted, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("classes", [3, 20, 40, 600])
@pytest.mark.parametrize("form", ["vector", "matrix"])
def test_a_singular_hessian_still_descends(classes: int, form: str) -> None:
    """All rows are certain, so that there is no curvature at all."""
    if form == "matrix" and classes > 100:
        return
    x = torch.full((5, classes), -80.0, dtype=torch.float64)
    x[:, 0] = 0.0
    weight = torch.full((5, 1), 0.2, dtype=torch.float64)
    shape = (2, classes) if form == "vector" else (classes, classes + 1)
    ridge = torch.full(shape, 1e-9, dtype=torch.float64)
    solver = vector_solver if form == "vector" else matrix_solver
    gradient = torch.ones(shape, dtype=torch.float64)
    step = solver(x, x.softmax(-1), weight, ridge)(gradient)
    assert torch.isfinite(step).all()
    assert (step * gradient).sum() > 0
