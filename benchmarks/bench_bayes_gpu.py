"""A variational ResNet-20 on a GPU, compared with bayesian-torch 0.5.0 and with the deterministic network.

    pip install --no-deps bayesian-torch==0.5.0
    python benchmarks/bench_bayes_gpu.py [--device cuda] [--only train|predict] [--quick] [--json OUT]

Training: SVI-AvUC, cross-entropy + KL/50,000 + 3·AvUC, Adam, batch 107. Ours and the deterministic network (the same
loss without KL): bfloat16 autocast, compiled, the whole step captured in a CUDA graph. The peer: its eager loop, in
float32 and under the same autocast; the faster of the two counts.

Prediction: 128 draws over 10,000 images, from bytes to mean probabilities and entropies. "predict" makes its draws in
each call, "Predictor" once for all calls; both in bfloat16, by the kernel for whole networks. "compiled" is predict by
torch.compile instead.

Everything takes turns within one run; medians of the rounds. `--device cpu --quick` only shows that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from avuc.bayes import to_bayesian
from avuc.core.atomic import write_text
from avuc.losses import avuc_loss
from avuc.nets import resnet20
from avuc.prediction import predict
from avuc.prediction.predictor import Predictor
from avuc.predictions import Predictions

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
except ImportError:
    sys.exit("this benchmark measures against bayesian-torch: pip install --no-deps bayesian-torch==0.5.0")

NUM_TRAIN, BETA, THRESHOLD = 50_000, 3.0, 1.0
Step = Callable[[], object]


class Data:
    """Images and labels on the device; a batch is one gather with indices drawn on the device."""

    def __init__(self, rows: int, batch: int, device: torch.device) -> None:
        self.images = torch.rand(rows, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 10, (rows,), device=device)
        self.rows, self.batch, self.device = rows, batch, device

    def draw(self) -> tuple[Tensor, Tensor]:
        index = torch.randint(0, self.rows, (self.batch,), device=self.device)
        return self.images[index].contiguous(memory_format=torch.channels_last), self.labels[index]


def autocast(device: torch.device, enabled: bool = True) -> contextlib.AbstractContextManager[object]:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def adam(module: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    cuda = device.type == "cuda"
    return torch.optim.Adam(module.parameters(), 1e-3, capturable=cuda, fused=cuda)


def objective(logits: Tensor, y: Tensor) -> Tensor:
    logits = logits.float()
    return cross_entropy(logits, y) + BETA * avuc_loss(logits, y, THRESHOLD, variant="paper")


def captured(step: Step, device: torch.device) -> Step:
    """The step as one CUDA graph, after the warm-up that compiles it; on a CPU, the step itself."""
    if device.type != "cuda":
        step()
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()

    # the graph points into the model, the optimiser and the compiled kernels: they must live as long as it does
    replay.keeps = step  # type: ignore[attr-defined]
    return replay


def our_step(net: nn.Module, data: Data, mode: str | None) -> Step:
    bayesian = to_bayesian(net)
    optimiser = adam(bayesian, data.device)

    def loss_of(noise: Tensor, x: Tensor, y: Tensor) -> Tensor:
        with autocast(data.device):
            logits = bayesian.run(bayesian.weights(noise), x)
        return objective(logits, y) + bayesian.kl() / NUM_TRAIN

    fast = torch.compile(loss_of, fullgraph=True, mode=mode) if mode else loss_of

    def step() -> None:
        optimiser.zero_grad()  # to None: the backward pass then writes gradients instead of adding to zeros
        x, y = data.draw()
        # drawn outside the compiled part: torch's own generator is what a CUDA graph knows how to advance
        fast(bayesian.noise(), x, y).backward()
        optimiser.step()

    return captured(step, data.device)


def deterministic_step(net: nn.Module, data: Data, mode: str | None) -> Step:
    net = copy.deepcopy(net)
    optimiser = adam(net, data.device)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with autocast(data.device):
            logits = net(x)
        return objective(logits, y)

    fast = torch.compile(loss_of, fullgraph=True, mode=mode) if mode else loss_of

    def step() -> None:
        optimiser.zero_grad()
        fast(*data.draw()).backward()
        optimiser.step()

    return captured(step, data.device)


def convert_peer(net: nn.Module) -> nn.Module:
    net = copy.deepcopy(net)
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(net, {**settings, "type": "Reparameterization", "moped_enable": True, "moped_delta": 0.5})
    return net


def peer_step(net: nn.Module, data: Data, mixed: bool) -> Step:
    bayesian = convert_peer(net).to(data.device)
    optimiser = adam(bayesian, data.device)

    def step() -> None:
        optimiser.zero_grad()
        x, y = data.draw()
        with autocast(data.device, mixed):
            logits = bayesian(x)
        (objective(logits, y) + get_kl_loss(bayesian) / NUM_TRAIN).backward()
        optimiser.step()

    step()
    return step


def our_predictions(net: nn.Module, images: Tensor, labels: Tensor, draws: int, mode: str | None) -> dict[str, Step]:
    bayesian = to_bayesian(net).eval()
    as_bytes = (images * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    dtype = torch.bfloat16 if images.is_cuda else None
    kept = Predictor(bayesian, samples=draws, dtype=dtype)

    def anew(compiled: bool | None) -> Predictions:
        return predict(bayesian, as_bytes, labels, samples=draws, dtype=dtype, compiled=compiled, progress=False)

    steps: dict[str, Step] = {"Predictor": lambda: kept(as_bytes, labels), "predict": lambda: anew(None)}
    if mode:
        steps["compiled"] = lambda: anew(True)
    for step in steps.values():
        step()
    return steps


def peer_prediction(net: nn.Module, images: Tensor, draws: int, mixed: bool) -> Step:
    bayesian = convert_peer(net).to(images.device).eval()

    @torch.no_grad()
    def run() -> Tensor:
        total = torch.zeros(len(images), 10, device=images.device)
        for _ in range(draws):
            for start in range(0, len(images), 1000):
                with autocast(images.device, mixed):
                    logits = bayesian(images[start : start + 1000])
                total[start : start + 1000] += softmax(logits.float(), -1)
        return total / draws

    run()
    return run


def milliseconds(steps: dict[str, Step], times: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Median over rounds, in which the contestants take turns, of the mean time of `times` calls."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seen: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            wait()
            start = time.perf_counter()
            for _ in range(times):
                step()
            wait()
            seen[name].append(1e3 * (time.perf_counter() - start) / times)
    return {name: statistics.median(values) for name, values in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=("train", "predict"), help="one of the two parts")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing compiled")
    parser.add_argument("--mode", default="default", help="of torch.compile; or max-autotune-no-cudagraphs")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    device, quick = torch.device(options.device), options.quick
    mode = None if quick else options.mode
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    batch, rows, draws, times, rounds = (8, 16, 2, 1, 1) if quick else (107, 10_000, 128, 100, 7)
    data = Data(rows, batch, device)
    net = resnet20().to(device).to(memory_format=torch.channels_last)

    training: dict[str, float] = {}
    per_draw: dict[str, float] = {}
    claims: dict[str, float] = {}
    if options.only != "predict":
        steps = {
            "avuc": our_step(net, data, mode),
            "deterministic": deterministic_step(net, data, mode),
            "peer float32": peer_step(net, data, mixed=False),
            "peer bfloat16": peer_step(net, data, mixed=True),
        }
        training = milliseconds(steps, times, rounds, device)
        peer = min(training["peer float32"], training["peer bfloat16"])
        claims["step, peer / avuc (at least 10)"] = peer / training["avuc"]
        claims["step, avuc / deterministic (at most 1.2)"] = training["avuc"] / training["deterministic"]
    if options.only != "train":
        few = draws if quick else 16  # the peer's time is linear in the draws
        counts: dict[str, int] = {}
        predictions = our_predictions(net, data.images, data.labels, draws, mode)
        counts |= dict.fromkeys(predictions, draws)
        for mixed in (False, True):
            predictions[f"peer {'bfloat16' if mixed else 'float32'}"] = peer_prediction(net, data.images, few, mixed)
        found = milliseconds(predictions, 1, 1 if quick else 5, device)
        per_draw = {name: value / counts.get(name, few) for name, value in found.items()}
        peer = min(per_draw["peer float32"], per_draw["peer bfloat16"])
        claims["draw of all images, peer / predict (at least 4)"] = peer / per_draw["predict"]
        claims["draw of all images, predict, ms (at most 6)"] = per_draw["predict"]
        claims["draw of all images, peer / Predictor"] = peer / per_draw["Predictor"]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, batch {batch}, {rows} images, {draws} draws")
    for title, values in (("training step, ms", training), ("one draw of all images, ms", per_draw), ("", claims)):
        print(title)
        for key, value in values.items():
            print(f"    {key:48}{value:10.3f}")
    if options.json:
        result = {"device": name, "torch": torch.__version__, "training_ms": training, "draw_ms": per_draw}
        write_text(options.json, json.dumps({**result, "claims": claims}, indent=2) + "\n")


if __name__ == "__main__":
    main()
