"""Training speed: one model, eight and sixteen at once, and bayesian-torch's example loop, on one device.

    python benchmarks/bench_train_gpu.py [--device cuda] [--data DIR] [--quick] [--epochs N]
        [--only step joint stacked fit peer curve]

`--only fit peer` is the claim: eight SVI-AvUC ResNet-20, trained side by side by `fit_many`, beside the same work in
bayesian-torch. Training is `--epochs` long (4; 200 is the whole of it), and the rest follows from its last epoch.

ResNet-20, batch 107, 32×32×3 images on the device (CIFAR-10 where --data holds cifar-10-batches-py, else random
bytes: the time is the same). Every section stands alone: one that fails prints why and the next one runs. A table
comes at the end, and figures go to $OUT/bench_train_gpu.json after each section.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from avuc.data import Dataset, as_input, augment, load_dataset
from avuc.gpu.stacked.steps import StackedSteps
from avuc.methods import SVI, Method, Objective, Vanilla
from avuc.nets import resnet20
from avuc.train import Job, TrainSettings, fit_many
from avuc.training.captured import CapturedSteps
from avuc.training.distributed import Ranks
from avuc.training.model_trainer import ModelTrainer
from avuc.training.steps import EagerSteps, Steps

AVUC = Objective("avuc", beta=3.0, variant="paper", warmup_epochs=0, threshold=1.0, kl_weight=0.1)
EPOCHS = 200


def say(line: str) -> None:
    print(line, flush=True)


def net(generator: torch.Generator) -> torch.nn.Module:
    return resnet20(generator=generator)


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.device = torch.device(args.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.quick, self.epochs = args.quick, args.epochs
        self.batch = 16 if args.quick else 107
        gpu = self.device.type == "cuda"
        self.steps = 3 if args.quick else 200 if gpu else 10
        self.models = 8 if gpu and not args.quick else 2
        self.data = self._data(args.data).to(self.device)
        self.settings = TrainSettings(batch_size=self.batch, precision="bfloat16" if gpu else "float32")
        self.minutes: float | None = None  # of eight models, once `fit` has run
        self.rows: list[tuple[str, float, str]] = []

    def _data(self, root: str | None) -> Dataset:
        if root is not None:
            return load_dataset("cifar10", root, "train", download=False)
        generator = torch.Generator().manual_seed(0)
        count = 100 if self.quick else 50_000 if self.device.type == "cuda" else 2_000
        images = torch.randint(256, (count, 32, 32, 3), generator=generator, dtype=torch.uint8)
        return Dataset(images, torch.randint(10, (count,), generator=generator), 10, "random bytes")

    def trainers(
        self, method: Method, objective: Objective, settings: TrainSettings, count: int = 1
    ) -> list[ModelTrainer]:
        return [
            ModelTrainer(
                method,
                net,
                objective,
                settings,
                num_train=len(self.data),
                num_classes=10,
                seed=seed,
                index=0,
                device=self.device,
                ranks=Ranks(),
            )
            for seed in range(count)
        ]

    def joint(self, trainers: list[ModelTrainer], fast: bool, stacked: bool = False) -> Steps:
        steps: Steps = CapturedSteps(trainers, self.data, say) if fast else EagerSteps(trainers, self.data)
        if stacked:
            steps = StackedSteps(trainers, self.data, say)
        steps.prepare([self.batch])
        for trainer in trainers:
            trainer.begin(0)
        return steps

    def milliseconds(self, step: Callable[[], Any], steps: int | None = None) -> float:
        """Median of five runs of a step."""
        count, times = max(1, (steps or self.steps) // 5), []
        for _ in range(2):
            step()
        for _ in range(5):
            self.wait()
            started = time.perf_counter()
            for _ in range(count):
                step()
            self.wait()
            times.append((time.perf_counter() - started) / count * 1e3)
        return sorted(times)[2]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def add(self, name: str, value: float, unit: str) -> None:
        self.rows.append((name, value, unit))
        say(f"  {name:<66} {value:>12,.3f} {unit}")

    def indices(self, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        rows = [torch.randperm(len(self.data), generator=generator)[: self.batch] for _ in range(count)]
        return torch.stack(rows).to(self.device)

    # sections

    def step(self) -> None:
        """One step of one model, by how it is run."""
        ways = {
            "eager, float32": (replace(self.settings, precision="float32"), False),
            "eager, bfloat16": (self.settings, False),
            "captured": (replace(self.settings, compile=False), True),
            "compiled and captured": (self.settings, True),
        }
        kinds = {"SVI-AvUC": (SVI(), AVUC), "deterministic": (Vanilla(), Objective())}
        for way, (settings, fast) in ways.items():
            if fast and self.device.type != "cuda":
                say(f"  {way}: needs a GPU")
                continue
            for kind, (method, objective) in kinds.items():
                steps = self.joint(self.trainers(method, objective, settings), fast)
                rows = self.indices(1)
                self.add(f"step, {kind}, {way}", self.milliseconds(lambda s=steps, r=rows: s(r)), "ms")

    def joint_step(self) -> None:
        """Several models in one step."""
        fast = self.device.type == "cuda"
        for count in sorted({max(1, self.models // 2), self.models}):
            trainers = self.trainers(SVI(), AVUC, self.settings, count)
            steps = self.joint(trainers, fast)
            rows = self.indices(count)
            ms = self.milliseconds(lambda s=steps, r=rows: s(r))
            self.add(f"joint step of {count} SVI-AvUC models", ms, "ms")

    def stacked(self) -> None:
        """Several models as one stacked network, beside a stream for each."""
        for count in (1, 8, 16) if self.device.type == "cuda" else (2,):
            trainers = self.trainers(SVI(), AVUC, self.settings, count)
            started = time.perf_counter()
            steps = self.joint(trainers, False, stacked=True)
            self.wait()
            self.add(f"stacked, {count} SVI-AvUC models: compiling and capturing", time.perf_counter() - started, "s")
            if getattr(steps, "instead", None) is not None:
                say("  not stacked: what follows is the step on streams")
            rows = self.indices(count)
            ms = self.milliseconds(lambda s=steps, r=rows: s(r))
            self.add(f"stacked, joint step of {count} SVI-AvUC models", ms, "ms")
        if self.device.type == "cuda":
            trainers = self.trainers(SVI(), AVUC, self.settings, 8)
            steps, rows = self.joint(trainers, True), self.indices(8)
            self.add("on streams, joint step of 8 SVI-AvUC models", self.milliseconds(lambda: steps(rows)), "ms")

    def fit(self) -> None:
        """`fit_many` as a user calls it: warm-up epochs, threshold, AvUC epochs, partial batches, checkpoints."""
        settings = replace(self.settings, epochs=self.epochs)
        objective = Objective("avuc", variant="paper", warmup_epochs=min(2, self.epochs - 1), kl_weight=0.1)
        with tempfile.TemporaryDirectory() as folder:
            jobs = [
                Job(SVI(), net, self.data, objective, settings, seed=seed, directory=Path(folder, str(seed)))
                for seed in range(self.models)
            ]
            started = time.perf_counter()
            fitted = fit_many(jobs, device=self.device, progress=False)
            whole = time.perf_counter() - started
        self.add(f"fit_many, {self.models} models, {self.epochs} epochs, compiling included", whole, "s")
        last = fitted[0].history[-1]["seconds"]
        self.add("fit_many, its last epoch", last, "s")
        self.minutes = (whole + last * (EPOCHS - self.epochs)) / 60
        self.add(f"{self.models} SVI-AvUC models × {EPOCHS} epochs, by that", self.minutes, "min")
        self.add("fit_many, images/s", self.models * len(self.data) / last, "images/s")

    def curve(self) -> None:
        """The same seed, eager and fast: how far the loss curves part."""
        if self.device.type != "cuda":
            say("  needs a GPU")
            return
        some = self.data.subset(range(20 * self.batch + 31))
        settings = replace(self.settings, epochs=4, precision="float32")
        objective = Objective("avuc", variant="paper", warmup_epochs=2, kl_weight=0.1)
        curves = {}
        for way in ("eager", "captured", "compiled"):
            how = replace(settings, capture=way != "eager", compile=way == "compiled")
            jobs = [Job(SVI(), net, some, objective, how, seed=seed) for seed in range(2)]
            curves[way] = [[r["total"] for r in f.history] for f in fit_many(jobs, device=self.device, progress=False)]
            say(f"  {way}: {curves[way]}")
        for way in ("captured", "compiled"):
            pairs = [
                (a, b) for x, y in zip(curves["eager"], curves[way], strict=True) for a, b in zip(x, y, strict=True)
            ]
            self.add(
                f"largest difference of an epoch's loss, {way} to eager", max(abs(a - b) / a for a, b in pairs), "rel."
            )

    def peer(self) -> None:
        """bayesian-torch's example loop: its ResNet-20, one draw a step, cross-entropy + KL/batch, Adam."""
        try:
            from bayesian_torch.models.bayesian import resnet_variational
        except ImportError as error:
            say(f"  skipped: bayesian_torch cannot be imported ({error}); put its wheel on PYTHONPATH")
            return
        model = resnet_variational.resnet20().to(self.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        rows = self.indices(1)[0]
        crops = torch.Generator(device=self.device).manual_seed(0)

        def step() -> None:
            # generous: batches come ready from the device, where the example reads them with a DataLoader
            images = as_input(augment(self.data.images, rows, crops)).contiguous()
            output, kl = model(images)
            loss = F.cross_entropy(output, self.data.labels[rows]) + kl / self.batch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        ms = self.milliseconds(step, min(self.steps, 50))
        self.add("bayesian-torch, ResNet-20 example step, float32", ms, "ms")
        self.add("bayesian-torch, images/s", self.batch / ms * 1e3, "images/s")
        ours = self.joint(self.trainers(SVI(), AVUC, self.settings), self.device.type == "cuda")
        rows_of_ours = self.indices(1)
        mine = self.milliseconds(lambda: ours(rows_of_ours))
        self.add("avuc, SVI-AvUC, one model, images/s", self.batch / mine * 1e3, "images/s")
        self.add("avuc over bayesian-torch, one model", ms / mine, "×")
        if self.minutes is not None:
            steps = -(-len(self.data) // self.batch)
            theirs = ms * steps * EPOCHS * self.models / 60e3
            self.add(f"bayesian-torch, {self.models} models × {EPOCHS} epochs in turn, by that", theirs, "min")
            self.add(f"avuc over bayesian-torch, {self.models} models", theirs / self.minutes, "×")


def main() -> int:
    sections = {
        "step": Bench.step,
        "joint": Bench.joint_step,
        "stacked": Bench.stacked,
        "fit": Bench.fit,
        "peer": Bench.peer,
        "curve": Bench.curve,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", metavar="DIR", help="folder with cifar-10-batches-py")
    parser.add_argument("--quick", action="store_true", help="a few tiny steps, to see that it runs")
    parser.add_argument("--epochs", type=int, default=4, help=f"of `fit`; {EPOCHS}: nothing is extrapolated")
    parser.add_argument("--only", nargs="+", choices=list(sections), default=list(sections))
    args = parser.parse_args()
    bench = Bench(args)
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "CPU"
    say(f"torch {torch.__version__}, {name}, {bench.data}, batch {bench.batch}")
    failed = []
    for section in args.only:
        say(f"{section}: {sections[section].__doc__}")
        started = time.perf_counter()
        try:
            sections[section](bench)
        except Exception:  # device time is scarce: the other sections still run
            failed.append(section)
            traceback.print_exc()
        say(f"  ({time.perf_counter() - started:.1f} s)")
        if "OUT" in os.environ:
            figures = [{"name": name, "value": value, "unit": unit} for name, value, unit in bench.rows]
            told = {"torch": torch.__version__, "device": str(name), "batch": bench.batch, "rows": figures}
            Path(os.environ["OUT"], "bench_train_gpu.json").write_text(json.dumps(told, indent=1))
    say("\n" + "─" * 96)
    for label, value, unit in bench.rows:
        say(f"{label:<68} {value:>14,.3f} {unit}")
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
