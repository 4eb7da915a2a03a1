"""Networks that are no CIFAR ResNets: a training step and a draw of a posterior, beside the deterministic network.

    python benchmarks/bench_any_net.py [--only resnet50] [--profile] [--device cpu] [--json OUT]

ResNet-50 and ViT-B/16 (torchvision), EfficientNet-Lite0 (efficientnet-lite-pytorch) at batch 64, 224 × 224; an encoder
of the size of BERT-base (nn.TransformerEncoder) at batch 64, 128 tokens. All in bfloat16 under autocast, compiled.

step: cross-entropy + KL/50,000 + 3·AvUC of to_bayesian(net, prior="moped") and Adam, over the deterministic network's
step with the same loss without KL and the same Adam. Goal: at most 1.2.

draw: one draw of a Predictor, from the noise to the running sums of the predictions, over one forward pass of the
deterministic network, compiled by torch.compile. memory=0: every draw is new. Goal: at most 1.1. "graph" is the same
pass with weights in bfloat16 and a CUDA graph (mode="reduce-overhead"), the fastest deterministic pass of torch.

bayesian-torch, where it is installed and can convert the network: its eager step and draw, with the same autocast.

Each network and part has a process of its own: those of one part compile together, and then measure one at a time.
About 75 s if torch.compile finds its cache of an earlier run, else 2 to 3 minutes: each network is compiled five times.
--device cpu runs small networks of the same kinds without the compiler, only to show that everything runs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fcntl
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax
from torch.utils.data import DataLoader, Dataset

from avuc.bayes import to_bayesian
from avuc.core.atomic import write_text
from avuc.losses import avuc_loss
from avuc.prediction import Predictor

NUM_TRAIN, BETA, THRESHOLD, CLASSES = 50_000, 3.0, 1.0, 1000
STEP_GOAL, DRAW_GOAL = 1.2, 1.1
PARTS = ("step", "draw")
NETS = ("resnet50", "vit_b_16", "efficientnet_lite0", "bert_base")
# as many images as ImageNet's validation set, 32 draws of each: what decides whether a Predictor compiles
LOADED_ROWS, LOADED_DRAWS = 50_000, 32
Step = Callable[[], object]


class Encoder(nn.Module):
    """A text classifier with the sizes of BERT-base."""

    def __init__(self, width: int, depth: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)
        self.register_buffer("numbers", torch.arange(tokens))

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.norm(self.words(ids) + self.places(self.numbers[: ids.shape[1]]))
        logits: Tensor = self.head(self.layers(hidden)[:, 0])
        return logits


class Blocks(nn.Module):
    """Convolutions with batch normalisation and skip connections: a small ResNet, or with `groups` an EfficientNet."""

    def __init__(self, width: int, depth: int, depthwise: bool) -> None:
        super().__init__()
        groups = width if depthwise else 1

        def block() -> nn.Sequential:
            middle = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
            return nn.Sequential(middle, nn.BatchNorm2d(width), nn.ReLU6(), nn.Conv2d(width, width, 1))

        self.stem = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def made(name: str, small: bool) -> tuple[nn.Module, Tensor]:
    """Return a network with random weights and a batch for it; ImportError if its package is missing."""
    if name == "bert_base":
        sizes = (32, 1, 2, 16, 50) if small else (768, 12, 12, 128, 30_522)
        return Encoder(*sizes), torch.randint(sizes[-1], (2, 16) if small else (64, 128))
    images = torch.rand(*((2, 3, 32, 32) if small else (64, 3, 224, 224)))
    if name != "vit_b_16":
        images = images.to(memory_format=torch.channels_last)
    if small and name != "vit_b_16":
        return Blocks(16, 2, name.startswith("efficient")), images
    if name == "efficientnet_lite0":
        from efficientnet_lite_pytorch import EfficientNet

        net: nn.Module = EfficientNet.from_name("efficientnet-lite0")
        return net.to(memory_format=torch.channels_last), images
    if small and importlib.util.find_spec("torchvision") is None:
        return Blocks(16, 2, False), images
    import torchvision

    if name == "resnet50":
        return torchvision.models.resnet50().to(memory_format=torch.channels_last), images
    if small:
        return torchvision.models.VisionTransformer(32, 8, 1, 2, 32, 64), images
    net = torchvision.models.vit_b_16()
    nn.init.trunc_normal_(net.heads.head.weight, std=0.02)  # it starts at 0, where MOPED gives no spread
    return net, images


def autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    return torch.autocast(device.type, dtype=torch.bfloat16)


def adam(module: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), 1e-5, fused=device.type == "cuda")


def objective(logits: Tensor, y: Tensor) -> Tensor:
    logits = logits.float()
    return cross_entropy(logits, y) + BETA * avuc_loss(logits, y, THRESHOLD)


class Same(Dataset[Tensor]):
    """The same batch again and again."""

    def __init__(self, batch: Tensor, count: int) -> None:
        self.batch, self.count = batch, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return self.batch


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
            return torch.compile(function, backend="eager", dynamic=False)
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


def child(name: str, part: str, options: argparse.Namespace) -> None:
    """Compile, wait until the others have compiled, then measure alone and write the result."""
    folder, began = options.rendezvous, time.perf_counter()
    target = folder / f"{name}.{part}.json"
    ready = folder / f"{name}.{part}.ready"
    try:
        net = Net(name, torch.device(options.device))
        if part == "step":
            os.nice(10)  # the other part compiles faster and measures first
        net.prepare(part)
        ready.touch()
        others = f"*.{part}.ready"
        while len(list(folder.glob(others))) < len(options.only) and time.perf_counter() - began < options.patience:
            time.sleep(0.05)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = net.measure(part)
            write_text(target, json.dumps(result))
            if part in options.profile:
                try:
                    write_text(folder / f"{name}.{part}.txt", tables(net, part))
                except Exception as error:  # the times are there
                    write_text(target, json.dumps(result | {"profile": reason(error)}))
    except ImportError as error:
        write_text(target, json.dumps({"left_out": str(error)}))
    except Exception as error:
        traceback.print_exc()
        write_text(target, json.dumps({"error": f"{part}: {reason(error)}"}))
    finally:
        ready.touch()


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def report(results: list[dict[str, Any]]) -> bool:
    print(
        f"{'network':19} {'step ms':>8} {'over det.':>9} {'draw ms':>8} {'over det.':>9} {'over graph':>10}  peer/avuc"
    )
    reached = True
    for found in results:
        line = f"{found['net']:19}"
        if "left_out" in found:
            print(f"{line} left out: {found['left_out']}")
            continue
        nan = float("nan")
        step, draw = found.get("step_ms", {}), found.get("draw_ms", {})
        peers = [f"{part['peer'] / part['avuc']:.1f}" if "peer" in part else "cannot" for part in (step, draw)]
        ratios = [found.get(key, nan) for key in ("step_ratio", "draw_ratio", "draw_over_graph")]
        reached = reached and ratios[0] <= STEP_GOAL and ratios[1] <= DRAW_GOAL
        print(
            f"{line} {step.get('avuc', nan):8.2f} {ratios[0]:9.2f} {draw.get('avuc', nan):8.3f} {ratios[1]:9.2f} "
            f"{ratios[2]:10.2f}  step {peers[0]}, draw {peers[1]}"
        )
    for found in results:
        for part in ("step", "draw"):
            if f"{part}_first_s" in found:
                times = ", ".join(f"{key} {value:.0f} s" for key, value in found[f"{part}_first_s"].items())
                print(f"{found['net']}, first calls of {part}: {times}")
        others = [f"{key} {found[key]}" for key in ("how", "max_difference", "pieces_ms", "error") if key in found]
        print(f"{found['net']}: {'; '.join(others)}")
    return reached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--only", choices=NETS, nargs="+", default=list(NETS), help="these networks alone")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS), help="one of the two parts alone")
    parser.add_argument(
        "--profile", nargs="*", choices=PARTS, help="kernel tables into $OUT (default: the working folder); of one part"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--patience", type=float, default=240, help="seconds to wait for others that still compile")
    parser.add_argument("--limit", type=float, default=400, help="seconds after which what is missing is left out")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.profile = () if options.profile is None else options.profile or PARTS
    if options.child:
        child(*options.child, options)
        return 0
    start = time.perf_counter()
    out = Path(os.environ.get("OUT", "."))
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(name, part) for name in options.only for part in options.part]
        hidden = ["--rendezvous", folder, "--child"]
        threads = str(max(1, (os.cpu_count() or 1) // len(pairs)))
        environment = os.environ | {"OMP_NUM_THREADS": threads}
        processes = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], *hidden, *pair], env=environment)
            for pair in pairs
        ]
        for process in processes:
            try:
                process.wait(max(0.1, options.limit - (time.perf_counter() - start)))
            except subprocess.TimeoutExpired:
                process.kill()
        results = []
        for name in options.only:
            found: dict[str, Any] = {"net": name}
            for part in options.part:
                path = Path(folder) / f"{name}.{part}.json"
                one = json.loads(path.read_text()) if path.exists() else {"error": f"{part}: no result in time"}
                if "error" in one and "error" in found:
                    one["error"] = f"{found['error']}; {one['error']}"
                found |= one
            results.append(found)
            texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob(f"{name}.*.txt"))]
            if texts:
                write_text(out / f"kernels_{name}.txt", "".join(texts))
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, small networks: only a trial"
    print(f"{machine}, torch {torch.__version__}, {time.perf_counter() - start:.0f} s in all")
    reached = report(results)
    if options.json:
        write_text(options.json, json.dumps(results, indent=1) + "\n")
    return 0 if reached or options.device == "cpu" else 1


if __name__ == "__main__":
    sys.exit(main())
