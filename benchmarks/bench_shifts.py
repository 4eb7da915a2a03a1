"""Time of the paper's 16 shifts at 5 severities, compared with the package `imagecorruptions`.

    python benchmarks/bench_shifts.py                              1,000 images on the CPU, compared with the package
    python benchmarks/bench_shifts.py --device cuda                10,000 images on the GPU

On the CPU, with one thread, the package and this library take turns for each shift and severity. The package has only
the constants of ImageNet-C, so these are compared; the constants of CIFAR-10-C are timed too. The package needs minutes
for 1,000 images: it gets `--package-images` of them, and its time is scaled up (`--package-images 1000`: no scaling).
`imported_package` supplies what NumPy, SciPy, scikit-image and setuptools have removed since the package was written.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from avuc.shifts import PAPER, SEVERITIES, corrupt


def make_images(count: int) -> Tensor:
    """Return smooth random images, uint8 (N, 32, 32, 3)."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 6, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic", align_corners=True)
    return smooth.mul(255).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def imported_package() -> Callable[..., np.ndarray] | None:
    """Return the function `corrupt` of the package, or None if it is not installed."""
    spec = importlib.util.find_spec("imagecorruptions")
    if spec is None or spec.origin is None:
        return None
    import cv2
    import scipy.ndimage
    import skimage.filters

    folder = Path(spec.origin).parent
    resources = types.ModuleType("pkg_resources")
    resources.resource_filename = lambda package, name: str(folder / name)  # type: ignore[attr-defined]
    sys.modules["pkg_resources"] = resources
    interpolation = types.ModuleType("scipy.ndimage.interpolation")
    interpolation.map_coordinates = scipy.ndimage.map_coordinates  # type: ignore[attr-defined]
    sys.modules["scipy.ndimage.interpolation"] = interpolation
    np.float_ = np.float64  # type: ignore[attr-defined]  # noqa: NPY201
    gaussian = skimage.filters.gaussian

    def with_multichannel(image: np.ndarray, sigma: float = 1, multichannel: bool = False, **options: object) -> object:
        return gaussian(image, sigma, channel_axis=-1 if multichannel else None, **options)

    skimage.filters.gaussian = with_multichannel
    from imagecorruptions import corrupt as package_corrupt

    skimage.filters.gaussian = gaussian
    cv2.setNumThreads(1)
    return package_corrupt  # type: ignore[no-any-return]


def seconds(work: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def on_cpu(count: int, package_images: int) -> None:
    torch.set_num_threads(1)
    images = make_images(count).numpy()
    package_corrupt = imported_package()
    if package_corrupt is None:
        print("no comparison: imagecorruptions is not installed (pip install imagecorruptions==1.1.2)")
    print(f"{count:,} images, one thread; seconds for severities 1-5 together")
    print(f"{'':18} {'package':>10} {'avuc':>11} {'faster':>7} {'avuc, CIFAR':>12}")
    totals = np.zeros(3)
    for name in PAPER:
        times = np.zeros(3)
        for severity in SEVERITIES:
            corrupt(images[:8], name, severity, profile="imagenet")  # tables and frost pictures are computed once
            corrupt(images[:8], name, severity)
            if package_corrupt is not None:
                few = images[:package_images]
                took = seconds(
                    lambda few=few, s=severity, n=name: [package_corrupt(x, s, corruption_name=n) for x in few]
                )
                times[0] += took * count / len(few)
            times[1] += seconds(lambda s=severity, n=name: corrupt(images, n, s, profile="imagenet"))
            times[2] += seconds(lambda s=severity, n=name: corrupt(images, n, s))
        totals += times
        print(f"{name:18} {times[0]:10.2f} {times[1]:11.2f} {times[0] / times[1]:6.1f}x {times[2]:12.2f}", flush=True)
    print(f"{'all 16 x 5':18} {totals[0]:10.2f} {totals[1]:11.2f} {totals[0] / totals[1]:6.1f}x {totals[2]:12.2f}")


def on_device(device: str, count: int) -> None:
    images = make_images(count).to(device)
    for label in ("first pass, with all initialisation", "second pass"):
        total = 0.0
        print(f"{label}: {count:,} images on {torch.cuda.get_device_name(device)}; seconds for severities 1-5 together")
        for name in PAPER:
            took = seconds(lambda name=name: [corrupt(images, name, severity) for severity in SEVERITIES])
            total += took
            print(f"  {name:18} {took:8.3f}", flush=True)
        print(f"  {'all 16 x 5':18} {total:8.3f}")
    print(f"peak memory allocated: {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, help="default 1,000 on the CPU, 10,000 elsewhere")
    parser.add_argument("--package-images", type=int, default=12)
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        count = arguments.images or 1_000
        on_cpu(count, min(arguments.package_images, count))
    else:
        on_device(arguments.device, arguments.images or 10_000)


if __name__ == "__main__":
    main()
