"""The weights of several models in common tensors: the models' own parameters, moments and statistics become views.

Row m of `mean` holds every convolution and linear weight of model m (posterior means where it has a posterior), row m
of `rho` the ρ of those that are variational, `affine` and `statistics` (M, 2, channels) what batch normalisation has.
One optimiser call then serves all models, while checkpoints, validation and averages go on with the models' own names.
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
from avuc.training.model_trainer import Member, without_decay

__all__ = ["Stack", "net_of", "slots_of"]

# rows begin at multiples of this many numbers: views of them are as well aligned as tensors of their own
ALIGNED = 64


def net_of(member: Member) -> nn.Module:
    model = member.model
    if isinstance(model, BayesianModule):
        return model.module
    return model.net if isinstance(model, SWAGModel) else model


def slots_of(member: Member) -> dict[str, Slot]:
    """Where every weight of the net is in the memory of one model, in the order of the forward pass."""
    model, net = member.model, net_of(member)
    assert isinstance(net, CifarResNet)
    slots = {slot.name: slot for slot in model.layout.slots} if isinstance(model, BayesianModule) else {}
    layers = weight_layers(net)
    if any(layer.weight is not None for layer in layers.values()):
        slots |= {slot.name: slot for slot in choose(net, "all").slots}
    names = [f"{name}.{kind}" for name in layers for kind in ("weight", "bias")]
    return {name: slots[name] for name in names if name in slots}


class Stack:
    """The common tensors of models that `stacked_choice.reason_against` has nothing against."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        nets = [net_of(member) for member in members]
        self.slots = slots_of(members[0])
        self.parts: dict[str, Part] = {}
        size = 0
        for name, slot in self.slots.items():
            shape = tuple(slot.shape)
            self.parts[name] = Part(size, (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape)
            size += slot.shape.numel()
        like = members[0].parameters[0].detach()
        models, width = len(members), -(-size // ALIGNED) * ALIGNED
        bayesian = [member.model for member in members if isinstance(member.model, BayesianModule)]
        self.mean = like.new_zeros(models, width)
        # a row without posterior has noise 0, which makes its ρ idle
        self.rho = like.new_zeros(models, width) if bayesian else None
        self.noise = like.new_zeros(models, width) if bayesian else None
        norms = [list(norm_layers(net).values()) for net in nets]  # type: ignore[arg-type]
        channels = sum(layer.num_features for layer in norms[0])
        self.affine = like.new_zeros(models, 2, channels)
        self.statistics = like.new_zeros(models, 2, channels)
        self.batches = torch.zeros(models, len(norms[0]), dtype=torch.int64, device=like.device)
        self.momentum: float = norms[0][0].momentum  # type: ignore[assignment]
        self.order, self.back = self._orders(models, width, like.device)
        self.spans = [self._span(member.model) for member in members]
        self.kinds, self.priors = self._kinds()
        self.leaves = [leaf for leaf in (self.mean, self.rho, self.affine) if leaf is not None]
        self._owned: list[tuple[Tensor, Tensor]] = []  # of a model, and its place in a common tensor
        self._places: list[tuple[Member, nn.Parameter, int, Callable[[Tensor], Tensor]]] = []
        self._adopt(norms)
        self.optimizer = self._joint_optimizer()
        for leaf in self.leaves:
            leaf.requires_grad_()

    # where things are

    def _orders(self, models: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Which number of `mean` each number of the flat weights is, and back (−1 where it is none)."""
        places = []
        rows = torch.arange(models)[:, None] * width
        for name, slot in self.slots.items():
            inside = slot.view(torch.arange(slot.shape.numel()))
            if inside.dim() == 4:
                inside = inside.permute(0, 2, 3, 1)
            places.append((rows + self.parts[name].start + inside.reshape(1, -1)).reshape(-1))
        order = torch.cat(places)
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
        for row, (member, span) in enumerate(zip(self.members, self.spans, strict=True)):
            if isinstance(member.model, BayesianModule) and span is not None:
                rows.setdefault((member.model.posterior, *span, tuple(member.model.layout.sizes)), []).append(row)
        kinds = tuple(
            Kind(name, start, stop, sizes, tuple(found)) for (name, start, stop, sizes), found in rows.items()
        )
        priors = [
            tuple(_together([getattr(self.members[row].model, name) for row in kind.rows]) for name in PRIOR)
            for kind in kinds
        ]
        return kinds, priors  # type: ignore[return-value]

    # models' tensors become views

    @torch.no_grad()
    def _adopt(self, norms: Sequence[Sequence[nn.BatchNorm2d]]) -> None:
        last = len(self.leaves) - 1
        for row, (member, span) in enumerate(zip(self.members, self.spans, strict=True)):
            if isinstance(member.model, BayesianModule) and span is not None:
                for leaf, parameter in enumerate((member.model.mu, member.model.rho)):
                    self._place(member, parameter, leaf, partial(_segment, row=row, start=span[0], stop=span[1]))
            plain = dict(net_of(member).named_parameters())
            for name, part in self.parts.items():
                if name in plain:
                    stop = part.start + self.slots[name].shape.numel()
                    view = partial(_segment, row=row, start=part.start, stop=stop, slot=self.slots[name])
                    self._place(member, plain[name], 0, view)
            first = 0
            for number, layer in enumerate(norms[row]):
                stop = first + layer.num_features
                for which, parameter in enumerate((layer.weight, layer.bias)):
                    self._place(
                        member, parameter, last, partial(_channels, row=row, which=which, start=first, stop=stop)
                    )
                for which, buffer in enumerate((layer.running_mean, layer.running_var)):
                    assert buffer is not None
                    self._own(buffer, self.statistics[row, which, first:stop])
                assert layer.num_batches_tracked is not None
                self._own(layer.num_batches_tracked, self.batches[row, number])
                first = stop

    def _place(self, member: Member, parameter: nn.Parameter, leaf: int, view: Callable[[Tensor], Tensor]) -> None:
        self._own(parameter, view(self.leaves[leaf]))
        self._places.append((member, parameter, leaf, view))

    def _own(self, tensor: Tensor, view: Tensor) -> None:
        view.copy_(tensor.detach())
        tensor.data = view
        self._owned.append((tensor, view))

    @torch.no_grad()
    def _joint_optimizer(self) -> torch.optim.Optimizer:
        """The models' optimiser over the common tensors; what it remembers are views in the models' own."""
        own = self.members[0].optimizer
        widths = [self.rho] if self.rho is not None and own.defaults["weight_decay"] else []
        joint = type(own)(without_decay(self.leaves, widths), **own.defaults)
        slots = _moments(own)
        for leaf in self.leaves:
            joint.state[leaf] = {name: torch.zeros_like(leaf) for name in slots}
        for member, parameter, number, view in self._places:
            common, before = joint.state[self.leaves[number]], member.optimizer.state.get(parameter, {})
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
                member.optimizer.state[parameter] = mine
        return joint

    @torch.no_grad()
    def release(self) -> None:
        """Give every model tensors of its own again."""
        for tensor, view in self._owned:
            tensor.data = view.clone()
        for member, parameter, _, _ in self._places:
            state = member.optimizer.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.clone()
        self._owned, self._places = [], []

    # steps

    @torch.no_grad()
    def draw(self, row: int) -> None:
        """A model's noise of one step, from its own generator."""
        model, span = self.members[row].model, self.spans[row]
        if self.noise is not None and isinstance(model, BayesianModule) and span is not None:
            self.noise[row, span[0] : span[1]].copy_(model.noise())

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], moments: Tensor) -> None:
        """A step of the optimiser, and the running statistics."""
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient
        # on a CPU the rate is a number, which each epoch sets anew
        for group in self.optimizer.param_groups:
            group["lr"] = self.members[0].optimizer.param_groups[0]["lr"]
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
    """Adam's count of steps at the start, of the type and in the place it would have chosen."""
    fast = optimizer.defaults["fused"] or optimizer.defaults["capturable"]
    dtype = torch.float32 if fast else torch.get_default_dtype()
    return torch.zeros((), dtype=dtype, device=parameter.device if fast else "cpu")


def _segment(leaf: Tensor, row: int, start: int, stop: int, slot: Slot | None = None) -> Tensor:
    segment = leaf[row, start:stop]
    return segment if slot is None else slot.view(segment)


def _channels(leaf: Tensor, row: int, which: int, start: int, stop: int) -> Tensor:
    return leaf[row, which, start:stop]


def _together(values: Sequence[Tensor]) -> Tensor:
    """Numbers or vectors, one for each model, as one tensor."""
    largest = max(values, key=lambda value: value.dim())
    return torch.stack([value.expand_as(largest) for value in values])
