"""What bench_any_net.py measures of one network: training steps, deterministic passes and draws."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from any_nets import CLASSES, Same, made
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax
from torch.utils.data import DataLoader

from avuc.bayes import to_bayesian
from avuc.losses import avuc_loss
from avuc.prediction import Predictor

PARTS = ("step", "draw")
NUM_TRAIN, BETA, THRESHOLD = 50_000, 3.0, 1.0
# as many images as ImageNet's validation set, 32 draws of each: what decides whether a Predictor compiles
LOADED_ROWS, LOADED_DRAWS = 50_000, 32
Step = Callable[[], object]


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    return torch.autocast(device.type, dtype=torch.bfloat16)


def adam(module: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), 1e-5, fused=device.type == "cuda")


def objective(logits: Tensor, y: Tensor) -> Tensor:
    logits = logits.float()
    return cross_entropy(logits, y) + BETA * avuc_loss(logits, y, THRESHOLD, variant="paper")


class Net:
    """One network, and all that is measured of it."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device, self.small = name, device, device.type == "cpu"
        torch.manual_seed(0)
        net, x = made(name, self.small)
        self.net, self.x = net.to(device), x.to(device)
        self.y = torch.randint(CLASSES, (len(x),), device=device)
        with torch.no_grad():  # statistics of real activations, so that the logits are of a real size
            for layer in self.net.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.momentum = 0.5
            self.net.train()
            for _ in range(5):
                self.net(self.x)
        self.compile_seconds: dict[str, float] = {}
        self.skipped: dict[str, str] = {}

    def compiled(self, function: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
        if self.small:
            return function
        return torch.compile(function, mode=mode, dynamic=False)

    def prepare(self, part: str) -> None:
        """Compile everything, by running it twice."""
        if part == "step":
            makers = {"deterministic": self.deterministic_step, "avuc": self.our_step, "peer": self.peer_step}
        else:
            makers = {"avuc": self.our_draws, "deterministic": self.deterministic_pass, "graph": self.graph_pass}
            makers["peer"] = self.peer_pass
        self.contestants = self.tried(makers)

    def tried(self, makers: dict[str, Callable[[], Step]]) -> dict[str, Step]:
        found = {}
        for name, make in makers.items():
            start = time.perf_counter()
            try:
                step = make()
                for _ in range(2):
                    step()
                self.wait()
            except Exception as error:
                if name != "peer":
                    raise
                self.skipped[name] = reason(error)
                continue
            found[name] = step
            self.compile_seconds[name] = round(time.perf_counter() - start, 1)
        return found

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # training

    def deterministic_step(self) -> Step:
        net = copy.deepcopy(self.net).train()
        optimizer = adam(net, self.device)

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            with autocast(self.device):
                logits = net(x)
            return objective(logits, y)

        return self.stepping(self.compiled(loss_of), optimizer)

    def our_step(self) -> Step:
        bayesian = to_bayesian(self.net, prior="moped").train()
        optimizer = adam(bayesian, self.device)

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            with autocast(self.device):
                logits = bayesian(x)
            return objective(logits, y) + bayesian.kl() / NUM_TRAIN

        return self.stepping(self.compiled(loss_of), optimizer)

    def peer_step(self) -> Step:
        net = self.peer().train()
        from bayesian_torch.models.dnn_to_bnn import get_kl_loss

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            with autocast(self.device):
                logits = net(x)
            return objective(logits, y) + get_kl_loss(net) / NUM_TRAIN

        return self.stepping(loss_of, adam(net, self.device))

    def stepping(self, loss_of: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer) -> Step:
        def step() -> None:
            optimizer.zero_grad()
            loss_of(self.x, self.y).backward()
            optimizer.step()

        return step

    def peer(self) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn
        net = copy.deepcopy(self.net)
        settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
        dnn_to_bnn(net, {**settings, "type": "Reparameterization", "moped_enable": True, "moped_delta": 0.5})
        return net.to(self.device)

    # prediction

    def passing(self, run: Callable[[Tensor], Tensor], x: Tensor, low: bool = True) -> Step:
        def step() -> Tensor:
            with torch.no_grad(), autocast(self.device) if low else contextlib.nullcontext():
                return run(x)

        return step

    def deterministic_pass(self) -> Step:
        return self.passing(self.compiled(copy.deepcopy(self.net).eval()), self.x)

    def graph_pass(self) -> Step:
        net = copy.deepcopy(self.net).eval().to(torch.bfloat16)
        x = self.x.to(torch.bfloat16) if self.x.is_floating_point() else self.x
        return self.passing(self.compiled(net, "reduce-overhead"), x, low=False)

    def peer_pass(self) -> Step:
        net = self.peer().eval()
        return self.passing(lambda x: softmax(net(x).float(), -1), self.x)

    def our_draws(self) -> Step:
        """A Predictor that has compiled, because it was given a large loader; then it predicts one batch."""
        bayesian = to_bayesian(self.net, prior="moped").eval()
        draws = 4 if self.small else 100
        self.draws_per_call = draws
        predictor = Predictor(bayesian, samples=draws, dtype=torch.bfloat16, memory=0)
        batch, x = len(self.x), self.x

        count = LOADED_ROWS * LOADED_DRAWS // (batch * draws)
        parts = predictor.stream(DataLoader(Same(x, count), batch_size=None))
        next(parts)
        parts.close()
        self.predictor = predictor
        return lambda: predictor(x)

    # times

    def milliseconds(self, steps: dict[str, Step], seconds: float) -> dict[str, float]:
        """Median over rounds, in which the contestants take turns, of the mean time of a call."""
        seen: dict[str, list[float]] = {name: [] for name in steps}
        rounds = 1 if self.small else 5
        times = {}
        for name, step in steps.items():
            step()
            self.wait()
            start = time.perf_counter()
            step()
            self.wait()
            times[name] = max(1, min(200, int(seconds / len(steps) / rounds / (time.perf_counter() - start))))
        for _ in range(rounds):
            for name, step in steps.items():
                self.wait()
                start = time.perf_counter()
                for _ in range(times[name]):
                    step()
                self.wait()
                seen[name].append(1e3 * (time.perf_counter() - start) / times[name])
        return {name: statistics.median(values) for name, values in seen.items()}

    def measure(self, part: str) -> dict[str, Any]:
        found = self.milliseconds(self.contestants, 2.0 if part == "step" else 3.0)
        if part == "draw":
            found["avuc"] /= self.draws_per_call
        ratios = {f"{part}_ratio": round(found["avuc"] / found["deterministic"], 3)}
        if part == "draw":
            ratios["draw_over_graph"] = round(found["avuc"] / found["graph"], 3)
        return {
            f"{part}_ms": {key: round(value, 3) for key, value in found.items()},
            **ratios,
            f"{part}_first_s": self.compile_seconds,
            **({"peer_cannot": self.skipped["peer"]} if self.skipped else {}),
            **(self.details() if part == "draw" else {}),
        }

    def details(self) -> dict[str, Any]:
        return {"how": how(self.predictor), "max_difference": self.difference(), "pieces_ms": pieces(self)}

    def difference(self) -> float:
        """The largest difference of logits to the same draws without compiling, over their standard deviation."""
        few = 4
        eager = Predictor(self.predictor.posterior, samples=few, dtype=torch.bfloat16, compiled=False, memory=0)
        right, found = eager.logits(self.x, few), self.predictor.logits(self.x, few)
        return float((right - found).abs().max() / right.std())


def how(predictor: Predictor) -> str:
    """How the draws ran: compiled or not, in a graph or not, drawn by a kernel or not."""
    (backend,) = predictor._runner.generic.values()
    static = backend._static
    if static is None:
        return "not compiled" if not backend._compiled else "compiled"
    kernel = "kernel" if static._draws._kernel is not None else "torch"
    return f"compiled, {static.uncaptured or f'{len(static._graphs)} graphs'}, noise by {kernel}"


def pieces(net: Net) -> dict[str, float]:
    """The time of each piece of a draw on its own."""
    (backend,) = net.predictor._runner.generic.values()
    static = backend._static
    if static is None or not static._graphs:
        return {}
    draws, buffer = static._draws, static._buffers[0]
    (_, captured) = next(iter(static._graphs.values()))
    noise = torch.empty_like(draws.mean)
    kernel, draws._kernel = draws._kernel, None
    plainly = net.milliseconds({"fill, torch": lambda: draws.fill(buffer, 3)}, 0.2)
    draws._kernel = kernel
    found = net.milliseconds(
        {
            "graph": captured[0].graph.replay,
            "fill": lambda: draws.fill(buffer, 3),
            "randn": lambda: noise.normal_(),
        },
        0.5,
    )
    return {key: round(value, 4) for key, value in (found | plainly).items()}


def tables(net: Net, part: str) -> str:
    """Return the kernels of each contestant, by their time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    text = []
    for name, step in net.contestants.items():
        if name == "peer":
            continue
        many = part == "draw" and name == "avuc"
        step()
        net.wait()
        with profiled(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(1 if many else 5):
                step()
            net.wait()
        times = net.draws_per_call if many else 5
        events = [event for event in seen.key_averages() if event.self_device_time_total > 0]
        events.sort(key=lambda event: -event.self_device_time_total)
        total = sum(event.self_device_time_total for event in events) / 1e3 / times
        text.append(f"\n== {net.name}, {part}, {name}: {total:.3f} ms of kernels each; ms, launches, kernel")
        for event in events[:30]:
            spent = event.self_device_time_total / 1e3 / times
            text.append(f"{spent:9.4f} {event.count / times:8.2f}  {event.key[:120]}")
    return "\n".join(text) + "\n"
