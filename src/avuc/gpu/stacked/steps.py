"""`StackedSteps`: joint steps of CIFAR ResNets as one stacked network, with a few large kernels instead of many small.

A joint step draws each model's crops and weight noise from the model's own generators, runs the stacked network forward
and backward once, computes each model's objective on its own logits in between, and updates all weights with one
optimizer. The models' parameters, moments and statistics are views of the stacked tensors (weights.py), so everything
between steps works as if each model had taken its step alone. On CUDA, steps of the full batch size are compiled, and
all steps are captured. If that fails the models train in `CapturedSteps`, and one line says why. On a CPU the steps run
eagerly; the tests use that to compare them with steps of single models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from avuc.bayes import BayesianModule
from avuc.core.errors import NonFiniteError
from avuc.data.arrays import Dataset
from avuc.gpu.stacked.dropout import Drops, hooks_of
from avuc.gpu.stacked.layers import prepared
from avuc.gpu.stacked.net import StackedResNet, Use
from avuc.gpu.stacked.sampling import drawn_weights
from avuc.gpu.stacked.weights import Stack, net_of
from avuc.methods import Terms
from avuc.nets.common import Normalise
from avuc.nets.resnet_cifar import CifarResNet
from avuc.training.captured import Captured, CapturedSteps, captured, fresh_generators, tried
from avuc.training.compiled import attach, compiled, compiling
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import Diverged, Steps, check, error_text, unchanged


class StackedSteps:
    """Joint steps of CIFAR ResNets that `choice.py` finds supported; see `avuc.training.steps.Steps`."""

    def __init__(self, trainers: Sequence[ModelTrainer], data: Dataset, say: Callable[[str], None]) -> None:
        self.trainers: Sequence[ModelTrainer] = trainers
        self.data: Dataset = data
        self.say: Callable[[str], None] = say
        self.stack: Stack = Stack(trainers)
        net = net_of(trainers[0])
        assert isinstance(net, CifarResNet)
        self.net: StackedResNet = StackedResNet(net, self.stack.parts)
        shapes = self.net.input_shapes(data.images.shape[1:])
        self.drops: Drops = Drops([hooks_of(net_of(trainer)) for trainer in trainers], shapes, self.stack.mean)  # type: ignore[arg-type]
        constants = net.normalise
        scaling = (constants.mean, constants.std) if isinstance(constants, Normalise) else (None, None)
        # for channels last
        self.scaling: list[Tensor | None] = [None if value is None else value.detach().view(-1) for value in scaling]
        settings = trainers[0].settings
        self.dtype: torch.dtype = torch.bfloat16 if settings.precision == "bfloat16" else self.stack.mean.dtype
        self.fast: bool = data.device.type == "cuda"
        several = self.fast and len(trainers) > 1
        self.streams: list[torch.cuda.Stream] = [torch.cuda.Stream(data.device) for _ in trainers] if several else []
        self.graphs: dict[int, Captured] = {}
        self.phase: tuple[bool, ...] = ()
        self.failed: set[Callable[..., Any]] = set()  # pieces that cannot be compiled
        self.instead: Steps | None = None

    def prepare(self, sizes: Sequence[int]) -> None:
        """Compile and capture a step for each batch size, unless that is done."""
        if self.instead is not None:
            return self.instead.prepare(sizes)
        for trainer in self.trainers:
            trainer.model.train()
            trainer.loss.train()
        if not self.fast:
            return None
        phase = tuple(trainer.loss.warming_up for trainer in self.trainers)
        if phase != self.phase:
            self.phase, self.graphs = phase, {}  # the objectives compute something else from now on
        for rows in sorted(set(sizes), reverse=True):
            if rows in self.graphs:
                continue
            try:
                # only the last batch of an epoch is smaller; compiling for its size would cost more than it saves
                self.graphs[rows] = self._captured(rows, compile_it=rows == max(sizes))
            except Diverged:
                raise
            except Exception as error:  # compiler, kernels and driver fail in many ways; for each there is a slower way
                torch.cuda.synchronize()
                fresh_generators(self.trainers, self.data.device)
                self.say(
                    f"training: {len(self.trainers)} models cannot train stacked ({error_text(error)}); now on streams"
                )
                self.release()
                self.instead = CapturedSteps(self.trainers, self.data, self.say)
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
            for trainer in self.trainers:
                check(trainer)

    def release(self) -> None:
        """End stacking: each model gets its own tensors again."""
        self.graphs = {}
        self.stack.release()

    def _captured(self, rows: int, compile_it: bool) -> Captured:
        use = self._compiled if compile_it else _as_it_is
        for trainer in self.trainers:
            attach(trainer, "all" if compile_it else "none")
        indices = torch.arange(rows, device=self.data.device).expand(len(self.trainers), rows).contiguous()
        with compiling():
            with unchanged(self.trainers):
                tried(lambda: self.joint(indices, use), self.data.device)
            return captured(lambda: self.joint(indices, use), self.trainers, indices)

    def _compiled(self, piece: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled piece. If compiling fails, this piece alone runs eagerly."""
        if piece in self.failed:
            return piece
        faster = compiled(piece)

        def run(*args: Any) -> Any:
            try:
                return faster(*args)
            except Exception as error:  # compilers fail in many ways
                self.failed.add(piece)
                self.say(f"training: {piece.__name__} of the stacked step is not compiled ({error_text(error)})")
                return piece(*args)

        return run

    # one step

    def joint(self, indices: Tensor, use: Use) -> None:
        """Take one step of every model. `use` returns each piece as it is, or compiled."""
        stack, data, trainers = self.stack, self.data, self.trainers
        crops: dict[int, Tensor] = {}

        def draw(row: int, trainer: ModelTrainer) -> None:
            stack.draw(row)
            crops[row] = trainer.augmentation.draw(indices.shape[1], trainer.augmenting, data.device)

        self._each(draw)
        affine = stack.affine.detach()
        given = trainers[0].augmentation, data.images, indices, torch.cat([crops[row] for row in range(len(trainers))])
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
        limit = trainers[0].settings.clip_norm
        if limit:
            gradients = use(clipped)(gradients, norms, limit)

        def count(row: int, trainer: ModelTrainer) -> None:
            trainer.meters.add(tape.logits[row], labels[row], terms[row], norms[row])

        self._fork(count)
        stack.update(gradients, tape.moments)
        self._averages()
        self._join()

    def _objectives(self, logits: Tensor, labels: Tensor, kl: Tensor) -> tuple[list[Terms], list[Tensor], list[Tensor]]:
        """Return each model's loss terms and their gradients with respect to the model's logits and KL."""
        terms: list[Any] = [None] * len(self.trainers)
        in_logits, in_kl = list(terms), list(terms)

        def compute(row: int, trainer: ModelTrainer) -> None:
            own, divergence = logits[row].requires_grad_(), kl[row].requires_grad_()
            bayesian = isinstance(trainer.model, BayesianModule)
            try:
                own_terms = trainer.terms(own, labels[row], divergence * trainer.kl_share if bayesian else 0.0)
            except NonFiniteError as error:  # the AvUC loss checks its logits where that is possible
                raise Diverged(trainer, int(trainer.meters.sums[-1]), "logits") from error
            gradients = torch.autograd.grad(own_terms.total, [own, divergence], allow_unused=True)
            terms[row] = Terms(*(term.detach() for term in own_terms))
            in_logits[row], in_kl[row] = (
                torch.zeros_like(like) if gradient is None else gradient
                for gradient, like in zip(gradients, (own, divergence), strict=True)
            )

        self._each(compute)
        return terms, in_logits, in_kl

    def _each(self, function: Callable[[int, ModelTrainer], None]) -> None:
        """Call a function for every model, each on its own stream if there are streams."""
        self._fork(function)
        self._join()

    def _fork(self, function: Callable[[int, ModelTrainer], None]) -> None:
        if not self.streams:
            for row, trainer in enumerate(self.trainers):
                function(row, trainer)
            return
        main = torch.cuda.current_stream()
        for row, (trainer, stream) in enumerate(zip(self.trainers, self.streams, strict=True)):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                function(row, trainer)

    def _join(self) -> None:
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)

    @torch.no_grad()
    def _averages(self) -> None:
        decay = self.trainers[0].settings.ema_decay
        if decay:
            averages = [average for trainer in self.trainers for average in trainer.average]
            torch._foreach_lerp_(
                averages, [now for trainer in self.trainers for now in trainer.averaged_tensors()], 1 - decay
            )


def norms_of(gradients: list[Tensor]) -> Tensor:
    """Return the norm of each model's whole gradient."""
    squares = [gradient.square().flatten(1).sum(1) for gradient in gradients]
    return torch.stack(squares).sum(0).sqrt()


def clipped(gradients: list[Tensor], norms: Tensor, limit: float) -> list[Tensor]:
    """Return each model's gradient, clipped to the norm `limit` as `nn.utils.clip_grads_with_norm_` does."""
    factors = (limit / (norms + 1e-6)).clamp(max=1.0)
    return [gradient * factors.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
