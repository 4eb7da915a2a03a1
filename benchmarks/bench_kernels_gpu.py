"""What each hand-written kernel is worth: the same work with and without it, on one GPU, in one run.

    python benchmarks/bench_kernels_gpu.py [--out kernels.json] [--seconds 75]
    python benchmarks/bench_kernels_gpu.py --device cpu --quick      # only shows that it runs; there are no kernels

| kernel         | work                                                   | without it                         |
|----------------|--------------------------------------------------------|------------------------------------|
| resnet_forward | one sample of an SVI ResNet-20 over 10,000 images      | torch.compile                      |
| conv3x3        | joint training step of 8 SVI-AvUC ResNet-20, batch 107 | cuDNN, one model after the other   |
| conv3x3        | the same step                                          | one CUDA stream per model          |
| augmix         | crop, flip and AugMix of the images of that step       | plain torch                        |

Everything is captured in CUDA graphs, except prediction. Compiling takes most of the time, so one process per kind of
work compiles at the same time as the others. When all are ready they measure one after the other; nothing else runs on
the GPU then. A process that fails prints its traceback, and the others go on. A process that is not ready after
`--seconds` is stopped, and its rows are missing. The whole run ends about 12 seconds later.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], Any]
# name of the measurement → (function, how often it is called in one run, what the time is divided by)
Measured = dict[str, tuple[Work, int, int]]
MEASURING_SECONDS = 30.0  # a process that measures longer than this is stopped

# kernel, work, measurement without it, measurement with it
TABLE = (
    ("resnet_forward", "one sample, 10,000 images", "predict: compiled", "predict: kernel"),
    ("conv3x3", "training step, 8 models", "step: without conv3x3", "step: all kernels"),
    ("conv3x3 (stacks)", "training step, 8 models", "step: on streams", "step: all kernels"),
    ("augmix", "AugMix of 856 images", "augmix: plain torch", "augmix: kernel"),
)


def off(*args: object) -> str:
    """Replace an `unsupported_reason`: the kernel does not run."""
    return "switched off by the benchmark"


class Bench:
    """The sizes of the work, and the four kinds of it."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.gpu, self.quick = self.device.type == "cuda", quick
        self.models, self.batch = (2, 8) if quick else (8, 107)
        self.images, self.samples = (16, 2) if quick else (10_000, 128)

    def pictures(self, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(256, (count, 32, 32, 3), generator=generator, dtype=torch.uint8).to(self.device)

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    # the kinds of work

    def predict(self) -> Measured:
        from avuc.bayes import to_bayesian
        from avuc.nets import resnet20
        from avuc.prediction import predictor as module
        from avuc.prediction.predictor import Predictor

        net = resnet20(generator=torch.Generator().manual_seed(0)).to(self.device)
        posterior, images = to_bayesian(net).eval(), self.pictures(self.images)
        dtype = torch.bfloat16 if self.gpu else None
        with_kernel = Predictor(posterior, samples=self.samples, dtype=dtype)
        with_kernel(images)
        backends = module.prediction_backends
        module.prediction_backends = tuple  # type: ignore[assignment]  # none
        try:
            without = Predictor(posterior, samples=self.samples, dtype=dtype)
            without(images)
        finally:
            module.prediction_backends = backends
        return {
            "predict: kernel": (lambda: with_kernel(images), 1, self.samples),
            "predict: compiled": (lambda: without(images), 1, self.samples),
        }

    def training(self) -> Measured:
        from avuc.gpu.kernels import conv3x3

        everything = self._step("stacked")
        reason = conv3x3.unsupported_reason
        conv3x3.unsupported_reason = off  # type: ignore[assignment]
        try:
            without = self._step("stacked")
        finally:
            conv3x3.unsupported_reason = reason
        return {"step: all kernels": (everything, 40, 1), "step: without conv3x3": (without, 40, 1)}

    def streams(self) -> Measured:
        return {"step: on streams": (self._step("streams"), 40, 1)}

    def augmix(self) -> Measured:
        from avuc.data import augmentation as module
        from avuc.data.augmentation import Augmentation

        rows, images = self.models * self.batch, self.pictures(4 * self.models * self.batch)
        generator = torch.Generator(self.device).manual_seed(0)
        policy = Augmentation("augmix")
        indices = torch.arange(rows, device=self.device)
        drawn = policy.draw(rows, generator, self.device)

        def mix() -> torch.Tensor:
            return policy.apply(images, indices, drawn)

        first = mix()
        with_kernel = self._captured(mix)
        kernel = module.augmix_kernel
        module.augmix_kernel = lambda: None  # type: ignore[assignment]
        try:
            different = int((mix().int() - first.int()).abs().max())
            print(f"AugMix, kernel against plain torch: pixels differ by at most {different}", flush=True)
            plain = self._captured(mix)
        finally:
            module.augmix_kernel = kernel
        return {"augmix: kernel": (with_kernel, 100, 1), "augmix: plain torch": (plain, 100, 1)}

    # helpers

    def _step(self, kind: str) -> Work:
        """Return a joint training step of SVI-AvUC ResNet-20, ready to run."""
        from avuc.data import Dataset
        from avuc.gpu.stacked.steps import StackedSteps
        from avuc.methods import SVI, Objective
        from avuc.nets import resnet20
        from avuc.train import TrainSettings
        from avuc.training.captured import CapturedSteps
        from avuc.training.distributed import Ranks
        from avuc.training.model_trainer import ModelTrainer
        from avuc.training.steps import EagerSteps, Steps

        count = 64 if self.quick else 10_000
        labels = torch.randint(10, (count,), generator=torch.Generator().manual_seed(1)).to(self.device)
        data = Dataset(self.pictures(count), labels, 10, "random bytes")
        objective = Objective("avuc", beta=3.0, variant="paper", warmup_epochs=0, threshold=1.0, kl_weight=0.1)
        settings = TrainSettings(batch_size=self.batch, precision="bfloat16" if self.gpu else "float32")
        trainers = [
            ModelTrainer(
                SVI(),
                lambda generator: resnet20(generator=generator),
                objective,
                settings,
                num_train=count,
                num_classes=10,
                seed=seed,
                index=0,
                device=self.device,
                ranks=Ranks(),
            )
            for seed in range(self.models)
        ]

        def say(line: str) -> None:
            print(line, flush=True)

        steps: Steps
        if kind == "stacked":
            steps = StackedSteps(trainers, data, say)
        else:
            steps = CapturedSteps(trainers, data, say) if self.gpu else EagerSteps(trainers, data)
        steps.prepare([self.batch])
        if getattr(steps, "instead", None) is not None:
            raise RuntimeError("the models cannot be stacked here; the line above says why")
        for trainer in trainers:
            trainer.begin(0)
        generator = torch.Generator().manual_seed(2)
        rows = [torch.randperm(count, generator=generator)[: self.batch] for _ in trainers]
        indices = torch.stack(rows).to(self.device)
        return lambda: steps(indices)

    def _captured(self, work: Work) -> Work:
        """Return the work as a CUDA graph; on a CPU the work itself."""
        if not self.gpu:
            return work
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return result  # type: ignore[no-any-return]  # keeps the memory of the graph's output

        return replay

    def milliseconds(self, measured: Measured) -> dict[str, float]:
        """Return the median of five rounds, in which the measurements take turns."""
        seen: dict[str, list[float]] = {name: [] for name in measured}
        for work, _, _ in measured.values():
            work()
        for _ in range(1 if self.quick else 5):
            for name, (work, calls, parts) in measured.items():
                calls = 1 if self.quick else calls
                self.wait()
                started = time.perf_counter()
                for _ in range(calls):
                    work()
                self.wait()
                seen[name].append((time.perf_counter() - started) * 1e3 / calls / parts)
        return {name: statistics.median(values) for name, values in seen.items()}


WORKERS: dict[str, Callable[[Bench], Measured]] = {
    "training": Bench.training,
    "streams": Bench.streams,
    "predict": Bench.predict,
    "augmix": Bench.augmix,
}


def work(name: str, folder: Path, device: str, quick: bool) -> int:
    """Run one process: prepare, say so, wait for the signal, measure."""
    try:
        bench = Bench(device, quick)
        started = time.perf_counter()
        measured = WORKERS[name](bench)
        bench.wait()
        seconds = time.perf_counter() - started
        (folder / f"{name}.ready").write_text(f"{seconds:.1f}")
        while not (folder / f"{name}.go").exists():
            time.sleep(0.02)
        result = folder / f"{name}.part"
        result.write_text(json.dumps(bench.milliseconds(measured)))
        result.rename(folder / f"{name}.json")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


class Worker:
    """One process and its files."""

    def __init__(self, name: str, folder: Path, options: list[str]) -> None:
        self.name, self.folder = name, folder
        self.log = folder / f"{name}.log"
        # several processes compile at the same time
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "4", **os.environ}
        command = [sys.executable, __file__, "--worker", name, "--folder", str(folder), *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    @property
    def ready(self) -> bool:
        return (self.folder / f"{self.name}.ready").exists()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def measure(self) -> dict[str, float]:
        """Let it measure while all others wait."""
        (self.folder / f"{self.name}.go").touch()
        until = time.perf_counter() + MEASURING_SECONDS
        while self.running and time.perf_counter() < until:
            time.sleep(0.02)
        result = self.folder / f"{self.name}.json"
        return json.loads(result.read_text()) if result.exists() else {}

    def stop(self) -> None:
        if self.running:
            self.process.kill()
        self.process.wait()


def run(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    passed = ["--device", options.device, *(["--quick"] if options.quick else [])]
    values: dict[str, float] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        workers = [Worker(one, Path(name), passed) for one in options.only]
        try:
            while any(one.running and not one.ready for one in workers):
                if time.perf_counter() - started > options.seconds:
                    break
                time.sleep(0.1)
            for one in workers:
                if not one.ready:
                    late = one.running
                    one.stop()
                    failed.append(one.name)
                    print(f"{one.name}: {'not ready in time' if late else 'failed'}\n{one.log.read_text()}", flush=True)
            for one in workers:
                if one.ready:
                    prepared = (Path(name) / f"{one.name}.ready").read_text()
                    part = one.measure()
                    values |= part
                    if not part:
                        failed.append(one.name)
                    text = one.log.read_text()
                    print(f"{one.name}: ready after {prepared} s\n{text}", end="", flush=True)
        finally:
            for one in workers:
                one.stop()
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    rows = [
        {"kernel": kernel, "work": task, "without_ms": values[slow], "with_ms": values[fast]}
        for kernel, task, slow, fast in TABLE
        if slow in values and fast in values
    ]
    print(f"\n{device}, torch {torch.__version__}, {time.perf_counter() - started:.0f} s")
    print(f"| {'kernel':<14} | {'work':<26} | {'without ms':>10} | {'with ms':>9} | {'ratio':>6} |")
    print(f"|{'-' * 16}|{'-' * 28}|{'-' * 12}|{'-' * 11}|{'-' * 8}|")
    for row in rows:
        row["ratio"] = row["without_ms"] / row["with_ms"]
        print(
            f"| {row['kernel']:<14} | {row['work']:<26} | {row['without_ms']:>10.3f} | {row['with_ms']:>9.3f} | "
            f"{row['ratio']:>6.2f} |"
        )
    if options.out is not None:
        result = {"device": device, "torch": torch.__version__, "rows": rows, "all_ms": values, "failed": failed}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        print(f"without result: {', '.join(failed)}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="also write the numbers here, as JSON")
    parser.add_argument("--seconds", type=float, default=75.0, help="how long the processes may compile")
    parser.add_argument("--only", nargs="+", choices=list(WORKERS), default=list(WORKERS), help="only these processes")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--worker", choices=list(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker, options.folder, options.device, options.quick)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
