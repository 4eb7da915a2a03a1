"""The losses of the AvUC family as objectives of `fit` and of recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from avuc import metrics
from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.losses import DirichletHead
from avuc.methods import SVI, Ensemble, Method, Objective, Vanilla
from avuc.prediction import predict
from avuc.study.recipe.parser import parse_training
from avuc.train import TrainSettings, fit
from avuc.training.compiled import terms_of

SETTINGS = TrainSettings(epochs=4, batch_size=64, learning_rate=1e-2, pad=0, flip=False)
Factory = Callable[[torch.Generator], nn.Module]


@pytest.mark.parametrize("method", [Vanilla(), SVI(), Ensemble(members=2)], ids=lambda method: method.name)
@pytest.mark.parametrize("kind", ["sb_ece", "euc", "ua_clm"])
def test_methods_learn(method: Method, kind: str, train: Dataset, held_out: Dataset, plain_net: Factory) -> None:
    objective = Objective(kind, beta=0.5, warmup_epochs=2, kl_weight=0.01)  # type: ignore[arg-type]
    fitted = fit(method, plain_net, train, objective=objective, settings=SETTINGS, seed=1, progress=False)
    assert fitted.history[-1]["nll"] < 0.7 * fitted.history[0]["nll"]
    assert (fitted.history[0]["avuc"] == 0) == (kind != "euc")
    assert fitted.history[-1]["avuc"] != 0
    predictions = predict(fitted.posterior, held_out.images, held_out.labels, samples=4, progress=False)
    assert metrics.accuracy(predictions.probs, predictions.labels) > 0.7


def test_predictions_of_an_evidential_network_are_its_expected_probabilities(
    train: Dataset, held_out: Dataset, plain_net: Factory
) -> None:
    """Also its training loss: 'nll' is the evidential loss, which is the NLL of the predictions."""
    objective, settings = Objective("euc", warmup_epochs=2), replace(SETTINGS, epochs=2)
    fitted = fit(
        Vanilla(), plain_net, train, objective=objective, settings=settings, validation=held_out, progress=False
    )
    model = fitted.models[0].eval()
    assert isinstance(model, nn.Sequential)
    assert isinstance(model[1], DirichletHead)
    predictions = predict(fitted.posterior, held_out.images, held_out.labels, progress=False)
    with torch.no_grad():
        alpha = model[0](held_out.images.movedim(-1, 1) / 255).exp() + 1
    expected = alpha / alpha.sum(-1, keepdim=True)
    torch.testing.assert_close(torch.as_tensor(predictions.probs).float(), expected, rtol=1e-4, atol=1e-5)


def test_a_head_of_the_users_own_is_kept(train: Dataset, plain_net: Factory) -> None:
    def net(generator: torch.Generator) -> nn.Module:
        return nn.Sequential(plain_net(generator), DirichletHead("softplus"))

    settings = replace(SETTINGS, epochs=1)
    fitted = fit(Vanilla(), net, train, objective=Objective("euc"), settings=settings, progress=False)
    heads = [layer for layer in fitted.models[0].modules() if isinstance(layer, DirichletHead)]
    assert [head.evidence for head in heads] == ["softplus"]


def test_an_interrupted_run_resumes_its_balance(train: Dataset, plain_net: Factory, tmp_path: Path) -> None:
    objective = Objective("euc", warmup_epochs=4, variant="monotone")
    whole = fit(Vanilla(), plain_net, train, objective=objective, settings=SETTINGS, progress=False)

    class Stop(Exception):
        pass

    def stop(epoch: int, figures: object) -> None:
        if epoch == 2:
            raise Stop

    again = replace(SETTINGS, checkpoint_seconds=0.0)
    with pytest.raises(Stop):
        fit(
            Vanilla(),
            plain_net,
            train,
            objective=objective,
            settings=again,
            directory=tmp_path,
            progress=False,
            on_epoch=stop,
        )
    rest = fit(Vanilla(), plain_net, train, objective=objective, settings=again, directory=tmp_path, progress=False)
    for ours, theirs in zip(whole.models[0].parameters(), rest.models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_recipes_name_them() -> None:
    for kind in ("sb_ece", "euc", "ua_clm", "segmentation_avu"):
        text = f'[data]\nname = "mnist5k"\n[objective]\nkind = "{kind}"\nbeta = 0.5'
        assert parse_training(text).objective == Objective(kind, beta=0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="variants of ua_clm are paper, monotone"):
        parse_training('[objective]\nkind = "ua_clm"\nvariant = "soft"')


def test_segmentation_compiles_whole() -> None:
    """A compiled step on a GPU takes the objective as one graph."""
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(2, 3, 9, 9, generator=generator)).requires_grad_()
    labels = torch.randint(0, 3, (2, 9, 9), generator=generator)
    loss = Objective("segmentation_avu", warmup_epochs=0).loss(100)
    torch._dynamo.reset()
    compiled = torch.compile(terms_of, fullgraph=True, dynamic=False, backend="aot_eager")
    (expected,) = torch.autograd.grad(loss(logits, labels).total, logits)
    (ours,) = torch.autograd.grad(compiled(loss, logits, labels, 0.0).total, logits)
    torch.testing.assert_close(ours, expected)
    torch._dynamo.reset()
