"""Monte Carlo dropout (Gal & Ghahramani 2016, arXiv:1506.02142), also for networks without dropout layers.

Each input element of a weight layer is dropped with probability q; the others are scaled by 1/(1 − q). In training
every image has its own masks, as usual. A posterior sample has one fixed mask per layer, of the shape of one image's
activation, and uses it for all images. So a sample is a function of the image alone, in any batch. The masks of a
single image have the same distribution as usual, so its expected mean, entropy and mutual information are the same;
only the Monte Carlo errors of different images become correlated.

Hooks apply the masks: the net's code and the names in its `state_dict` do not change.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from avuc.core.errors import InputError
from avuc.core.numbers import check_settings
from avuc.core.private_copy import private_copy
from avuc.core.shared_functions import independent_copy
from avuc.methods.dropout_hooks import DropoutHook, Masks, joined_masks, masks_of, replace_layer, without_hooks
from avuc.methods.dropout_layers import (
    DROPOUT_LAYERS,
    WEIGHT_LAYERS,
    no_layers,
    own_dropout_layers,
    warn_of_skipped,
    warn_other_layers,
)
from avuc.methods.method import Method
from avuc.nets.calls import Arguments, call_every_layer, copies_of_first_row, number_of_rows
from avuc.posterior import Posterior, seeded_generator

# masks of networks whose dropout layers were looked for in a sample; an attribute would count as a change of these
_CHECKED: WeakSet[Masks] = WeakSet()


@dataclass(frozen=True)
class Dropout(Method):
    """Monte Carlo dropout before every weight layer, or where the network has dropout layers of its own.

    Args:
        rate: probability q that an input element is dropped (default 0.055, the tuned value of Ovadia et al. 2019 for
            ResNet-20 on CIFAR-10; the paper's Dropout results are theirs).
        drop_input: whether pixels are dropped before the first layer too (default True, as in that benchmark).
        own_layers: drop at the network's nn.Dropout layers instead, with this `rate` (default False); nn.Dropout2d and
            its relatives drop channels. Layers of rate 0 only mark the places: other methods drop nothing there.

    >>> method = Dropout(rate=0.5)
    >>> posterior = method.posterior([method.build(nn.Linear(8, 3))])
    >>> posterior.draw(torch.Generator().manual_seed(0))(torch.rand(4, 8)).shape
    torch.Size([4, 3])
    """

    name = "dropout"
    last_only: ClassVar[bool] = False
    rate: float = 0.055
    drop_input: bool = True
    own_layers: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if not 0 <= self.rate < 1:
            raise InputError(f"dropout rate must be at least 0 and below 1, found {self.rate}")
        if self.own_layers and self.last_only:
            raise InputError("ll_dropout drops before the last layer; own_layers is for the method dropout")

    def __repr__(self) -> str:
        # checkpoints of version 0.1.0 are identified by this text
        own = ", own_layers=True" if self.own_layers else ""
        return f"{type(self).__qualname__}(rate={self.rate!r}, drop_input={self.drop_input!r}{own})"

    def build(self, net: nn.Module, *, generator: torch.Generator | None = None) -> nn.Module:
        model = without_hooks(independent_copy(net))
        if self.own_layers:
            return self._at_own_layers(model, generator)
        layers = [layer for layer in model.modules() if isinstance(layer, WEIGHT_LAYERS)]
        if self.last_only:
            layers = layers[-1:]
        else:
            warn_other_layers(model)
            layers = layers if self.drop_input else layers[1:]
        if not layers:
            raise InputError(f"{type(net).__name__} has no linear or convolution layer to put dropout before")
        masks = Masks(generator)
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(DropoutHook(masks, index, self.rate))
        return model

    def _at_own_layers(self, model: nn.Module, generator: torch.Generator | None) -> nn.Module:
        layers = own_dropout_layers(model, marked=True)
        if "" in layers:
            raise no_layers(model)
        masks = Masks(generator)
        for index, own in enumerate(layers.values()):
            channels = type(own) is not nn.Dropout
            # the hook does the dropout, with the model's generator; the layer itself would use torch's own generator
            layer = nn.Identity()
            object.__setattr__(layer, "p", 0.0)  # attention of Transformers reads it in training
            layer.register_forward_pre_hook(DropoutHook(masks, index, self.rate, channels=channels))
            replace_layer(model, own, layer)
        return model

    def posterior(self, models: Sequence[nn.Module], *, images: Tensor | None = None) -> Posterior:
        return DropoutPosterior(self.one(models))


class DropoutPosterior(nn.Module):
    """A posterior of fixed dropout masks, one for each sample. For your own net: `DropoutPosterior.of_own_layers(net)`.

    Args:
        net: a net made by `Dropout.build`.

    >>> model = Dropout(rate=0.5).build(nn.Linear(8, 3))
    >>> f = DropoutPosterior(model).draw(torch.Generator().manual_seed(0))
    >>> x = torch.rand(4, 8)
    >>> torch.allclose(f(x)[:1], f(x[:1]), atol=1e-6)  # the batch does not matter
    True
    """

    num_draws: int | None = None
    takes_bytes: bool = True  # uint8 images, scaled to [0, 1]

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.masks: Masks = joined_masks(net)

    @classmethod
    def of_own_layers(cls, net: nn.Module) -> DropoutPosterior:
        """Return the posterior of a net that was trained with its own nn.Dropout layers: Monte Carlo dropout.

        Args:
            net: the net; it gets hooks that do nothing outside this posterior.

        >>> net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        >>> DropoutPosterior.of_own_layers(net).draw(torch.Generator())(torch.rand(4, 8)).shape
        torch.Size([4, 3])
        """
        layers = own_dropout_layers(net, marked=False).values()
        masks = Masks(None)
        for index, layer in enumerate(layers):
            if not any(isinstance(hook, DropoutHook) for hook in layer._forward_pre_hooks.values()):
                channels = type(layer) is not nn.Dropout
                hook = DropoutHook(masks, index, layer.p, channels=channels, in_training=False)
                layer.register_forward_pre_hook(hook)
        posterior = cls(net)
        posterior.takes_bytes = False  # the user's network may expect another mean and scale; it can say so itself
        return posterior

    def draw(self, generator: torch.Generator) -> MaskDraw:
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        return MaskDraw(self.net, self.masks, int(seed))


class MaskDraw:
    """One sample: the net with fixed masks. They depend on the seed, the layer and the shape of its input."""

    def __init__(self, net: nn.Module, masks: Masks, seed: int) -> None:
        self.net: nn.Module = net
        self.masks: Masks = masks
        self.seed: int = seed
        self._calls: Counter[int] = Counter()
        self._drawn: dict[tuple[int, ...], Tensor] = {}
        self._arguments: Arguments = ((), {})  # of this pass
        self._shapes: list[dict[tuple[int, int], torch.Size]] = []  # of inputs of layers, for one row and for two

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(MaskDraw, args, kwargs)

    def _run(self, kind: type[MaskDraw], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        net = call_every_layer(private_copy(self.net).eval())  # another thread may use the net itself
        this_pass = kind(net, masks_of(net), self.seed)
        this_pass._drawn, this_pass._shapes, this_pass._arguments = self._drawn, self._shapes, (args, kwargs)
        this_pass.masks.draw = this_pass
        logits = net(*args, **kwargs)
        if kind is MaskDraw and self.masks not in _CHECKED:
            _CHECKED.add(self.masks)
            warn_of_skipped(net, _skipped(this_pass))
        return logits

    def mask(self, hook_index: int, rate: float, x: Tensor, channels: bool) -> Tensor:
        """Return the mask of a layer, scaled by 1/(1 − q); a layer called twice in one pass has two masks."""
        # a generator cannot be traced, so a network that the user has compiled breaks its graph here; without this
        # check, the compiler would be loaded in eager mode too, which takes seconds
        make = _eager_mask if torch.compiler.is_compiling() else MaskDraw._mask
        return make(self, hook_index, rate, x, channels)

    def _mask(self, hook_index: int, rate: float, x: Tensor, channels: bool) -> Tensor:
        call = (hook_index, self._calls[hook_index])
        self._calls[hook_index] += 1
        shape = (x.shape[1], *[1] * (x.ndim - 2)) if channels else x.shape[1:]
        if not channels and x.ndim > 2 and self._time_first(call, x):
            shape = (x.shape[0], 1, *x.shape[2:])
        key = (*call, *shape)
        if key not in self._drawn:
            generator = seeded_generator(self.seed, *key, device=x.device)
            kept = torch.empty(shape, device=x.device).bernoulli_(1 - rate, generator=generator)
            self._drawn[key] = kept / (1 - rate) if rate < 1 else kept
        return self._drawn[key].to(x.dtype)

    def _time_first(self, call: tuple[int, int], x: Tensor) -> bool:
        """Return whether the batch is the second dimension of a layer's input, as in transformers by default.

        One mask of the other dimensions would then be the same for all time steps, and different for each example.
        """
        if x.shape[1] != number_of_rows(self._arguments):
            return False
        if not self._shapes:
            self._shapes += [_input_shapes(self, copies_of_first_row(self._arguments, count)) for count in (1, 2)]
        one, two = (shapes.get(call) for shapes in self._shapes)
        return one is not None and two is not None and one[0] == two[0] and 2 * one[1] == two[1]


class _ShapeDraw(MaskDraw):
    """Keeps the shapes of inputs, and drops nothing."""

    def mask(self, hook_index: int, rate: float, x: Tensor, channels: bool) -> Tensor:
        self._shapes[0][hook_index, self._calls[hook_index]] = x.shape
        self._calls[hook_index] += 1
        return x.new_ones(())


def _input_shapes(sample: MaskDraw, arguments: Arguments) -> dict[tuple[int, int], torch.Size]:
    """Return the shapes of the inputs of layers with dropout, by layer and call."""
    shapes = _ShapeDraw(sample.net, sample.masks, sample.seed)
    shapes._shapes = [{}]
    # whatever a network raises that does not take so few rows: the batch is then the first dimension
    with contextlib.suppress(Exception), torch.no_grad():
        shapes._run(_ShapeDraw, *arguments)
    return shapes._shapes[0]


def _skipped(sample: MaskDraw) -> list[str]:
    """Return the network's own dropout layers that a pass of a sample has not called, although they have a rate."""
    return [
        name
        for name, layer in sample.net.named_modules()
        for hook in layer._forward_pre_hooks.values()
        if isinstance(hook, DropoutHook) and isinstance(layer, (*DROPOUT_LAYERS, nn.Identity))
        if hook.rate_before(layer) and hook.place not in sample._calls
    ]


_eager_mask: Callable[[MaskDraw, int, float, Tensor, bool], Tensor] = _disable_dynamo(MaskDraw._mask)
