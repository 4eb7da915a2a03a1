"""`to_bayesian` turns any module into a posterior over its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

from avuc.bayes.drawn import WeightDraw, own_inputs, stacked
from avuc.bayes.flipout import flip
from avuc.bayes.layout import Layers, Layout, choose
from avuc.bayes.mean_field import MEAN_FIELD, Family
from avuc.bayes.moped import Moped
from avuc.bayes.noise import flat_noise
from avuc.bayes.plain import check_checkpointing, check_embeddings, check_known, check_plain
from avuc.bayes.printing import printed
from avuc.bayes.prior import Normal, inverse_softplus
from avuc.bayes.radial import RADIAL
from avuc.bayes.recurrent import drawn_lists, keep_apart, put_together
from avuc.bayes.saving import VECTORS, decode, encode, restore
from avuc.bayes.saving import check as check_state
from avuc.core.errors import InputError
from avuc.core.numbers import check_number
from avuc.core.private_copy import deep_copy
from avuc.core.random_numbers import noise_source
from avuc.core.shared_functions import independent_copy

POSTERIORS: dict[str, Family] = {"mean_field": MEAN_FIELD, "radial": RADIAL}
ESTIMATORS = ("weight", "flipout")


def to_bayesian(
    module: nn.Module,
    *,
    posterior: str = "mean_field",
    estimator: str = "weight",
    prior: Normal | Moped | str = Normal(),  # noqa: B008  (frozen)
    layers: Layers = "all",
    initial_std: float = 0.05,
) -> BayesianModule:
    """Return a posterior over the weights of `module`. The module itself is copied and not changed.

        w = μ + softplus(ρ)·z        z is the noise of one sample, σ = softplus(ρ)

    The posterior starts at the module's own weights, μ₀ = w, with σ₀ = `initial_std` (with `Moped`, σ₀ = δ|w|).

    Args:
        module: any module with float32 or float64 weights.
        posterior: "mean_field" (default): z ~ N(0, 1), independent for each weight. "radial": for each weight tensor, a
            random direction times a normal radius.
        estimator: "weight" (default): one sample of the weights for the whole batch. "flipout": decorrelated noise for
            each example.
        prior: `Normal(mean, std)`, numbers or one tensor per weight (default N(0, 1)); or `Moped(delta)`, or "moped",
            a prior around the trained weights.
        layers: which weights get noise. "all" (default): all but those of normalisation layers and frozen ones.
            "last": the last registered layer with a weight matrix. Or a function (name, module) -> bool, called for
            every module that owns weights.
        initial_std: σ₀ of every weight (default 0.05).

    >>> net = to_bayesian(nn.Linear(4, 3), prior=Normal(std=0.5))
    >>> net(torch.zeros(8, 4)).shape, net(torch.zeros(8, 4), samples=5).shape
    (torch.Size([8, 3]), torch.Size([5, 8, 3]))
    >>> bool(net.kl() > 0)
    True
    """
    if prior == "moped":
        prior = Moped()
    if not isinstance(prior, Normal | Moped):
        raise InputError(f"prior: expected Normal(mean, std), Moped(delta) or 'moped', found {prior!r}")
    check_number("initial_std", initial_std)
    if not 0 < initial_std < float("inf"):
        raise InputError(f"initial_std: expected a finite number above 0, found {initial_std}")
    check_known("posterior", posterior, POSTERIORS)
    check_known("estimator", estimator, ESTIMATORS)
    check_plain(module, BayesianModule)
    layout = choose(module, layers)
    names = {name for slot in layout.slots for name in slot.places}
    check_checkpointing(module, names)
    check_embeddings(module, names)
    with torch.no_grad():
        weights = dict(module.named_parameters())
        mu = layout.flatten(weights)
        if isinstance(prior, Moped):
            rho = prior.rho(mu)
            prior = Normal(mean=layout.by_name(mu), std=prior.std)
        else:
            rho = torch.full_like(mu, float(inverse_softplus(torch.tensor(initial_std, dtype=torch.float64))))
        return BayesianModule(independent_copy(module), layout, mu, rho, prior, posterior, estimator)


class BayesianModule(nn.Module):
    """A module that samples its weights anew, w = μ + softplus(ρ)·z, in each forward pass. `to_bayesian` makes it.

    `mu` and `rho` are the only variational parameters, one flat vector each. Everything else stays a parameter or
    buffer of `module`, which keeps no copy of the variational weights.

    Args:
        module: the original module; its variational weights are removed from it.
        layout: names, shapes and order of the variational weights in the flat vectors.
        mu: μ, (number of variational weights).
        rho: ρ, same shape as `mu`.
        prior: the prior of the weights.
        posterior: "mean_field" or "radial".
        estimator: "weight" or "flipout".

    >>> net = to_bayesian(nn.Linear(2, 1))
    >>> loss = net(torch.ones(3, 2)).square().mean() + net.kl() / 1000
    >>> loss.backward()
    >>> net.mu.grad.shape, net.mean_module()
    (torch.Size([3]), Linear(in_features=2, out_features=1, bias=True))
    """

    num_draws: int | None = None  # no limit on the number of different samples
    takes_bytes = False  # whether it was made for uint8 images, scaled to [0, 1]
    mu: nn.Parameter
    rho: nn.Parameter
    prior_mean: Tensor
    prior_std: Tensor

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        mu: Tensor,
        rho: Tensor,
        prior: Normal,
        posterior: str,
        estimator: str,
    ) -> None:
        super().__init__()
        self.layout: Layout = layout
        self.posterior: str = posterior
        self.estimator: str = estimator
        self.generator: torch.Generator | None = None
        self.mu, self.rho = nn.Parameter(mu), nn.Parameter(rho)
        prior_mean, prior_std = prior.flat(layout, mu)
        self.register_buffer("prior_mean", prior_mean)
        self.register_buffer("prior_std", prior_std)
        self.module = module
        for slot in layout.slots:
            for name in slot.places:
                _set_weight(module, name, None)
        self.recurrent: tuple[str, ...] = keep_apart(module)
        self.training: bool = module.training  # the layers keep their modes: some may be frozen in evaluation mode

    # one sample

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        """Return the flat noise z of one sample, from `generator`, else from `self.generator`, else from torch's own.

        In a distributed run, a generator of this rank replaces torch's own, so that ranks with equal seeds differ.
        """
        generator = noise_source(generator or self.generator, self.mu.device)
        with torch.no_grad():
            return flat_noise(POSTERIORS[self.posterior], self.layout.sizes, self.mu, generator)

    def weights(self, noise: Tensor) -> Tensor:
        """Return μ + softplus(ρ)·z, the flat weights of one sample, differentiable in μ and ρ."""
        return torch.addcmul(self.mu, softplus(self.rho), noise)

    def run(self, weights: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the original module's forward with flat `weights`. Compile or capture this if you sample yourself."""
        return self.run_views(self.layout.views(weights), args, kwargs)

    def forward(
        self,
        *args: Any,
        samples: int | None = None,
        generator: torch.Generator | None = None,
        draws: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the module's output for one sample of its weights, or for several.

        Args:
            *args: arguments of the original module.
            samples: number S of samples; the output then has a new first dimension of size S. Default None: one
                sample, without that dimension.
            generator: source of the noise; see `noise`.
            draws: the name of `samples` in version 0.1.0.
            **kwargs: keyword arguments of the original module.
        """
        samples = draws if samples is None else samples
        if samples is None:
            return self._estimate(generator, args, kwargs)
        if samples < 1:
            raise InputError(f"samples: expected 1 or more, found {samples}")
        return stacked([self._estimate(generator, *inputs) for inputs in own_inputs(args, kwargs, samples)])

    def draw(self, generator: torch.Generator) -> WeightDraw:
        """Return one posterior sample: a function x -> output with fixed weights, in evaluation mode.

        Args:
            generator: source of the noise. The same state gives the same function; a CPU generator gives the same
                function on every device.

        >>> net = to_bayesian(nn.Linear(2, 1))
        >>> f, g = (net.draw(torch.Generator().manual_seed(7)) for _ in range(2))
        >>> torch.equal(f(torch.ones(3, 2)), g(torch.ones(3, 2)))
        True
        """
        with torch.no_grad():
            return WeightDraw(self, self.weights(self.noise(generator)))

    def _estimate(self, generator: torch.Generator | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.estimator == "weight":
            return self.run(self.weights(self.noise(generator)), *args, **kwargs)
        generator = noise_source(generator or self.generator, self.mu.device)
        return flip(self, generator, args, kwargs)

    def run_views(
        self, views: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], *, module: nn.Module | None = None
    ) -> Any:
        """Run the forward pass with weights as tensors in the layout's order; on `module`, a copy, if it is given."""
        module = self.module if module is None else module
        tensors = self.layout.by_all_names(views)
        if not self.recurrent:
            return functional_call(module, tensors, args, kwargs, tie_weights=False)
        with drawn_lists(module, self.recurrent, tensors):
            return functional_call(module, tensors, args, kwargs, tie_weights=False)

    # properties of the posterior

    def kl(self) -> Tensor:
        """Return KL(posterior ‖ prior) in nats, summed over all variational weights; exact for both posteriors."""
        family = POSTERIORS[self.posterior]
        return family.kl(self.mu, self.rho, self.prior_mean, self.prior_std, self.layout.sizes)

    def snr(self) -> dict[str, Tensor]:
        """Return |mean| / standard deviation of every variational weight, by name. Low ratios mean little influence."""
        return {name: ratio.clone() for name, ratio in self.layout.by_name(self._snr()).items()}

    def mean_module(self) -> nn.Module:
        """Return a plain copy of the original module, of its own class, with every weight at its posterior mean."""
        return self._plain(self.mu.detach())

    def prune_by_snr(self, fraction: float) -> nn.Module:
        """Return `mean_module()` with a fraction of the variational weights, those of least `snr`, set to 0."""
        if not 0 <= fraction <= 1:
            raise InputError(f"prune_by_snr: expected a fraction from 0 to 1, found {fraction}")
        pruned = self.mu.detach().clone()
        pruned[self._snr().argsort(stable=True)[: int(fraction * pruned.numel())]] = 0
        return self._plain(pruned)

    @torch.no_grad()
    def _snr(self) -> Tensor:
        variance = POSTERIORS[self.posterior].variance(self.layout.sizes, self.mu)
        return self.mu.abs() / (softplus(self.rho) * variance.sqrt())

    def _plain(self, flat: Tensor) -> nn.Module:
        module = deep_copy(self.module)
        for slot, view in zip(self.layout.slots, self.layout.views(flat), strict=True):
            weight = nn.Parameter(view.clone())
            for name in slot.places:
                _set_weight(module, name, weight)
        put_together(module)
        return module

    # saving

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        vectors = {name: getattr(self, name) for name in VECTORS}
        vectors = vectors if keep_vars else {name: tensor.detach() for name, tensor in vectors.items()}
        settings = {"posterior": self.posterior, "estimator": self.estimator}
        entries = encode(self.layout, vectors, settings)
        destination.update({prefix + name: tensor for name, tensor in entries.items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        entries = {key.removeprefix(prefix): tensor for key, tensor in state_dict.items() if key.startswith(prefix)}
        missing: list[str] = []
        vectors = restore(self.layout, entries, self.mu, missing, error_msgs)
        with torch.no_grad():
            for name, flat in vectors.items():
                if name in self._parameters:
                    getattr(self, name).copy_(flat)
                else:
                    setattr(self, name, flat.clone())
        if "settings" in entries:
            settings = decode(entries["settings"])
            check_known("the saved posterior", settings["posterior"], POSTERIORS)
            check_known("the saved estimator", settings["estimator"], ESTIMATORS)
            self.posterior, self.estimator = settings["posterior"], settings["estimator"]
        missing_keys.extend(prefix + name for name in missing)
        known = {f"{vector}.{slot.name}" for vector in VECTORS for slot in self.layout.slots}
        known |= {*VECTORS, "settings"}
        unexpected_keys.extend(prefix + k for k in entries if strict and k not in known and not k.startswith("module."))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Restore weights, priors, posterior and estimator. A state of another architecture is refused first."""
        check_state(self.layout, self.state_dict(), state_dict, strict)
        return super().load_state_dict(state_dict, strict=strict, assign=False)

    def __getstate__(self) -> dict[str, Any]:
        # a generator is not part of the module's state: a copy makes its own noise
        return {**self.__dict__, "generator": None}

    def __repr__(self) -> str:
        return printed(self, "module", self.layout.by_all_names(self.layout.views(self.mu.detach())))

    def extra_repr(self) -> str:
        count, tensors = self.mu.numel(), len(self.layout.slots)
        return f"{self.posterior}, {self.estimator}, {count} variational weights in {tensors} tensors"


def _set_weight(module: nn.Module, name: str, weight: nn.Parameter | None) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(owner), attribute, weight)
