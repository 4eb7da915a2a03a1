"""`import avuc` with every public name loaded, compared with `import torch`: each in a fresh interpreter, in turns.

python benchmarks/bench_import.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 7
CODE = {
    "import torch": "import torch",
    "import avuc": "import torch, avuc",
    "import avuc and load every public name": "import torch, avuc; [getattr(avuc, name) for name in avuc.__all__]",
}


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in CODE}
    for _ in range(ROUNDS):
        for name, code in CODE.items():
            times[name].append(seconds(code))
    torch_alone = statistics.median(times["import torch"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name}: {median:.2f} s, {median / torch_alone:.2f}x import torch")


if __name__ == "__main__":
    main()
