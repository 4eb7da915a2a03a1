"""Images per second of the training input (crop, flip, scaling, AugMix), compared with what a training step needs.

    python benchmarks/bench_input.py [--device cuda|cpu] [--batch 107] [--step-ms 1.69] [--images 50000]

A training step of `--step-ms` milliseconds with `--batch` images needs batch/step images per second. Measured are
`augment` alone, `augment` with `as_input` (float, channels-last) and AugMix with `as_input`; on a GPU also captured in
a CUDA graph, as in training. For comparison: pad, crop and flip in NumPy, one image after the other; the results must
be equal. Each figure is the median over rounds in which the pipelines take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from avuc.data import Augmentation, as_input, augment, augment_at

SECONDS = 0.4  # per pipeline and round


def one_by_one(images: np.ndarray, indices: list[int], top: list[int], left: list[int], flip: list[bool]) -> np.ndarray:
    side = images.shape[1]
    batch = []
    for index, y, x, flipped in zip(indices, top, left, flip, strict=True):
        crop = np.pad(images[index], ((4, 4), (4, 4), (0, 0)))[y : y + side, x : x + side]
        batch.append(crop[:, ::-1] if flipped else crop)
    return np.stack(batch)


def captured(step: Callable[[], Tensor], generator: torch.Generator) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def rate(step: Callable[[], object], batch: int, device: torch.device) -> float:
    """Return images per second; on a GPU 20 steps are queued before each synchronisation, as in training."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for _ in range(20 if device.type == "cuda" else 1):
            step()
            done += batch
        if device.type == "cuda":
            torch.cuda.synchronize()
    return done / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=107)
    parser.add_argument("--step-ms", type=float, default=1.69)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device, batch = torch.device(arguments.device), arguments.batch
    if device.type == "cpu":
        torch.set_num_threads(1)

    generator = torch.Generator(device).manual_seed(0)
    shape = (arguments.images, 32, 32, 3)
    images = torch.randint(0, 256, shape, device=device, generator=generator, dtype=torch.uint8)
    indices = torch.randint(0, arguments.images, (batch,), device=device, generator=generator)
    top, left = torch.randint(0, 9, (2, batch), device=device, generator=generator)
    flip = torch.randint(0, 2, (batch,), device=device, generator=generator).bool()

    pixels = images.cpu().numpy()
    lists = (indices.tolist(), top.tolist(), left.tolist(), flip.tolist())
    same = np.array_equal(augment_at(images, indices, top, left, flip).cpu().numpy(), one_by_one(pixels, *lists))
    print(f"equal to the loop over images, byte for byte: {same}")

    policy = Augmentation("augmix")

    def mix() -> torch.Tensor:
        return as_input(policy.apply(images, indices, policy.draw(batch, generator, device)))

    pipelines: dict[str, Callable[[], object]] = {
        "NumPy, one image after the other": lambda: one_by_one(pixels, *lists),
        "augment": lambda: augment(images, indices, generator),
        "augment + as_input": lambda: as_input(augment(images, indices, generator)),
        "AugMix + as_input": mix,
    }
    if device.type == "cuda":
        pipelines["augment + as_input, captured"] = captured(
            lambda: as_input(augment(images, indices, generator)), generator
        )
        pipelines["AugMix + as_input, captured"] = captured(mix, generator)
    for step in pipelines.values():
        step()
    rounds = [{name: rate(step, batch, device) for name, step in pipelines.items()} for _ in range(arguments.rounds)]

    need = batch / (arguments.step_ms / 1000)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, one thread"
    print(f"{where}, torch {torch.__version__}, batch {batch}")
    print(f"a step of {arguments.step_ms} ms needs {need:,.0f} images/s")
    for name in pipelines:
        median = statistics.median(values[name] for values in rounds)
        print(
            f"{name:36} {median:14,.0f} images/s {median / need:8.1f} × the need {1e6 * batch / median:9.1f} µs a batch"
        )
    if not same:
        raise SystemExit("augment_at and the loop in NumPy differ")


if __name__ == "__main__":
    main()
