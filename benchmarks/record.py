"""Run a benchmark and keep what it printed, with date, machine and versions, for the page docs/benchmarks.md.

    python benchmarks/record.py bench_temperature              # writes benchmarks/results/bench_temperature.json
    python benchmarks/record.py bench_metrics --quick          # what follows the name is passed on
    python benchmarks/record.py --as posthoc-50000 bench_posthoc --speed 50000 1000
    python docs/make_benchmarks.py                             # then write the page

A benchmark that fails, or misses its goal, is recorded with its exit code.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
# libraries whose versions matter to a time; those that are not installed are left out
LIBRARIES = (
    *(
        "torch",
        "numpy",
        "scipy",
        "scikit-learn",
        "torchmetrics",
        "netcal",
        "bayesian-torch",
        "lightning",
        "transformers",
    ),
    *(
        "mapie",
        "torchcp",
        "imagecorruptions",
        "liger-kernel",
        "cut-cross-entropy",
        "probmetrics",
        "matplotlib",
        "pyarrow",
    ),
)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int]:
    """The processor, its cores, and the GPU if there is one. No names of hosts or folders."""
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        model = next(iter(re.findall(r"model name\s*: (.+)", info.read_text(encoding="utf-8"))), model)
    found: dict[str, str | int] = {"processor": model, "cores": len(os.sched_getaffinity(0))}
    try:
        import torch
    except ImportError:
        return found
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def load() -> float:
    """Processes that want to run, on average over the last minute. Above the number of cores, times are too long."""
    return round(os.getloadavg()[0], 1)


def record(name: str, arguments: list[str]) -> dict[str, object]:
    """Run one benchmark; its output is shown as it comes, and returned."""
    busy, start, lines = load(), time.monotonic(), []
    command = [sys.executable, "-u", str(HERE / f"{name}.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return {
        "benchmark": name,
        "arguments": arguments,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "load": busy,
        "versions": versions(),
        "seconds": round(time.monotonic() - start, 1),
        "exit": process.returncode,
        "output": lines,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as", dest="saved", help="name of the file in benchmarks/results (default: the benchmark's)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the files")
    parser.add_argument("benchmark", help="such as bench_temperature")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the benchmark")
    options = parser.parse_args()
    name = Path(options.benchmark).stem
    if not (HERE / f"{name}.py").is_file():
        parser.error(f"there is no benchmarks/{name}.py")
    if name.endswith("_gpu") and "gpu" not in machine():
        print(f"{name}: not run, because this machine has no GPU")
        return 0
    found = record(name, options.arguments)
    if not found["output"] and found["exit"]:
        print(f"{name}: not recorded, because it ended with code {found['exit']} and without a figure", file=sys.stderr)
        return 1
    options.results.mkdir(exist_ok=True)
    path = options.results / f"{options.saved or name}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(str(found["exit"]))


if __name__ == "__main__":
    sys.exit(main())
