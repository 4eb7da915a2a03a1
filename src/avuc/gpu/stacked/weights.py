"""`Stack`: the weights of several models in common tensors. The models' own parameters and statistics become views.

Row m of `mean` holds all convolution and linear weights of model m (the means, if it has a posterior), row m of `rho`
the ρ of its variational weights. `affine` and `statistics` (M, 2, channels) belong to batch normalisation. One call of
the optimizer updates all models, while checkpoints, validation and averages use the models' own names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule
from avuc.bayes.layout import Slot, choose
from avuc.gpu.stacked.net import Part, norm_layers, weight_layers
from avuc.gpu.stacked.sampling import Kind
from avuc.methods.swag import SWAGModel
from avuc.nets.resnet_cifar import CifarResNet
from avuc.training.model_trainer import ModelTrainer, optimizer_groups

# rows start at multiples of this many numbers, so that views of them are aligned like tensors of their own
ALIGNED = 64


def net_of(trainer: ModelTrainer) -> nn.Module:
    model = trainer.model
    if isinstance(model, BayesianModule):
        return model.module
    return model.net if isinstance(model, SWAGModel) else model


def slots_of(trainer: ModelTrainer) -> dict[str, Slot]:
    """Return where each weight of the network is in the memory of the model, in the order of the forward pass."""
    model, net = trainer.model, net_of(trainer)
    assert isinstance(net, CifarResNet)
    slots = {slot.name: slot for slot in model.layout.slots} if isinstance(model, BayesianModule) else {}
    layers = weight_layers(net)
    if any(layer.weight is not None for layer in layers.values()):
        slots |= {slot.name: slot for slot in choose(net, "all").slots}
    names = [f"{name}.{kind}" for name in layers for kind in ("weight", "bias")]
    return {name: slots[name] for name in names if name in slots}


class Stack:
    """The common tensors of models that `choice.py` finds supported."""

    def __init__(self, trainers: Sequence[ModelTrainer]) -> None:
        self.trainers = trainers
        nets = [net_of(trainer) for trainer in trainers]
        self.slots: dict[str, Slot] = slots_of(trainers[0])
        self.parts: dict[str, Part] = {}
        size = 0
        for name, slot in self.slots.items():
            shape = tuple(slot.shape)
            self.parts[name] = Part(size, (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape)
            size += slot.shape.numel()
        like = trainers[0].parameters[0].detach()
        models, width = len(trainers), -(-size // ALIGNED) * ALIGNED
        bayesian = [trainer.model for trainer in trainers if isinstance(trainer.model, BayesianModule)]
        self.mean: Tensor = like.new_zeros(models, width)
        # a model without posterior has noise 0, so its ρ has no effect
        self.rho: Tensor | None = like.new_zeros(models, width) if bayesian else None
        self.noise: Tensor | None = like.new_zeros(models, width) if bayesian else None
        norms = [list(norm_layers(net).values()) for net in nets]  # type: ignore[arg-type]
        channels = sum(layer.num_features for layer in norms[0])
        self.affine: Tensor = like.new_zeros(models, 2, channels)
        self.statistics: Tensor = like.new_zeros(models, 2, channels)
        self.batches: Tensor = torch.zeros(models, len(norms[0]), dtype=torch.int64, device=like.device)
        self.momentum: float = norms[0][0].momentum  # type: ignore[assignment]
        self.order: Tensor
        self.back: Tensor
        self.order, self.back = self._orders(models, width, like.device)
        self.spans: list[tuple[int, int] | None] = [self._span(trainer.model) for trainer in trainers]
        self.kinds: tuple[Kind, ...]
        self.priors: list[tuple[Tensor, Tensor]]
        self.kinds, self.priors = self._kinds()
        self.leaves: list[Tensor] = [leaf for leaf in (self.mean, self.rho, self.affine) if leaf is not None]
        self._owned: list[tuple[Tensor, Tensor]] = []  # a model's tensor and its view in a common tensor
        self._views: list[tuple[ModelTrainer, nn.Parameter, int, Callable[[Tensor], Tensor]]] = []
        self._adopt(norms)
        self.optimizer: torch.optim.Optimizer = self._joint_optimizer()
        for leaf in self.leaves:
            leaf.requires_grad_()

    def _orders(self, models: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the index in `mean` of each number of the flat weights, and the inverse (−1: not a weight)."""
        positions = []
        rows = torch.arange(models)[:, None] * width
        for name, slot in self.slots.items():
            inside = slot.view(torch.arange(slot.shape.numel()))
            if inside.dim() == 4:
                inside = inside.permute(0, 2, 3, 1)
            positions.append((rows + self.parts[name].start + inside.reshape(1, -1)).reshape(-1))
        order = torch.cat(positions)
        back = torch.full((models * width,), -1)
        back[order] = torch.arange(len(order))
        return order.to(device), back.view(models, width).to(device)

    def _span(self, model: nn.Module) -> tuple[int, int] | None:
        if not isinstance(model, BayesianModule):
            return None
        start = self.parts[model.layout.slots[0].name].start
        return start, start + sum(model.layout.sizes)

    def _kinds(self) -> tuple[tuple[Kind, ...], list[tuple[Tensor, Tensor]]]:
        rows: dict[tuple[Any, ...], list[int]] = {}
        for row, (trainer, span) in enumerate(zip(self.trainers, self.spans, strict=True)):
            if isinstance(trainer.model, BayesianModule) and span is not None:
                rows.setdefault((trainer.model.posterior, *span, tuple(trainer.model.layout.sizes)), []).append(row)
        kinds = tuple(
            Kind(name, start, stop, sizes, tuple(members)) for (name, start, stop, sizes), members in rows.items()
        )
        priors = [
            tuple(_together([getattr(self.trainers[row].model, name) for row in kind.rows]) for name in PRIOR)
            for kind in kinds
        ]
        return kinds, priors  # type: ignore[return-value]

    # models' tensors become views

    @torch.no_grad()
    def _adopt(self, norms: Sequence[Sequence[nn.BatchNorm2d]]) -> None:
        last = len(self.leaves) - 1
        for row, (trainer, span) in enumerate(zip(self.trainers, self.spans, strict=True)):
            if isinstance(trainer.model, BayesianModule) and span is not None:
                for leaf, parameter in enumerate((trainer.model.mu, trainer.model.rho)):
                    self._register(trainer, parameter, leaf, partial(_segment, row=row, start=span[0], stop=span[1]))
            plain = dict(net_of(trainer).named_parameters())
            for name, part in self.parts.items():
                if name in plain:
                    stop = part.start + self.slots[name].shape.numel()
                    view = partial(_segment, row=row, start=part.start, stop=stop, slot=self.slots[name])
                    self._register(trainer, plain[name], 0, view)
            first = 0
            for number, layer in enumerate(norms[row]):
                stop = first + layer.num_features
                for which, parameter in enumerate((layer.weight, layer.bias)):
                    self._register(
                        trainer, parameter, last, partial(_channels, row=row, which=which, start=first, stop=stop)
                    )
                for which, buffer in enumerate((layer.running_mean, layer.running_var)):
                    assert buffer is not None
                    self._own(buffer, self.statistics[row, which, first:stop])
                assert layer.num_batches_tracked is not None
                self._own(layer.num_batches_tracked, self.batches[row, number])
                first = stop

    def _register(
        self, trainer: ModelTrainer, parameter: nn.Parameter, leaf: int, view: Callable[[Tensor], Tensor]
    ) -> None:
        self._own(parameter, view(self.leaves[leaf]))
        self._views.append((trainer, parameter, leaf, view))

    def _own(self, tensor: Tensor, view: Tensor) -> None:
        view.copy_(tensor.detach())
        tensor.data = view
        self._owned.append((tensor, view))

    @torch.no_grad()
    def _joint_optimizer(self) -> torch.optim.Optimizer:
        """Return the models' optimizer for the common tensors. The models' own moments become views of its moments."""
        own = self.trainers[0].optimizer
        widths = [self.rho] if self.rho is not None and own.defaults["weight_decay"] else []
        joint = type(own)(optimizer_groups(self.leaves, widths), **own.defaults)
        slots = _moments(own)
        for leaf in self.leaves:
            joint.state[leaf] = {name: torch.zeros_like(leaf) for name in slots}
        for trainer, parameter, number, view in self._views:
            common, before = joint.state[self.leaves[number]], trainer.optimizer.state.get(parameter, {})
            mine: dict[str, Any] = {}
            for name in slots:
                mine[name] = view(common[name])
                if isinstance(before.get(name), Tensor):
                    mine[name].copy_(before[name])
            if "exp_avg" in slots:
                if "step" not in common:
                    common["step"] = before["step"].clone() if "step" in before else _step(own, parameter)
                mine["step"] = common["step"]
            if mine:
                trainer.optimizer.state[parameter] = mine
        return joint

    @torch.no_grad()
    def release(self) -> None:
        """Give every model its own tensors again."""
        for tensor, view in self._owned:
            tensor.data = view.clone()
        for trainer, parameter, _, _ in self._views:
            state = trainer.optimizer.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.clone()
        self._owned, self._views = [], []

    # steps

    @torch.no_grad()
    def draw(self, row: int) -> None:
        """Draw a model's noise for one step from its own generator."""
        model, span = self.trainers[row].model, self.spans[row]
        if self.noise is not None and isinstance(model, BayesianModule) and span is not None:
            self.noise[row, span[0] : span[1]].copy_(model.noise())

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], moments: Tensor) -> None:
        """Update weights and running statistics."""
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient
        # on a CPU the learning rate is a number, which is set in each epoch
        for group in self.optimizer.param_groups:
            group["lr"] = self.trainers[0].optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.statistics.lerp_(moments.to(self.statistics.dtype), self.momentum)
        self.batches.add_(1)


PRIOR = ("prior_mean", "prior_std")


def _moments(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    if isinstance(optimizer, torch.optim.Adam):
        return ("exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if optimizer.defaults["momentum"] else ()


def _step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Tensor:
    """Return Adam's step counter at the start, with the dtype and device that Adam would choose."""
    fast = optimizer.defaults["fused"] or optimizer.defaults["capturable"]
    dtype = torch.float32 if fast else torch.get_default_dtype()
    return torch.zeros((), dtype=dtype, device=parameter.device if fast else "cpu")


def _segment(leaf: Tensor, row: int, start: int, stop: int, slot: Slot | None = None) -> Tensor:
    segment = leaf[row, start:stop]
    return segment if slot is None else slot.view(segment)


def _channels(leaf: Tensor, row: int, which: int, start: int, stop: int) -> Tensor:
    return leaf[row, which, start:stop]


def _together(values: Sequence[Tensor]) -> Tensor:
    """Stack numbers or vectors, one for each model."""
    largest = max(values, key=lambda value: value.dim())
    return torch.stack([value.expand_as(largest) for value in values])
