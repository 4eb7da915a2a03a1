"""What `to_bayesian` chooses, refuses and gives back, and where the result runs."""

from __future__ import annotations

import doctest
import importlib
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.utils import prune

from avuc.bayes import Moped, Normal, to_bayesian
from avuc.bayes.prior import inverse_softplus
from avuc.core.errors import InputError
from avuc.nets import resnet20


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 3))


def names(bayesian: nn.Module) -> list[str]:
    return [slot.name for slot in bayesian.layout.slots]


# which weights


def test_all_leaves_normalisation_and_frozen_weights_deterministic() -> None:
    module = net()
    assert names(to_bayesian(module)) == ["0.weight", "0.bias", "4.weight", "4.bias"]
    module[0].weight.requires_grad_(False)
    bayesian = to_bayesian(module)
    assert names(bayesian) == ["0.bias", "4.weight", "4.bias"]
    assert not dict(bayesian.module.named_parameters())["0.weight"].requires_grad


def test_last_and_predicates() -> None:
    assert names(to_bayesian(net(), layers="last")) == ["4.weight", "4.bias"]
    assert names(to_bayesian(resnet20(), layers="last")) == ["linear.weight", "linear.bias"]
    chosen = to_bayesian(net(), layers=lambda name, module: isinstance(module, nn.BatchNorm1d) or name == "0")
    assert names(chosen) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert chosen(torch.randn(6, 4)).shape == (6, 3)
    assert names(to_bayesian(nn.Linear(2, 2), layers=lambda name, module: name == "")) == ["weight", "bias"]


def test_a_tied_weight_is_drawn_for_all_its_owners_when_one_is_chosen() -> None:
    module = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    module["b"].weight = module["a"].weight
    bayesian = to_bayesian(module, layers=lambda name, module: name == "b")
    assert [slot.places for slot in bayesian.layout.slots] == [("a.weight", "b.weight"), ("b.bias",)]
    mean = bayesian.mean_module()
    assert mean["a"].weight is mean["b"].weight


def test_statistics_move_and_stay_one() -> None:
    bayesian = to_bayesian(net())
    bayesian(torch.randn(32, 4) + 3)
    assert bayesian.module[1].num_batches_tracked == 1
    assert bayesian.mean_module()[1].num_batches_tracked == 1


# errors that say what to do


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.ParameterList([nn.Parameter(torch.empty(0, 3))]), {}, "ParameterList has no weights to convert"),
        (nn.ReLU(), {}, "ReLU has no weights to convert with layers='all'"),
        (nn.BatchNorm1d(3), {}, "normalisation layers, and parameters with requires_grad=False, stay deterministic"),
        (nn.Linear(2, 2).requires_grad_(False), {}, "requires_grad=False, stay deterministic"),
        (nn.LayerNorm(3), {"layers": "last"}, "no layer owns a weight of two or more dimensions"),
        (net(), {"layers": lambda n, m: False}, r"selected none of 3 layers with weights: 0 \(Linear\), 1 \(Batch"),
        (net(), {"layers": "first"}, "layers: expected 'all', 'last' or a predicate"),
        (net(), {"posterior": "cauchy"}, "posterior: expected one of mean_field, radial, found 'cauchy'"),
        (net(), {"estimator": "local"}, "estimator: expected one of weight, flipout, found 'local'"),
        (net(), {"prior": 1.0}, r"prior: expected Normal\(mean, std\), Moped\(delta\) or 'moped', found 1.0"),
        (net(), {"initial_std": 0.0}, "initial_std: expected a finite number above 0, found 0.0"),
        (net(), {"prior": Normal(std=-1.0)}, "prior std: expected finite numbers above 0, found a least value of -1"),
        (net(), {"prior": Normal(std=float("nan"))}, "prior std: expected finite numbers above 0"),
        (net(), {"prior": Normal(mean=float("inf"))}, "prior mean: expected finite numbers"),
        (net(), {"prior": Normal(mean=torch.zeros(3))}, r"prior mean: expected a number, or .* of shape \(3,\)"),
        (net(), {"prior": Normal(mean={})}, r"prior mean: no tensor for '0.weight', expected shape \(5, 4\)"),
        (
            net(),
            {"prior": Normal(std=nn.Sequential(nn.Linear(4, 6)).state_dict())},
            r"prior std of '0.weight': expected shape \(5, 4\), found \(6, 4\)",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), {}, "one dtype and one device, found 0.weight"),
        (nn.Linear(2, 2).half(), {}, r"float32 or float64 on a real device, found torch.float16 .* torch.autocast"),
        (nn.Linear(2, 2, device="meta"), {}, "on a real device, found torch.float32 on meta"),
        (nn.LazyLinear(2), {}, "is lazy and has no shape yet; run one batch through it first"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_what_cannot_be_done_is_said(module: nn.Module, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_bayesian(module, **options)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("layers", ["all", "last"])
@pytest.mark.parametrize(
    "parametrise",
    [nn.utils.parametrizations.weight_norm, lambda layer, name: prune.random_unstructured(layer, name, 0.5)],
)
def test_a_recurrent_layer_with_a_computed_weight_is_refused(
    parametrise: Callable[[nn.Module, str], object], layers: str, used: bool
) -> None:
    """It keeps a list of its weights, so a forward pass or a copy would end in an error of torch."""
    recurrent = nn.LSTM(3, 4)
    parametrise(recurrent, "weight_hh_l0")
    module = nn.ModuleDict({"lstm": recurrent, "head": nn.Linear(4, 2)})
    if used:
        recurrent(torch.randn(5, 2, 3))
    with pytest.raises(InputError, match=r"'lstm' in ModuleDict computes its weight 'weight_hh_l0' .*remove_param"):
        to_bayesian(module, layers=layers)


@pytest.mark.parametrize("field", ["delta", "std", "min_std"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_moped_refuses_what_is_no_width(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"Moped {field}: expected a finite number above 0"):
        Moped(**{field: value})


def test_samples_and_fractions_out_of_range() -> None:
    bayesian = to_bayesian(net())
    with pytest.raises(InputError, match="samples: expected 1 or more, found 0"):
        bayesian(torch.zeros(2, 4), samples=0)
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="prune_by_snr: expected a fraction from 0 to 1"):
            bayesian.prune_by_snr(fraction)


# the start


def test_the_posterior_starts_at_the_weights_with_the_stated_width() -> None:
    module = net()
    bayesian = to_bayesian(module, initial_std=0.2)
    torch.testing.assert_close(softplus(bayesian.rho), torch.full_like(bayesian.rho, 0.2))
    assert torch.equal(bayesian.layout.by_name(bayesian.mu)["4.weight"], module[4].weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moped_is_the_published_formula_and_nothing_is_shared(dtype: torch.dtype) -> None:
    module = net().to(dtype)
    with torch.no_grad():
        module[4].bias.zero_()
    bayesian = to_bayesian(module, prior=Moped(delta=0.5))
    weight = module[0].weight.detach()
    start = {name: bayesian.layout.by_name(getattr(bayesian, name).detach()) for name in ("mu", "rho", "prior_mean")}
    torch.testing.assert_close(
        start["rho"]["0.weight"], (torch.exp(0.5 * weight.abs()) - 1).log(), rtol=1e-4, atol=1e-4
    )
    assert torch.equal(start["mu"]["0.weight"], weight)
    assert torch.equal(start["prior_mean"]["0.weight"], weight)
    assert bayesian.prior_std.item() == 1
    # a weight of exactly zero
    torch.testing.assert_close(softplus(start["rho"]["4.bias"]), torch.full((3,), 1e-6, dtype=dtype), rtol=1e-4, atol=0)
    assert bayesian.kl().isfinite()
    before = bayesian.prior_mean.clone()
    with torch.no_grad():
        bayesian.mu += 1
        module[0].weight += 2
    assert torch.equal(bayesian.prior_mean, before)
    torch.testing.assert_close(start["mu"]["0.weight"], weight - 2 + 1)


@pytest.mark.parametrize("std", [1e-30, 1e-6, 0.05, 1.0, 30.0, 1e4])
def test_inverse_softplus(std: float) -> None:
    found = inverse_softplus(torch.tensor(std, dtype=torch.float64)).item()
    back = found if found > 40 else math.log1p(math.exp(found))
    assert back == pytest.approx(std, rel=1e-12)


def test_a_state_dict_serves_as_prior_mean() -> None:
    module = net()
    bayesian = to_bayesian(module, prior=Normal(mean=module.state_dict(), std=0.5))
    assert torch.equal(bayesian.prior_mean, bayesian.mu)
    assert bayesian.prior_mean.data_ptr() != bayesian.mu.data_ptr()
    assert bayesian.prior_std.dim() == 0


# what comes out


def test_forward_draw_and_generators() -> None:
    bayesian, x = to_bayesian(net()).eval(), torch.randn(6, 4)
    assert bayesian.num_draws is None
    same = [bayesian(x, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*same)
    assert torch.equal(same[0], bayesian.draw(torch.Generator().manual_seed(1))(x))
    assert not torch.equal(bayesian(x), bayesian(x))
    torch.manual_seed(5)
    first = bayesian(x)
    torch.manual_seed(5)
    assert torch.equal(first, bayesian(x))
    bayesian.generator = torch.Generator().manual_seed(1)
    assert torch.equal(bayesian(x), same[0])
    drawn = bayesian(x, samples=3, generator=torch.Generator().manual_seed(1))
    assert drawn.shape == (3, 6, 3)
    old_name = bayesian(x, draws=3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn, old_name)
    assert torch.equal(drawn[0], same[0])
    assert not torch.equal(drawn[0], drawn[1])


def test_a_draw_is_in_eval_mode_detached_and_fixed() -> None:
    bayesian, x = to_bayesian(net()), torch.randn(6, 4)
    function = bayesian.draw(torch.Generator().manual_seed(1))
    assert torch.equal(function(x), function(x))  # no dropout, statistics untouched
    assert bayesian.module[1].num_batches_tracked == 0
    assert all(module.training for module in bayesian.modules())
    assert not function.weights.requires_grad


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, object]:
        y = self.linear(x) * scale
        return {"logits": y, "parts": (y, [y])}


def test_several_draws_of_structured_outputs_and_keyword_inputs() -> None:
    output = to_bayesian(Structured())(torch.ones(3, 2), scale=2.0, draws=4)
    assert output["logits"].shape == output["parts"][0].shape == output["parts"][1][0].shape == (4, 3, 2)


def test_layers_keep_their_modes() -> None:
    """Batch normalisation that is frozen in evaluation mode must not start to change its statistics."""
    module = net().train()
    module[1].eval()
    bayesian = to_bayesian(module)
    assert [layer.training for layer in bayesian.module] == [True, False, True, True, True]
    bayesian(torch.randn(6, 4))
    assert int(bayesian.module[1].num_batches_tracked) == 0
    assert bayesian.training
    assert not to_bayesian(module.eval()).training


def test_mean_module_is_plain_trainable_and_apart() -> None:
    bayesian, x = to_bayesian(net()).eval(), torch.randn(6, 4)
    plain = bayesian.mean_module()
    assert type(plain) is nn.Sequential
    torch.testing.assert_close(plain(x), bayesian.run(bayesian.mu, x))
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in plain.parameters())
    with torch.no_grad():
        plain[0].weight += 1
    torch.testing.assert_close(bayesian.mean_module()(x), bayesian.run(bayesian.mu, x))


def test_snr_and_pruning_remove_the_least_certain_weights() -> None:
    bayesian = to_bayesian(nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        bayesian.mu.copy_(torch.tensor([1.0, -8, 2, 7, -3, 6, 4, 5]))
    snr = bayesian.snr()["weight"]
    torch.testing.assert_close(snr, bayesian.mu.detach().abs().view(2, 4) / 0.05, rtol=1e-5, atol=0)
    pruned = bayesian.prune_by_snr(0.5)
    assert pruned.weight.tolist() == [[0, -8, 0, 7], [0, 6, 0, 5]]
    assert torch.equal(bayesian.prune_by_snr(0.0).weight, bayesian.mean_module().weight)
    assert not bayesian.prune_by_snr(1.0).weight.any()
    assert bayesian.mu.detach().all()


def test_no_dead_copy_of_the_weights() -> None:
    module = resnet20()
    tensors = [*(bayesian := to_bayesian(module)).parameters(), *bayesian.buffers()]
    kept = sum(tensor.numel() for tensor in tensors)
    fixed = sum(p.numel() for n, p in module.named_parameters() if "bn" in n) + sum(b.numel() for b in module.buffers())
    assert kept == 2 * 268_346 + 2 + fixed


# where it runs


@pytest.mark.parametrize("estimator", ["weight", "flipout"])
@pytest.mark.parametrize("posterior", ["mean_field", "radial"])
def test_compiles_whole_with_its_kl_and_gradients(posterior: str, estimator: str) -> None:
    torch._dynamo.reset()
    bayesian = to_bayesian(net().eval(), posterior=posterior, estimator=estimator)
    x = torch.randn(6, 4)

    def step(x: Tensor) -> Tensor:
        return bayesian(x).square().mean() + bayesian.kl() / 100

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for function in (compiled, step):
        torch.manual_seed(3)
        bayesian.zero_grad()
        loss = function(x)
        loss.backward()
        results = loss.detach(), bayesian.mu.grad.clone(), bayesian.rho.grad.clone()
        if function is compiled:
            expected = results
    torch.testing.assert_close(results, expected)


@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_compiles_with_breaks_when_a_generator_is_given(estimator: str) -> None:
    torch._dynamo.reset()
    bayesian, x = to_bayesian(net().eval(), estimator=estimator), torch.randn(6, 4)
    bayesian.generator = torch.Generator().manual_seed(1)
    expected = bayesian(x)
    bayesian.generator.manual_seed(1)
    torch.testing.assert_close(torch.compile(bayesian, backend="aot_eager")(x), expected)


@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_autocast_keeps_the_posterior_in_float32(estimator: str) -> None:
    bayesian, x = to_bayesian(net(), estimator=estimator), torch.randn(6, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, kl = bayesian(x), bayesian.kl()
        assert bayesian.weights(bayesian.noise()).dtype == torch.float32
    assert logits.dtype == torch.bfloat16
    assert kl.dtype == torch.float32
    torch.testing.assert_close(kl, bayesian.kl())
    (logits.float().square().mean() + kl / 100).backward()
    assert bayesian.mu.grad.dtype == bayesian.rho.grad.dtype == torch.float32
    assert bayesian.mu.grad.abs().sum() > 0


def test_double_half_and_device_moves_carry_the_prior() -> None:
    bayesian = to_bayesian(net(), prior="moped").double()
    assert {t.dtype for t in (bayesian.mu, bayesian.rho, bayesian.prior_mean, bayesian.prior_std)} == {torch.float64}
    assert bayesian(torch.randn(6, 4).double()).dtype == torch.float64


def test_the_representation_says_what_it_is() -> None:
    assert "mean_field, flipout, 43 variational weights in 4 tensors" in repr(to_bayesian(net(), estimator="flipout"))


@pytest.mark.parametrize("name", ["module", "moped", "prior", "radial"])
def test_the_examples_in_the_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"avuc.bayes.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
