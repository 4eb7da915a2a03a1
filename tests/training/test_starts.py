"""What `fit` starts from, and what a later training finds: earlier results, a last batch of one row, SWAG's epochs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import avuc
from avuc.bayes import BayesianModule, to_bayesian
from avuc.core.errors import InputError
from avuc.methods import LLSVI, SVI, SWAG, Dropout, Ensemble, Method, Vanilla
from avuc.train import TrainSettings, fit

QUICK = {"epochs": 2, "batch_size": 20, "milestones": (), "factors": (), "learning_rate": 1e-2}


def net(generator: torch.Generator | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def rows(count: int = 60) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, 0] > 0).long()


@pytest.mark.parametrize("method", [SVI(), SVI(moped=True), LLSVI(), Vanilla(), SWAG(start=0.0), Dropout()])
def test_a_posterior_is_no_start(method: Method) -> None:
    """Noise on the μ and ρ of another posterior would be something else, and its own noise ignores the seed."""
    trained = fit(SVI(), net, rows(), settings=TrainSettings(**QUICK), progress=False)
    with pytest.raises(InputError, match="give a plain network: mean_module"):
        fit(method, trained.models[0], rows(), settings=TrainSettings(**QUICK), progress=False)
    assert isinstance(trained.models[0], avuc.bayes.BayesianModule)
    fit(method, trained.models[0].mean_module(), rows(), settings=TrainSettings(**QUICK), progress=False)


@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: nn.Sequential(inner, nn.Linear(2, 2))])
def test_to_bayesian_refuses_posteriors_and_wrappers(wrap: type[nn.Module]) -> None:
    with pytest.raises(InputError, match="is a posterior already; convert the plain network"):
        to_bayesian(wrap(to_bayesian(net())))
    with pytest.raises(InputError, match=r"data-parallel wrapper; convert the network inside it \(.module\)"):
        to_bayesian(wrap(nn.DataParallel(net())))


@pytest.mark.parametrize("method", [Vanilla(), SWAG(start=0.0), LLSVI()])
def test_a_frozen_trunk_can_be_trained_later(method: Method) -> None:
    given = net()
    given[1].requires_grad_(False)  # frozen by the user, so it stays so
    frozen = fit(method, given, rows(), settings=TrainSettings(**QUICK, freeze_trunk=True), progress=False)
    model = frozen.models[0]
    first = model.mean_module() if isinstance(model, avuc.bayes.BayesianModule) else getattr(model, "net", model)
    assert [weight.requires_grad for weight in first.parameters()] == [True, True, False, False, True, True]
    before = first[0].weight.clone()
    again = fit(Vanilla(), first, rows(), settings=TrainSettings(**QUICK), progress=False)
    assert not torch.equal(again.models[0][0].weight, before)  # type: ignore[index]


@pytest.mark.parametrize("method", [Vanilla(), SVI(), Ensemble(members=2)])
def test_one_row_is_left_for_batch_normalisation(method: Method) -> None:
    seen: list[int] = []
    with pytest.raises(InputError, match="61 rows in batches of 20 leave a last batch of one row"):
        fit(
            method,
            net,
            rows(61),
            settings=TrainSettings(**QUICK),
            progress=False,
            on_epoch=lambda epoch, figures: seen.append(epoch),
        )
    assert not seen
    for settings in (TrainSettings(**QUICK, freeze_trunk=True), TrainSettings(**{**QUICK, "batch_size": 21})):
        assert fit(method, net, rows(61), settings=settings, progress=False).epochs == 2


def test_images_of_one_row_are_trained_on() -> None:
    images, labels = torch.randint(256, (21, 6, 6, 1), dtype=torch.uint8), torch.arange(21) % 2
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 2))
    fitted = fit(Vanilla(), layers, (images, labels), settings=TrainSettings(**QUICK), progress=False)
    assert layers[1].num_batches_tracked == 0
    assert fitted.models[0][1].num_batches_tracked == 4  # type: ignore[index]


@pytest.mark.parametrize("option", [{"keep": "best_accuracy"}, {"patience": 1}])
def test_swag_chooses_among_epochs_with_a_posterior(option: dict[str, object]) -> None:
    """Constant labels of the validation rows make the first epoch the best one, before SWAG has collected anything."""
    inputs, labels = rows()
    settings = TrainSettings(**{**QUICK, "epochs": 6}, **option)  # type: ignore[arg-type]
    fitted = fit(
        SWAG(start=0.5),
        lambda generator: net(),
        (inputs, labels),
        validation=(inputs, 1 - labels),
        settings=settings,
        progress=False,
    )
    assert int(fitted.models[0].count) >= 2  # type: ignore[arg-type]
    assert fitted.epochs >= 5


def test_validation_does_not_repeat_the_random_numbers_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise proportional to the initial weights would only scale them."""
    starts: list[Tensor] = []
    drawn: list[Tensor] = []
    plain = BayesianModule.noise

    def make(generator: torch.Generator) -> nn.Module:
        layer = nn.Linear(20, 32, bias=False)
        nn.init.normal_(layer.weight, generator=generator)
        starts.append(layer.weight.detach().flatten().clone())
        return layer

    def noise(self: BayesianModule, generator: torch.Generator | None = None) -> Tensor:
        values = plain(self, generator)
        if generator is not None:  # training uses the model's own
            drawn.append(values)
        return values

    monkeypatch.setattr(BayesianModule, "noise", noise)
    data = torch.randn(40, 20), torch.arange(40) % 32
    fit(SVI(), make, data, validation=data, settings=TrainSettings(**QUICK), progress=False)
    assert drawn
    for values in drawn:
        assert abs(float(torch.corrcoef(torch.stack([starts[0], values]))[0, 1])) < 0.2
