"""Flipout (Wen et al. 2018, arXiv 1803.04386): every example of a batch gets its own, decorrelated weights.

One perturbation Δ = σ ∘ z is drawn for the batch. Example n uses W_n = μ + Δ ∘ (s_out s_inᵀ) with its own random signs:

    y_n = f(x_n, μ) + f(x_n ∘ s_in, Δ) ∘ s_out.

z and z ∘ signs have the same distribution, so each example's weights have the same distribution as without flipout.
There is one sign per channel, constant over space and time: a sign per pixel would be a different, narrower posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from avuc.bayes.variational import Variational

# calls linear in their weight -> number of dimensions after the channels (None: linear, whose channels come last)
LINEAR_CALLS: dict[Callable[..., Tensor], int | None] = {
    functional.linear: None,
    functional.conv1d: 1,
    functional.conv2d: 2,
    functional.conv3d: 3,
    functional.conv_transpose1d: 1,
    functional.conv_transpose2d: 2,
    functional.conv_transpose3d: 3,
}


def flip(
    bayesian: Variational, generator: torch.Generator | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run one forward pass with flipout."""
    return (_flip if generator is None else _eager_flip)(bayesian, generator, args, kwargs)


def _flip(
    bayesian: Variational, generator: torch.Generator | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    delta = functional.softplus(bayesian.rho) * bayesian.noise(generator)
    slots, views = bayesian.layout.slots, bayesian.layout.views
    drawn, means, deltas = views(bayesian.mu + delta), views(bayesian.mu), views(delta)
    parts = zip(slots, drawn, means, deltas, strict=True)
    # a tied weight must have one value everywhere, so it is not flipped
    free = [(weight, mean, shift) for slot, weight, mean, shift in parts if len(slot.places) == 1]
    with Flipout(free, generator):
        return bayesian.run_views(drawn, args, kwargs)


# torch.compile can trace the mode, but neither a generator nor a break of the graph inside the mode
# (_disable_dynamo is torch.compiler.disable without loading the compiler at import, which takes seconds)
_eager_flip: Any = _disable_dynamo(_flip)


class Flipout(TorchFunctionMode):
    """While active, linear and convolution calls on a sampled weight add that weight's noise by flipout.

    Every other use of a sampled weight (attention, recurrence, embedding) uses the one sample shared by the batch,
    which is unbiased too. The first dimension of a batched input is the batch.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor, Tensor]], generator: torch.Generator | None) -> None:
        """`parts`: sampled weight, its mean and its perturbation, for every weight that may be flipped."""
        super().__init__()
        self.parts = parts  # searched by identity, which torch.compile can trace, unlike a dict of ids
        self.generator = generator
        self.signs: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LINEAR_CALLS:
            return self._perturb(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _perturb(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *rest: Any,
        **kw: Any,
    ) -> Tensor:
        part = self._part(weight)
        if part is None:
            return func(input, weight, bias, *rest, **kw)
        mean, delta = part
        mean_bias, delta_bias = (bias, None) if bias is None else self._part(bias) or (bias, None)
        output = func(input, mean, mean_bias, *rest, **kw)
        sign_in, sign_out = self._signs(weight, input, output, LINEAR_CALLS[func])
        return torch.addcmul(output, func(input * sign_in, delta, delta_bias, *rest, **kw), sign_out)

    def _part(self, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        for drawn, mean, delta in self.parts:
            if drawn is weight:
                return mean, delta
        return None

    def _signs(self, weight: Tensor, input: Tensor, output: Tensor, space: int | None) -> tuple[Tensor, Tensor]:
        shape_in, shape_out = _sign_shape(input, space), _sign_shape(output, space)
        for seen, sign_in, sign_out in self.signs:
            # a layer called twice in one forward pass keeps its signs: it is one weight, also for tokens and their mean
            if seen is weight and _alike(sign_in, shape_in) and _alike(sign_out, shape_out):
                return sign_in.view(shape_in), sign_out.view(shape_out)
        fresh = _random_signs(shape_in, input, self.generator), _random_signs(shape_out, output, self.generator)
        self.signs.append((weight, *fresh))
        return fresh


def _alike(signs: Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether signs belong to as many examples; dimensions of space or time, all 1, do not matter."""
    return signs.numel() == math.prod(shape) and signs.shape[0] == shape[0]


def _sign_shape(tensor: Tensor, space: int | None) -> tuple[int, ...]:
    """Return (N, 1, …, C) for linear calls, (N, C, 1, …) for convolutions; without N if the input has no batch."""
    if space is None:
        middle = [1] * (tensor.dim() - 2)
        return (*tensor.shape[:1], *middle, tensor.shape[-1]) if tensor.dim() > 1 else tuple(tensor.shape)
    return (*tensor.shape[: tensor.dim() - space], *[1] * space)


def _random_signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    device = like.device if generator is None else generator.device
    coin = torch.empty(shape, dtype=like.dtype, device=device)
    # torch.compile cannot trace the argument, so it is left out if there is no generator
    coin = coin.bernoulli_(0.5) if generator is None else coin.bernoulli_(0.5, generator=generator)
    return coin.mul_(2).sub_(1).to(like.device)
