"""What `fit` starts from, and what a later training finds: earlier results, a last batch of one row, SWAG's epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def lazy(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), *last, nn.LazyLinear(2))


@pytest.mark.parametrize(
    ("method", "network", "options"),
    [
        (Vanilla(), lazy(), {"ema_decay": 0.9}),
        (Vanilla(), lambda generator: lazy(), {"ema_decay": 0.9}),
        (SWAG(start=0.0), lazy(), {}),
        (SVI(), lazy(), {}),
        (Vanilla(), lazy(nn.LazyBatchNorm1d()), {}),
    ],
)
def test_lazy_layers_need_a_shape_first(method: Method, network: Any, options: dict[str, float]) -> None:
    settings = TrainSettings(**QUICK, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is lazy and has no shape yet; run one batch through"):
        fit(method, network, rows(), settings=settings, progress=False)
    network = lazy(nn.LazyBatchNorm1d())
    network(rows()[0])
    assert fit(method, network, rows(), settings=settings, progress=False).epochs == 2


def test_lazy_layers_get_their_shape_from_the_first_batch(tmp_path: Path) -> None:
    settings = TrainSettings(**QUICK)
    first = [fit(Vanilla(), lazy(), rows(), settings=settings, progress=False, directory=d) for d in (None, tmp_path)]
    again = fit(Vanilla(), lazy(), rows(), settings=settings, progress=False, directory=tmp_path)
    for other in (first[1], again):
        for ours, theirs in zip(first[0].models[0].parameters(), other.models[0].parameters(), strict=True):
            assert torch.equal(ours, theirs)


class Extra(nn.Linear):
    """A layer with a state of its own."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize("option", ["directory", "patience", "keep"])
@pytest.mark.parametrize("method", [Vanilla(), SVI(), SWAG(start=0.0)])
def test_extra_state_is_stored_if_it_is_a_tensor(method: Method, option: str, tmp_path: Path) -> None:
    network = nn.Sequential(Extra(4, 2))
    network[0].extra = {"calls": 3}
    options: dict[str, Any] = {"patience": {"patience": 2}, "keep": {"keep": "best_accuracy"}}.get(option, {})
    settings = TrainSettings(**QUICK, **options)
    folder = tmp_path if option == "directory" else None

    def run() -> Any:
        return fit(
            method, network, rows(), settings=settings, validation=rows(), directory=folder, progress=False
        ).models[0]

    with pytest.raises(InputError, match=r"_extra_state is no tensor \(dict\).*let get_extra_state return one"):
        run()
    assert not list(tmp_path.iterdir())
    network[0].extra = torch.tensor(3)
    for _ in range(2):  # trained, read back
        assert any(torch.equal(value, torch.tensor(3)) for value in run().state_dict().values())


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
