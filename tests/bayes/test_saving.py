"""Nothing is lost on the way to a file and back, and another architecture's file is refused by name."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from avuc.bayes import Moped, Normal, to_bayesian
from avuc.core.errors import InputError


def net(width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(width * 4, 2)
    )


def test_names_are_those_of_the_original_module() -> None:
    module = net()
    bayesian = to_bayesian(module)
    drawn = ["0.weight", "0.bias", "4.weight", "4.bias"]
    fixed = [name for name in module.state_dict() if name not in drawn]
    expected = [f"{vector}.{name}" for vector in ("mu", "rho") for name in drawn]
    expected += ["prior_mean", "prior_std", "settings", *(f"module.{name}" for name in fixed)]
    assert list(bayesian.state_dict()) == expected
    assert list(bayesian.mean_module().state_dict()) == list(module.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in bayesian.state_dict().values())


@pytest.mark.parametrize(
    "prior", [Normal(), Normal(0.25, 0.5), Normal(std={k: v.abs() + 1 for k, v in net().state_dict().items()}), Moped()]
)
def test_a_file_restores_weights_priors_kind_and_statistics(prior: Normal | Moped, tmp_path: Path) -> None:
    bayesian = to_bayesian(net(), prior=prior, posterior="radial", estimator="flipout", initial_std=0.2)
    x = torch.randn(6, 3, 4, 4)
    for _ in range(3):
        bayesian(x)  # moves the BatchNorm statistics
    save_file(bayesian.state_dict(), tmp_path / "net.safetensors")
    fresh = to_bayesian(net(), prior=Normal(mean=net().state_dict(), std=3.0))
    fresh.load_state_dict(load_file(tmp_path / "net.safetensors"))
    assert (fresh.posterior, fresh.estimator) == ("radial", "flipout")
    state = fresh.state_dict()
    assert list(state) == list(bayesian.state_dict())
    assert all(torch.equal(value, state[key]) for key, value in bayesian.state_dict().items())
    assert torch.equal(fresh.kl(), bayesian.kl())
    draws = [module.draw(torch.Generator().manual_seed(1))(x) for module in (fresh, bayesian)]
    assert torch.equal(*draws)


def test_torch_save_without_pickled_code() -> None:
    bayesian, buffer = to_bayesian(net(), prior="moped"), io.BytesIO()
    torch.save(bayesian.state_dict(), buffer)
    buffer.seek(0)
    fresh = to_bayesian(net())
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(fresh.kl(), bayesian.kl())


def test_inside_another_module() -> None:
    outer, fresh = (nn.ModuleDict({"a": to_bayesian(net(), prior=prior)}) for prior in ("moped", Normal()))
    with torch.no_grad():
        outer["a"].mu += 1
    fresh.load_state_dict(outer.state_dict())
    assert torch.equal(fresh["a"].kl(), outer["a"].kl())
    other = nn.ModuleDict({"a": to_bayesian(net(5))})
    with pytest.raises(RuntimeError, match=r"mu\.0\.weight: expected shape \(5, 3, 3, 3\), found \(4, 3, 3, 3\)"):
        other.load_state_dict(outer.state_dict())
    del (state := outer.state_dict())["a.mu.4.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"a.mu.4.bias\""):
        fresh.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"a.mu.9.bias\""):
        fresh.load_state_dict({**outer.state_dict(), "a.mu.9.bias": torch.zeros(1)})


def test_another_architecture_is_refused_by_tensor_and_shape_and_nothing_changes() -> None:
    bayesian = to_bayesian(net())
    before = {key: value.clone() for key, value in bayesian.state_dict().items()}
    with pytest.raises(InputError, match=r"mu\.0\.weight: expected shape \(4, 3, 3, 3\), found \(6, 3, 3, 3\)"):
        bayesian.load_state_dict(to_bayesian(net(6)).state_dict())
    with pytest.raises(InputError, match=r"mu\.0\.bias: expected shape \(4,\), found nothing; .*same layers="):
        bayesian.load_state_dict(to_bayesian(net(), layers="last").state_dict())
    with pytest.raises(InputError, match=r"module\.0\.bias: not expected, found shape \(4,\)"):
        bayesian.load_state_dict(to_bayesian(net(), layers="last").state_dict())
    with pytest.raises(InputError, match=r"module\.1\.weight: expected shape \(4,\), found \(6,\)"):
        bayesian.load_state_dict({**bayesian.state_dict(), "module.1.weight": torch.ones(6)})
    with pytest.raises(InputError, match=r"prior_mean: expected shape \(\), found \(3,\)"):
        bayesian.load_state_dict({**bayesian.state_dict(), "prior_mean": torch.ones(3)})
    moped = to_bayesian(net(), prior="moped").state_dict()
    with pytest.raises(InputError, match=r"prior_mean\.4\.bias: expected shape \(2,\), found \(7,\)"):
        bayesian.load_state_dict({**moped, "prior_mean.4.bias": torch.ones(7)})
    with pytest.raises(InputError, match="prior_mean: expected a number or a tensor for every variational weight"):
        bayesian.load_state_dict({key: value for key, value in moped.items() if key != "prior_mean.4.bias"})
    unknown = torch.tensor(list(b'{"posterior": "cauchy", "estimator": "weight"}'), dtype=torch.uint8)
    with pytest.raises(InputError, match="the saved posterior: expected one of mean_field, radial, found 'cauchy'"):
        to_bayesian(net()).load_state_dict({**bayesian.state_dict(), "settings": unknown})
    assert all(torch.equal(value, before[key]) for key, value in bayesian.state_dict().items())


def test_a_plain_state_dict_is_refused_with_a_remedy() -> None:
    with pytest.raises(InputError, match="convert the same module with the same layers="):
        to_bayesian(net()).load_state_dict(net().state_dict())


def test_not_strict_takes_what_fits() -> None:
    bayesian, state = to_bayesian(net()), to_bayesian(net(), initial_std=0.5).state_dict()
    del state["mu.4.bias"]
    result = bayesian.load_state_dict(state, strict=False)
    assert result.missing_keys == ["mu.4.bias"]
    torch.testing.assert_close(torch.nn.functional.softplus(bayesian.rho), torch.full_like(bayesian.rho, 0.5))


def test_copies_and_pickles_are_whole_and_their_own() -> None:
    bayesian = to_bayesian(nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 2, batch_first=True)), prior="moped")
    bayesian.generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 3)
    bayesian(x)  # a draw has been through the recurrent layer
    for twin in (copy.deepcopy(bayesian), pickle.loads(pickle.dumps(bayesian))):
        outputs = [module.draw(torch.Generator().manual_seed(1))(x)[0] for module in (bayesian, twin)]
        assert torch.equal(*outputs)
        with torch.no_grad():
            twin.mu += 1
        assert not torch.equal(twin.mu, bayesian.mu)
        assert twin.generator is None


def test_channels_last_weights_are_saved_in_plain_order(tmp_path: Path) -> None:
    plain, last = net(), net().to(memory_format=torch.channels_last)
    first, second = to_bayesian(plain, prior="moped"), to_bayesian(last, prior="moped")
    assert second.mean_module()[0].weight.is_contiguous(memory_format=torch.channels_last)
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])
        assert second.state_dict()[key].is_contiguous() or not key.startswith("mu")
    first.load_state_dict(second.state_dict())
    assert torch.equal(first.mean_module()[0].weight, plain[0].weight)
