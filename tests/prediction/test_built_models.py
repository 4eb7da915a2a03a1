"""`predict` of the model that a method builds, instead of its posterior: a warning names what to pass."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from avuc.methods import SWAG, Dropout, Ensemble, LLDropout, Method, Vanilla
from avuc.methods.dropout import DropoutPosterior
from avuc.prediction import predict

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 3))


def trained(method: Method) -> nn.Module:
    model = method.build(net())
    for epoch in range(8):
        with torch.no_grad():
            next(model.parameters()).add_(0.1)
        method.epoch_end(model, epoch, 8)
    return model


METHODS = [Dropout(), Dropout(own_layers=True), LLDropout(), SWAG()]
IDS = ["dropout", "own", "ll_dropout", "swag"]


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_a_warning_names_the_posterior(method: Method) -> None:
    model = trained(method)
    name = "SWAG" if isinstance(method, SWAG) else "Dropout"
    wanted = rf"one network.*{name}\(\)\.posterior\(\[model\]\).*Vanilla\(\)\.posterior\(\[model\]\)"
    with pytest.warns(UserWarning, match=wanted) as caught:
        assert predict(model, X, progress=False).samples == 1
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    with pytest.warns(UserWarning, match=wanted):  # a member of an ensemble
        predict([model, net()], X, progress=False)


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_both_ways_that_it_names_are_silent(method: Method) -> None:
    model = trained(method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert predict(method.posterior([model]), X, samples=4, progress=False).samples == 4
        alone = predict(Vanilla().posterior([model]), X, progress=False)
    assert alone.samples == 1
    torch.testing.assert_close(alone.probs.float(), model.eval()(X).softmax(-1))


def test_plain_networks_are_silent() -> None:
    own = net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(own, X, progress=False)
        predict(Ensemble(2).build(own), X, progress=False)
        DropoutPosterior.of_own_layers(own)  # puts hooks into the user's network, which stays a plain one
        predict(own, X, progress=False)
