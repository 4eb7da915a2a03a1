"""predict: milliseconds a draw of a variational ResNet-20 over 10,000 CIFAR-sized images.

    python benchmarks/bench_predict_gpu.py                              # on a GPU: 128 draws, all ways of running
    python benchmarks/bench_predict_gpu.py --device cpu --quick         # a smoke run anywhere

Every way predicts the same images with the same draws; the last column is the largest difference of a mean probability
from the plain float32 run. The first prediction of each way, which compiles, is timed apart. With bayesian-torch 0.5.0
installed, its converted ResNet-20 takes the same number of draws in the way its users write it.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from avuc.bayes import to_bayesian
from avuc.data.arrays import as_input
from avuc.nets import resnet20
from avuc.prediction import predict

Way = dict[str, object]


def ways(on_gpu: bool, batch_sizes: list[int], dtype: torch.dtype) -> dict[str, Way]:
    plain: dict[str, Way] = {
        "eager float32, not folded": {"compiled": False, "fold_batch_norm": False},
        "eager float32": {"compiled": False},
    }
    if not on_gpu:
        return plain
    plain["eager bfloat16"] = {"compiled": False, "dtype": dtype}
    plain["compiled float32"] = {"compiled": True}
    for size in batch_sizes:
        plain[f"compiled {dtype_name(dtype)}, batch {size}"] = {"compiled": True, "dtype": dtype, "batch_size": size}
        plain[f"compiled {dtype_name(dtype)}, batch {size}, CUDA graphs"] = {
            "compiled": "max-autotune",
            "dtype": dtype,
            "batch_size": size,
        }
    plain[f"compiled {dtype_name(dtype)}, not folded"] = {"compiled": True, "dtype": dtype, "fold_batch_norm": False}
    return plain


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def timed(function: Callable[[], Tensor], device: torch.device) -> tuple[float, Tensor]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def peer(images: Tensor, draws: int, batch_size: int) -> Callable[[], Tensor] | None:
    """bayesian-torch's ResNet-20: every layer draws its own weights at each call."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn
    except ImportError:
        return None
    net = resnet20(generator=torch.Generator().manual_seed(0))
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(net, {**settings, "type": "Reparameterization", "moped_enable": True, "moped_delta": 0.5})
    net = net.to(images.device).eval()

    @torch.no_grad()
    def run() -> Tensor:
        total = torch.zeros(len(images), 10, device=images.device)
        for _ in range(draws):
            parts = [net(as_input(batch)).softmax(-1) for batch in images.split(batch_size)]
            total += torch.cat(parts)
        return total / draws

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=128)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1250, 2500, 5000, 10_000])
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--only", help="run the ways whose name contains this")
    parser.add_argument("--quick", action="store_true", help="64 images, 2 draws")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of a table")
    options = parser.parse_args()
    count, draws = (64, 2) if options.quick else (options.images, options.draws)
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator).to(device)
    posterior = to_bayesian(resnet20(generator=generator), initial_std=0.02).to(device)
    # statistics of real activations, so that the logits are of a real size
    with torch.no_grad():
        posterior.train()(as_input(images[:256]))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    if not options.json:
        print(f"{draws} draws over {count} images, {name}, torch {torch.__version__}")
        print(f"{'way':48} {'first s':>8} {'ms/draw':>8} {'GiB':>6} {'max |Δp|':>9}")
    reference: Tensor | None = None
    for way, arguments in ways(device.type == "cuda", options.batch_sizes, getattr(torch, options.dtype)).items():
        if options.only and options.only not in way and reference is not None:
            continue

        def run(arguments: Way = arguments) -> Tensor:
            return predict(posterior, images, samples=draws, progress=False, **arguments).probs  # type: ignore[arg-type]

        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        first, probs = timed(run, device)
        spent = min(timed(run, device)[0] for _ in range(1 if options.quick else 2))
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
        reference = probs if reference is None else reference
        report(options.json, way, first, 1000 * spent / draws, memory, float((probs - reference).abs().max()))
    other = peer(images, draws, 1000)
    if other is not None:
        first, _ = timed(other, device)
        spent, _ = timed(other, device)
        report(options.json, "bayesian-torch 0.5.0", first, 1000 * spent / draws, float("nan"), float("nan"))


def report(as_json: bool, way: str, first: float, per_draw: float, memory: float, difference: float) -> None:
    if as_json:
        row = {"way": way, "first_s": first, "ms_per_draw": per_draw, "gib": memory, "max_difference": difference}
        print(json.dumps({key: None if value != value else value for key, value in row.items()}), flush=True)
    else:
        print(f"{way:48} {first:8.1f} {per_draw:8.2f} {memory:6.2f} {difference:9.1e}", flush=True)


if __name__ == "__main__":
    main()
