"""The weights of a sample in fixed memory, drawn in one pass in the form in which the network uses them.

    w' = mean + spread · z

Folding batch normalisation is affine in each weight, so it is applied once to μ and σ = softplus(ρ), not to every
sample. Weights that autocast would cast in each forward pass are written in its type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.functional import softplus
from torch.overrides import TorchFunctionMode

from avuc.bayes import BayesianModule
from avuc.core.accelerators import weight_draw_kernel
from avuc.nets.runner import Runner, Weights
from avuc.posterior import sample_seed
from avuc.prediction.arguments import Arguments

# multiple of this many bytes: compiled kernels copy an input that starts at another address
ALIGNMENT = 16
# functions for which autocast casts all tensors
CAST: set[Callable[..., Any]] = {
    *(functional.linear, functional.bilinear, functional.conv1d, functional.conv2d, functional.conv3d),
    *(functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
    *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, Tensor.matmul, Tensor.__matmul__),
}
# arguments of F.multi_head_attention_forward that it passes to F.linear, by position and by name
PROJECTIONS: set[int | str] = {5, 6, 11, 12, "q_proj_weight", "k_proj_weight", "v_proj_weight"}
# layers that run as one operation, which autocast on a CPU does not change
NATIVE = (nn.TransformerEncoderLayer, nn.MultiheadAttention)


class Buffer(NamedTuple):
    """Memory for one sample.

    Attributes:
        parts: (number of its first weight in the flat vector, memory) of each part.
        weights: all tensors of the network by name; those that are sampled are in this memory.
    """

    parts: list[tuple[int, Tensor]]
    weights: Weights


class WeightBuffers:
    """Draws samples of a Bayesian module's weights into buffers.

    Args:
        bayesian: the posterior.
        runner: its network.
        dtype: type of autocast; None: weights keep their type.
        seed: of the samples.
        arguments: arguments of the network, which runs once to find out which weights autocast casts.
    """

    @torch.no_grad()
    def __init__(
        self, bayesian: BayesianModule, runner: Runner, dtype: torch.dtype | None, seed: int, arguments: Arguments
    ) -> None:
        self.bayesian: BayesianModule = bayesian
        self.seed: int = seed
        layout, self._slots = bayesian.layout, bayesian.layout.slots
        self._names = [runner.first_name(slot.name) for slot in self._slots]

        def folded(flat: Tensor) -> Tensor:
            weights = runner.weights(layout.by_all_names(layout.views(flat)))
            return torch.cat([slot.flatten(weights[name]) for slot, name in zip(self._slots, self._names, strict=True)])

        spread = softplus(bayesian.rho.detach())
        self.mean: Tensor = bayesian.mu.detach()
        self.spread: Tensor = spread
        if runner.folds:
            self.mean, self.spread = folded(self.mean), folded(spread) - folded(torch.zeros_like(spread))
        # without batch normalisation `mean` is μ itself, whose changes make a new object of this class
        low = set() if dtype is None else cast_names(runner, arguments, dtype)
        self.dtypes: list[torch.dtype] = [dtype if dtype and name in low else spread.dtype for name in self._names]
        self.fixed: Weights = {  # weights that are not sampled
            name: value.to(dtype) if name in low else value
            for name, value in runner.base.items()
            if name not in self._names
        }
        # if the kernel draws the noise, the noise needs no memory and no separate pass
        self._kernel = weight_draw_kernel() if bayesian.posterior == "mean_field" and self.mean.is_cuda else None
        self._kernel_checked = False

    def new_buffer(self) -> Buffer:
        """Return memory for a sample; consecutive weights of the same type form one part."""
        runs: list[tuple[int, torch.dtype, list[int]]] = []  # start, type, numbers of the slots
        start = end = 0
        sizes = self.bayesian.layout.sizes
        for number, (size, dtype) in enumerate(zip(sizes, self.dtypes, strict=True)):
            aligned = (end - start) * dtype.itemsize % ALIGNMENT == 0
            if not runs or runs[-1][1] != dtype or not aligned:
                start = end
                runs.append((start, dtype, []))
            runs[-1][2].append(number)
            end += size
        parts, weights = [], dict(self.fixed)
        for start, dtype, numbers in runs:
            lengths = [sizes[number] for number in numbers]
            memory = torch.empty(sum(lengths), dtype=dtype, device=self.mean.device)
            parts.append((start, memory))
            for number, segment in zip(numbers, memory.split(lengths), strict=True):
                weights[self._names[number]] = self._slots[number].view(segment)
        return Buffer(parts, weights)

    @torch.no_grad()
    def fill(self, buffer: Buffer, index: int) -> None:
        """Draw sample `index` into a buffer, on the current stream."""
        seed = sample_seed(self.seed, index, self.mean.device)
        if self._kernel is not None and not self._kernel.usable(self.mean, buffer.parts):
            self._kernel = None
        if self._kernel is not None and self._kernel_checked:
            self._kernel.draw_weights(self.mean, self.spread, seed, buffer.parts)
            return
        noise = self.bayesian.noise(torch.Generator(self.mean.device).manual_seed(seed))
        torch.addcmul(self.mean, self.spread, noise, out=noise)
        for start, memory in buffer.parts:
            memory.copy_(noise[start : start + memory.numel()])
        if self._kernel is not None:
            self._check_kernel(buffer, seed)

    def _check_kernel(self, right: Buffer, seed: int) -> None:
        """Compare the kernel with torch once: other versions of torch may order their random numbers differently."""
        assert self._kernel is not None
        self._kernel_checked, drawn = True, self.new_buffer()
        try:
            self._kernel.draw_weights(self.mean, self.spread, seed, drawn.parts)
        except RuntimeError:  # it cannot be launched
            self._kernel = None
            return
        pairs = zip(right.parts, drawn.parts, strict=True)
        if not all(torch.allclose(expected, actual, rtol=2**-7, atol=1e-5) for (_, expected), (_, actual) in pairs):
            self._kernel = None


def affine_in_weights(bayesian: BayesianModule, runner: Runner) -> bool:
    """Return whether folding is affine in each sampled weight: no parameter of a folded normalisation is sampled."""
    names = (name for slot in bayesian.layout.slots for name in slot.places)
    return not runner.folded_norms & {name.rpartition(".")[0] for name in names}


def cast_names(runner: Runner, arguments: Arguments, dtype: torch.dtype) -> set[str]:
    """Return the weights that autocast casts wherever they are used in a call, by their names in `runner.base`."""
    net, values = runner.module, runner.base
    native = set()
    if not any(value.is_cuda for value in values.values()):
        layers = [layer for layer in net.modules() if isinstance(layer, NATIVE)]
        native = {id(layer) for outer in layers for layer in outer.modules()}
    owners = dict(net.named_modules())
    device = next(iter(values.values())).device.type
    # autocast leaves float64 as it is
    names = {id(value): name for name, value in values.items() if value.is_floating_point() and value.itemsize < 8}
    uses = _Uses(names, device, dtype)
    try:
        with torch.autocast(device, dtype), uses:
            functional_call(net, values, arguments.args, arguments.kwargs)
    except Exception:  # some networks cannot be observed; the network's own errors come again when it runs
        return set()
    return {name for name in uses.cast - uses.other if id(owners[name.rpartition(".")[0]]) not in native}


class _Uses(TorchFunctionMode):
    """Records which weights are used by functions that autocast casts for, and which by other functions."""

    def __init__(self, names: dict[int, str], device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.device, self.dtype = device, dtype
        self.names, self.cast, self.other = names, set[str](), set[str]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") != "__get__":  # reading an attribute, such as the shape
            # a network may switch autocast off for some of its layers
            active = torch.is_autocast_enabled(self.device) and torch.get_autocast_dtype(self.device) == self.dtype
            for position, value in (*enumerate(args), *kwargs.items()):
                attention = function is functional.multi_head_attention_forward and position in PROJECTIONS
                uses = self.cast if active and (function in CAST or attention) else self.other
                values = value if isinstance(value, tuple | list) else (value,)
                uses.update(self.names[id(part)] for part in values if id(part) in self.names)
        return function(*args, **kwargs)


def copy_parts(source: Iterable[Tensor], target: Buffer) -> None:
    """Copy a sample that was kept into a buffer."""
    torch._foreach_copy_([memory for _, memory in target.parts], list(source))
