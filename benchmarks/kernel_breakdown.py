"""Where the time of one call goes: launches and time of each kernel, and how long Python takes to start them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import torch

# parts of the names of matrix products and of the kernels of a tile
TILES = ("gemm", "cutlass", "nvjet", "splitK", "aten::mm", "aten::addmm", "_update_softmax", "_replace_by_gradient")


def breakdown(call: Callable[[], float], device: str, rows: int = 14) -> dict[str, object]:
    """Print and return launches and milliseconds of each kernel in one `call`; on a CPU, of each operation.

    Args:
        call: does the work, waits for it and returns its seconds.
        device: "cuda" or "cpu".
        rows: kernels to print.
    """
    gpu = device == "cuda"
    activity = torch.profiler.ProfilerActivity.CUDA if gpu else torch.profiler.ProfilerActivity.CPU
    host = 0.0
    if gpu:
        host = _started_by_python(call)
    with torch.profiler.profile(activities=[activity]) as profile:
        seconds = call()
    kind = torch.autograd.DeviceType.CUDA if gpu else torch.autograd.DeviceType.CPU
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in profile.events():
        if event.device_type == kind:
            name = event.name.removeprefix("void ").split("<")[0].split("(")[0]
            found[name][0] += 1
            found[name][1] += (event.time_range.elapsed_us() if gpu else event.self_cpu_time_total) / 1e3
    busy = sum(value[1] for value in found.values())
    launches = sum(int(value[0]) for value in found.values())
    small = sum(int(value[0]) for name, value in found.items() if not any(part in name for part in TILES))
    what = "launches" if gpu else "operations"
    print(
        f"  breakdown of {1e3 * seconds:.2f} ms (with profiler): {launches} {what}, {small} besides products and tiles;"
    )
    print(f"  busy {busy:.2f} ms" + (f", started by Python in {1e3 * host:.2f} ms (without profiler)" if gpu else ""))
    for name, (count, milliseconds) in sorted(found.items(), key=lambda item: -item[1][1])[:rows]:
        print(f"    {int(count):5} x {name[:64]:64} {milliseconds:9.3f} ms")
    result: dict[str, object] = {"seconds": seconds, "busy_ms": busy, "launches": launches, "small": small}
    return result | {"host_ms": 1e3 * host, "kernels": dict(found)}


def _started_by_python(call: Callable[[], float]) -> float:
    """Return the seconds between the first and the last wait for the GPU: there Python has started everything."""
    times: list[float] = []
    wait = torch.cuda.synchronize

    def noted(*device: object) -> None:
        times.append(time.perf_counter())
        wait(*device)

    torch.cuda.synchronize = noted
    try:
        call()
    finally:
        torch.cuda.synchronize = wait
    return times[-1] - times[0] if times else 0.0
