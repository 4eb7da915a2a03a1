"""`linear_avuc` from hidden states to loss and gradients, and other ways to a cross-entropy without all logits.

    python benchmarks/bench_linear_avuc.py                       # the GPU part if there is a GPU, and the CPU part
    python benchmarks/bench_linear_avuc.py --device cpu
    python benchmarks/bench_linear_avuc.py --shape 4096 32000 2048 --json result.json --set tail=512 --set warps=4

All take turns on the same tensors in one process, forward + backward, median of the repeats. Memory is the peak of
allocated bytes above inputs and gradients, after a first call that loads kernels and cuBLAS's workspace.

    avuc                 linear_avuc: cross-entropy + AvUC
    cross-entropy only   linear_avuc(kind="plain")
    materialised         logits by F.linear, F.cross_entropy + avuc_loss in float32
    liger                fused linear cross-entropy of liger-kernel (cross-entropy alone)
    cce                  linear_cross_entropy of cut-cross-entropy (cross-entropy alone; leaves out small gradients)
    four products        the matrix products of that size that the loss needs: three, and the logits once more

Times are those of a step among steps that are started one after another without waiting, as in training: then Python
works ahead of the GPU. "From idle" is one step that begins with an idle GPU, so that it also waits for
Python wherever Python is slower than the GPU.
Shapes of up to 2^28 logits are also measured with other tiles (`VARIANTS`). Each shape has a breakdown: launches and
time of each kernel, and the time that Python takes to start them.
liger and cce are reported as "not installed" unless you `pip install liger-kernel cut-cross-entropy`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from kernel_breakdown import breakdown
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from avuc.gpu import linear, linear_room
from avuc.gpu.kernels import linear_softmax
from avuc.losses import avuc_loss, linear_avuc

# constants of the GPU path that --set changes
SETTINGS = {
    "few_logits": (linear, "FEW_LOGITS"),
    "own_tile": (linear, "OWN_TILE"),
    "forward_tile": (linear, "FORWARD_TILE"),
    "forward_share": (linear, "FORWARD_SHARE"),
    "backward_tile": (linear, "BACKWARD_TILE"),
    "tail": (linear_room, "TAIL"),
    "many": (linear_room, "MANY"),
    "forward_block": (linear_softmax, "FORWARD_BLOCK"),
    "backward_block": (linear_softmax, "BACKWARD_BLOCK"),
    "warps": (linear_softmax, "WARPS"),
}
VARIANTS = {
    "memory of its own": {"few_logits": 1 << 40},
    "last tile of 512 words": {"tail": 512},
    "tiles of 2^24 logits": {"backward_tile": 1 << 24},
    "forward tiles of 2^24": {"forward_tile": 1 << 24},
}
THRESHOLD = 3.0
SHAPES = [(16_384, 128_256, 4_096), (4_096, 32_000, 2_048)]
LIMITS = {
    "memory / materialised": 0.05,
    "memory / best peer": 1.25,
    "time / best peer (cross-entropy alone)": 1.5,
    "time / four products": 1.5,
}
CPU_SHAPE = (512, 50_257, 768)
Step = Callable[[Tensor, Tensor, Tensor], Tensor]
CHANGED: dict[Step, dict[str, int]] = {}  # the settings of a step, if they are not those of the run


def inputs(tokens: int, words: int, depth: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with a spread of 2 nats, and the label's between 0 and 25 higher: some tokens certain, some not."""
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.randn(words, depth, generator=generator, device=device, dtype=dtype) / depth**0.5
    labels = torch.randint(0, words, (tokens,), generator=generator, device=device)
    hidden = 2 * torch.randn(tokens, depth, generator=generator, device=device, dtype=dtype)
    hidden += 25 * torch.rand(tokens, 1, generator=generator, device=device).to(dtype) * weight[labels]
    return hidden.requires_grad_(), weight.requires_grad_(), labels


def materialised(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = F.linear(hidden, weight).float()
    return F.cross_entropy(logits, labels) + avuc_loss(logits, labels, THRESHOLD, variant="monotone")


def ours(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return linear_avuc(hidden, weight, labels, threshold=THRESHOLD).loss


def ours_plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return linear_avuc(hidden, weight, labels, threshold=None, kind="plain").loss


def ours_chunked(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return linear_avuc(hidden, weight, labels, threshold=THRESHOLD, backend="chunked").loss


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, tokens: int = 64) -> Tensor:
    """Cross-entropy in torch by blocks of tokens, whose logits the backward pass computes again."""

    def part(h: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, w).float(), y, reduction="sum")

    parts = zip(hidden.split(tokens), labels.split(tokens), strict=True)
    return sum(checkpoint(part, h, weight, y, use_reentrant=False) for h, y in parts) / len(labels)


@contextlib.contextmanager
def settings(values: dict[str, int]) -> Iterator[None]:
    """While open, constants of the GPU path have these values."""
    before = {name: getattr(*SETTINGS[name]) for name in values}
    try:
        for name, value in values.items():
            setattr(*SETTINGS[name], value)
        yield
    finally:
        for name, value in before.items():
            setattr(*SETTINGS[name], value)


def peers() -> tuple[dict[str, Step], dict[str, str]]:
    """The other libraries' cross-entropy, and why one is missing."""
    found: dict[str, Step] = {}
    missing: dict[str, str] = {}
    try:
        from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        found["liger"] = lambda hidden, weight, labels: liger(weight, hidden, labels)
    except ImportError as error:
        missing["liger"] = f"not installed ({error})"
    try:
        from cut_cross_entropy import linear_cross_entropy

        found["cce"] = linear_cross_entropy
    except ImportError as error:
        missing["cce"] = f"not installed ({error})"
    return found, missing


def once(start: Callable[[], object], device: str) -> float:
    """Seconds of one call that begins with nothing to do."""
    if device == "cpu":
        begin = time.perf_counter()
        start()
        return time.perf_counter() - begin
    torch.cuda.synchronize()
    return in_a_loop(start, 1, first=False)


def in_a_loop(start: Callable[[], object], steps: int, first: bool = True) -> float:
    """Seconds of a step when steps are started one after another: Python works ahead of the GPU.

    Args:
        start: starts a step.
        steps: how many are measured.
        first: whether one step runs before these.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if first:
        start()
        torch.cuda.synchronize()
    begin.record()
    for _ in range(steps):
        start()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / steps


def replayed(step: Step, hidden: Tensor, weight: Tensor, labels: Tensor, repeats: int) -> float:
    """Seconds of a step as a CUDA graph: the GPU's work without Python's time."""

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(step(hidden, weight, labels), (hidden, weight))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradients()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = gradients()
    seconds = statistics.median(in_a_loop(graph.replay, 20) for _ in range(repeats))
    del kept
    return seconds


def peak_memory(start: Callable[[], object], hidden: Tensor, weight: Tensor) -> float:
    """Peak bytes above inputs and gradients."""
    hidden.grad = weight.grad = None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start()
    torch.cuda.synchronize()
    gradients = sum(value.numel() * value.element_size() for value in (hidden, weight))
    return torch.cuda.max_memory_allocated() - before - gradients


def four_products(hidden: Tensor, weight: Tensor) -> Callable[[], object]:
    """Return a function that computes h·Wᵀ twice, dz·W and dzᵀ·h."""
    with torch.no_grad():
        z = hidden @ weight.t()
    h, w = torch.empty_like(hidden), torch.empty_like(weight)

    @torch.no_grad()
    def products() -> None:
        torch.mm(hidden, weight.t(), out=z)
        torch.mm(hidden, weight.t(), out=z)
        torch.mm(z, weight, out=h)
        torch.mm(z.t(), hidden, out=w)

    return products


def errors(depth: int, words: int, tokens: int = 1024) -> dict[str, list[float]]:
    """‖g − g64‖/‖g64‖ of the gradients in hidden and weight, against float64; and the loss's difference."""
    hidden, weight, labels = inputs(tokens, words, depth, "cuda", torch.bfloat16)
    wide = [value.detach().double().requires_grad_() for value in (hidden, weight)]
    logits = F.linear(*wide)
    exact = F.cross_entropy(logits, labels) + avuc_loss(logits, labels, THRESHOLD, variant="monotone")
    exact.backward()
    del logits
    result = {}
    for name, step in (("avuc", ours), ("materialised", materialised)):
        hidden.grad = weight.grad = None
        loss = step(hidden, weight, labels)
        loss.backward()
        result[name] = [abs(loss.item() - exact.item())] + [
            float((narrow.grad.double() - value.grad).norm() / value.grad.norm())
            for narrow, value in zip((hidden, weight), wide, strict=True)
            if narrow.grad is not None and value.grad is not None
        ]
    return result


def starter(step: Step, hidden: Tensor, weight: Tensor, labels: Tensor) -> Callable[[], object]:
    """Return a function that starts the forward and backward pass of a step, with the step's settings."""

    def start() -> None:
        hidden.grad = weight.grad = None
        with settings(CHANGED.get(step, {})):
            step(hidden, weight, labels).backward()

    return start


def gpu(shape: tuple[int, int, int], repeats: int) -> dict[str, object]:
    tokens, words, depth = shape
    hidden, weight, labels = inputs(tokens, words, depth, "cuda", torch.bfloat16)
    others, missing = peers()
    steps: dict[str, Step] = {
        "avuc": ours,
        "cross-entropy only": ours_plain,
        "avuc chunked torch": ours_chunked,
        **others,
        "materialised": materialised,
    }
    small = tokens * words <= 1 << 28
    variants = VARIANTS if small else {}  # the large shape keeps the GPU busy anyway
    for name, values in variants.items():
        steps[name] = functools.partial(ours)
        CHANGED[steps[name]] = values
    starts: dict[str, Callable[[], object]] = {}
    memory: dict[str, float] = {}
    for name, step in steps.items():
        start = starter(step, hidden, weight, labels)
        try:
            for _ in range(2):
                once(start, "cuda")
            memory[name] = peak_memory(start, hidden, weight)
        except Exception as error:  # a peer may not run with this torch or Triton: say so and go on
            missing[name] = f"failed ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            continue
        starts[name] = start
    starts["four products"] = four_products(hidden, weight)
    times: dict[str, list[float]] = {name: [] for name in starts}
    idle: dict[str, list[float]] = {name: [] for name in starts}
    for _ in range(repeats):  # they take turns: a GPU that is hot is slower
        for name, start in starts.items():
            times[name].append(in_a_loop(start, 20 if small else 3))
            idle[name].append(once(start, "cuda"))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    from_idle = {name: statistics.median(values) for name, values in idle.items()}
    del starts["four products"]
    hidden.grad = weight.grad = None
    graphs: dict[str, float] = {}
    # the others wait for the GPU in a step, which no graph can hold; a recording that fails harms what follows
    for name in ("avuc", "cross-entropy only"):
        if name in starts and small:
            try:
                graphs[name] = replayed(steps[name], hidden, weight, labels, repeats)
            except Exception as error:  # a step that waits for the GPU cannot be a graph
                missing[f"{name}, CUDA graph"] = f"failed ({type(error).__name__})"
                torch.cuda.synchronize()
    floor = seconds["four products"]
    other = {
        name: {"seconds": seconds.pop(name), "idle": from_idle.pop(name), "bytes": memory.pop(name)}
        for name in variants
        if name in seconds
    }
    print(f"{tokens:,} tokens x {words:,} words x {depth:,}, bfloat16, {torch.cuda.get_device_name()}")
    for name, value in seconds.items():
        extra = f"   {memory[name] / 2**20:10.1f} MiB above inputs and gradients" if name in memory else ""
        print(f"  {name:20} {1e3 * value:9.2f} ms   from idle {1e3 * from_idle[name]:9.2f} ms{extra}")
    for name, value in graphs.items():
        print(f"  {name + ', CUDA graph':30} {1e3 * value:9.2f} ms   time / four products {value / floor:.3f}")
    for name, reason in missing.items():
        print(f"  {name:20} {reason}")
    for name, value in other.items():
        extra = f"{value['bytes'] / 2**20:10.1f} MiB, time / four products {value['seconds'] / floor:.3f}"
        print(f"  avuc, {name:24} {1e3 * value['seconds']:9.2f} ms   {extra}")
    known = [name for name in others if name in seconds]
    ratios = {"memory / materialised": memory["avuc"] / memory["materialised"]} if "materialised" in memory else {}
    ratios["time / four products"] = seconds["avuc"] / floor
    ratios["time from idle / four products"] = from_idle["avuc"] / from_idle["four products"]
    if known:
        ratios["memory / best peer"] = memory["avuc"] / min(memory[name] for name in known)
        ratios["time / best peer (cross-entropy alone)"] = seconds["avuc"] / min(seconds[name] for name in known)
        ratios["time from idle / best peer"] = from_idle["avuc"] / min(from_idle[name] for name in known)
    for name, value in ratios.items():
        print(f"  {name:40} {value:.3f}   {'at most ' + str(LIMITS[name]) if name in LIMITS else ''}")
    report: dict[str, object] = {
        "shape": shape, "seconds": seconds, "idle": from_idle, "bytes": memory, "missing": missing, "variants": other,
        "graphs": graphs, "ratios": ratios,
    }  # fmt: skip
    try:
        report["breakdown"] = breakdown(lambda: once(starts["avuc"], "cuda"), "cuda")
    except Exception as error:  # no profiler: the times above still count
        print(f"  no breakdown ({type(error).__name__}: {error})")
    return report


def cpu(shape: tuple[int, int, int], repeats: int) -> dict[str, object]:
    hidden, weight, labels = inputs(*shape, "cpu", torch.float32)
    steps: dict[str, Step] = {
        "avuc": ours,
        "cross-entropy only": ours_plain,
        "chunked cross-entropy": chunked_cross_entropy,
    }
    starts = {name: starter(step, hidden, weight, labels) for name, step in steps.items()}
    for start in starts.values():
        once(start, "cpu")
    times: dict[str, list[float]] = {name: [] for name in starts}
    for _ in range(repeats):
        for name, start in starts.items():
            times[name].append(once(start, "cpu"))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    print(f"{shape[0]:,} tokens x {shape[1]:,} words x {shape[2]:,}, float32, CPU, {torch.get_num_threads()} threads")
    for name, value in seconds.items():
        print(f"  {name:24} {1e3 * value:9.1f} ms")
    ratio = seconds["avuc"] / seconds["chunked cross-entropy"]
    print(f"  avuc / chunked cross-entropy in torch {ratio:.2f}   at most 1.6")
    found = breakdown(lambda: once(starts["avuc"], "cpu"), "cpu")
    return {"shape": shape, "seconds": seconds, "ratio": ratio, "breakdown": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", choices=["cpu", "cuda", "both"], default="both" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--shape", type=int, nargs=3, metavar=("TOKENS", "WORDS", "DEPTH"), help="instead of the default"
    )
    parser.add_argument("--threads", type=int, default=2, help="of the CPU part (default 2)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=NUMBER", help=f"a constant: {', '.join(SETTINGS)}"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    args = parser.parse_args()
    for name, _, value in (text.partition("=") for text in args.set):
        if name not in SETTINGS or not value.isdigit():
            parser.error(f"--set takes NAME=NUMBER with a name of {', '.join(SETTINGS)}; found {name}={value}")
        setattr(*SETTINGS[name], int(value))
    report: dict[str, object] = {"torch": torch.__version__, "command": sys.argv[1:]}

    def save(name: str, value: object) -> None:
        report[name] = value
        if args.json:  # after each part: a later one may fail
            args.json.write_text(json.dumps(report, indent=1))

    if args.device != "cpu":
        save("gpu_device", torch.cuda.get_device_name())
        parts: list[dict[str, object]] = []
        for shape in [tuple(args.shape)] if args.shape else SHAPES:
            save("gpu", [*parts, gpu(shape, args.repeats)])
            parts = report["gpu"]
        found = errors(4096, 32_000)
        save("errors", found)
        print("against float64, 1,024 tokens x 32,000 words x 4,096 (loss; gradients in hidden, weight):")
        for name, values in found.items():
            print(f"  {name:20} " + "  ".join(f"{value:.2e}" for value in values))
    if args.device != "cuda":
        torch.set_num_threads(args.threads)
        save("cpu", cpu(tuple(args.shape) if args.shape else CPU_SHAPE, min(args.repeats, 3)))


if __name__ == "__main__":
    main()
