"""CIFAR ResNets that train as one stacked network: few large kernels instead of many small ones for each model.

A joint step draws every model's crops and weight noise from the model's own generators, runs the stacked network once
forward and once backward, each model's objective on its own logits in between, and one optimiser over all weights. The
models' parameters, moments and statistics are views of the stacked tensors (stacked_weights.py), so that everything
between steps goes on as if each model had taken its step alone. On CUDA the batches of the usual size are compiled in
pieces and all are captured; what fails goes on in `FastSteps`, and one line says why. On a CPU it runs eagerly, which
is how the tests see that the mathematics is that of the single models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from avuc.bayes import BayesianModule
from avuc.core.errors import InputError
from avuc.data.arrays import Dataset
from avuc.gpu.stacked.dropout import Drops, hooks_of
from avuc.gpu.stacked.layers import prepared
from avuc.gpu.stacked.net import StackedResNet, Use
from avuc.gpu.stacked.sampling import drawn_weights
from avuc.gpu.stacked.weights import Stack, net_of
from avuc.methods import Terms
from avuc.nets.common import Normalise
from avuc.nets.resnet_cifar import CifarResNet
from avuc.training.captured import Captured, FastSteps, captured, fresh_generators, tried, unchanged
from avuc.training.compiled import attach, compiled, compiling
from avuc.training.model_trainer import Member
from avuc.training.steps import Diverged, Steps, check

__all__ = ["StackedSteps"]


class StackedSteps:
    """A joint step of CIFAR ResNets that stacked_choice.py lets train together; see `Steps`."""

    def __init__(self, members: Sequence[Member], data: Dataset, say: Callable[[str], None]) -> None:
        self.members, self.data, self.say = members, data, say
        self.stack = Stack(members)
        net = net_of(members[0])
        assert isinstance(net, CifarResNet)
        self.net = StackedResNet(net, self.stack.parts)
        shapes = self.net.input_shapes(data.images.shape[1:])
        self.drops = Drops([hooks_of(net_of(member)) for member in members], shapes, self.stack.mean)  # type: ignore[arg-type]
        constants = net.normalise
        scaling = (constants.mean, constants.std) if isinstance(constants, Normalise) else (None, None)
        # with the channels last
        self.scaling = [None if value is None else value.detach().view(-1) for value in scaling]
        settings = members[0].settings
        self.dtype = torch.bfloat16 if settings.precision == "bfloat16" else self.stack.mean.dtype
        self.fast = data.device.type == "cuda"
        self.streams = [torch.cuda.Stream(data.device) for _ in members] if self.fast and len(members) > 1 else []
        self.graphs: dict[int, Captured] = {}
        self.phase: tuple[bool, ...] = ()
        self.failed: set[Callable[..., Any]] = set()  # pieces that do not compile
        self.instead: Steps | None = None

    def prepare(self, sizes: Sequence[int]) -> None:
        """Before an epoch: compile and capture a step for each batch size, unless that is done."""
        if self.instead is not None:
            return self.instead.prepare(sizes)
        for member in self.members:
            member.model.train()
            member.loss.train()
        if not self.fast:
            return None
        phase = tuple(member.loss.warming_up for member in self.members)
        if phase != self.phase:
            self.phase, self.graphs = phase, {}  # the objectives do something else from now on
        for rows in sorted(set(sizes), reverse=True):
            if rows in self.graphs:
                continue
            try:
                # the last batch of an epoch is one of hundreds: compiling for its size would cost more than it saves
                self.graphs[rows] = self._captured(rows, compile_it=rows == max(sizes))
            except Diverged:
                raise
            except Exception as error:  # compiler, kernels and driver fail in many ways; all have a slower way out
                torch.cuda.synchronize()
                fresh_generators(self.members, self.data.device)
                self.say(
                    f"training: {len(self.members)} models cannot train stacked ({_reason(error)}); now on streams"
                )
                self.release()
                self.instead = FastSteps(self.members, self.data, self.say)
                return self.instead.prepare(sizes)
        return None

    def __call__(self, indices: Tensor) -> None:
        if self.instead is not None:
            self.instead(indices)
        elif self.fast:
            graph = self.graphs[indices.shape[1]]
            graph.indices.copy_(indices)
            graph.graph.replay()
        else:
            self.joint(indices, _as_it_is)
            for member in self.members:
                check(member)

    def release(self) -> None:
        """The end of stacking: each model has its own tensors again."""
        self.graphs = {}
        self.stack.release()

    def _captured(self, rows: int, compile_it: bool) -> Captured:
        use = self._compiled if compile_it else _as_it_is
        for member in self.members:
            attach(member, "all" if compile_it else "none")
        indices = torch.arange(rows, device=self.data.device).expand(len(self.members), rows).contiguous()
        with compiling():
            with unchanged(self.members):
                tried(lambda: self.joint(indices, use), self.data.device)
            return captured(lambda: self.joint(indices, use), self.members, indices)

    def _compiled(self, piece: Callable[..., Any]) -> Callable[..., Any]:
        """A piece compiled, or where that fails as it is: the others need not suffer."""
        if piece in self.failed:
            return piece
        faster = compiled(piece)

        def run(*args: Any) -> Any:
            try:
                return faster(*args)
            except Exception as error:  # as many ways as compilers have
                self.failed.add(piece)
                self.say(f"training: {piece.__name__} of the stacked step is not compiled ({_reason(error)})")
                return piece(*args)

        return run

    # one step

    def joint(self, indices: Tensor, use: Use) -> None:
        """One step of every model, with each piece as it is or compiled."""
        stack, data, members = self.stack, self.data, self.members
        crops: dict[int, Tensor] = {}

        def draw(row: int, member: Member) -> None:
            stack.draw(row)
            crops[row] = member.augmentation.draw(indices.shape[1], member.augmenting, data.device)

        self._each(draw)
        affine = stack.affine.detach()
        given = members[0].augmentation, data.images, indices, torch.cat([crops[row] for row in range(len(members))])
        with torch.no_grad():
            images, labels = use(prepared)(*given, *self.scaling, self.dtype), data.labels[indices]
        places = stack.order, stack.back, stack.kinds, stack.priors, self.dtype
        flat, kl = use(drawn_weights)(stack.mean, stack.rho, stack.noise, *places)
        drop = self.drops.draw(indices.shape[1], self.dtype, data.device, self._each, use)
        tape = self.net.forward(images, flat.detach(), affine, use, drop)
        terms, in_logits, in_kl = self._objectives(tape.logits, labels, kl.detach())
        by_net = self.net.backward(tape, torch.stack(in_logits), affine, use, drop)
        outputs, given_to = (
            ([flat, kl], [by_net.flat, torch.stack(in_kl)]) if kl.requires_grad else ([flat], [by_net.flat])
        )
        gradients = [*torch.autograd.grad(outputs, stack.leaves[:-1], given_to), by_net.affine]
        norms = use(norms_of)(gradients)
        limit = members[0].settings.clip_norm
        if limit:
            gradients = use(clipped)(gradients, norms, limit)

        def count(row: int, member: Member) -> None:
            member.meters.add(tape.logits[row], labels[row], terms[row], norms[row])

        self._fork(count)
        stack.update(gradients, tape.moments)
        self._averages()
        self._join()

    def _objectives(self, logits: Tensor, labels: Tensor, kl: Tensor) -> tuple[list[Terms], list[Tensor], list[Tensor]]:
        """Each model's loss, and its gradient in the model's logits and KL."""
        terms: list[Any] = [None] * len(self.members)
        in_logits, in_kl = list(terms), list(terms)

        def judge(row: int, member: Member) -> None:
            own, divergence = logits[row].requires_grad_(), kl[row].requires_grad_()
            bayesian = isinstance(member.model, BayesianModule)
            try:
                found = member.terms(own, labels[row], divergence * member.kl_share if bayesian else 0.0)
            except InputError as error:
                if "NaN" in str(error):  # AvUC looks for it where it can
                    raise Diverged(member, int(member.meters.sums[-1]), "logits") from error
                raise
            gradients = torch.autograd.grad(found.total, [own, divergence], allow_unused=True)
            terms[row] = Terms(*(term.detach() for term in found))
            in_logits[row], in_kl[row] = (
                torch.zeros_like(like) if gradient is None else gradient
                for gradient, like in zip(gradients, (own, divergence), strict=True)
            )

        self._each(judge)
        return terms, in_logits, in_kl

    def _each(self, function: Callable[[int, Member], None]) -> None:
        """A function of every model, on its own stream where there are streams."""
        self._fork(function)
        self._join()

    def _fork(self, function: Callable[[int, Member], None]) -> None:
        if not self.streams:
            for row, member in enumerate(self.members):
                function(row, member)
            return
        main = torch.cuda.current_stream()
        for row, (member, stream) in enumerate(zip(self.members, self.streams, strict=True)):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                function(row, member)

    def _join(self) -> None:
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)

    @torch.no_grad()
    def _averages(self) -> None:
        decay = self.members[0].settings.ema_decay
        if decay:
            averages = [average for member in self.members for average in member.average]
            torch._foreach_lerp_(averages, [now for member in self.members for now in member._averaged()], 1 - decay)


def norms_of(gradients: list[Tensor]) -> Tensor:
    """The norm of each model's whole gradient."""
    squares = [gradient.square().flatten(1).sum(1) for gradient in gradients]
    return torch.stack(squares).sum(0).sqrt()


def clipped(gradients: list[Tensor], norms: Tensor, limit: float) -> list[Tensor]:
    """Each model's gradient with a norm of at most `limit`; as `nn.utils.clip_grads_with_norm_`."""
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)
    return [gradient * factors.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
