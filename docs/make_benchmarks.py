"""Write docs/benchmarks.md from the files in benchmarks/results.

    python docs/make_benchmarks.py            # writes docs/benchmarks.md
    python docs/make_benchmarks.py --check    # writes nothing; exit code 1 if the page is out of date

`benchmarks/record.py` writes such a file. The page shows what was recorded, and nothing else.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from avuc.core.atomic import write_text

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS, BENCHMARKS = ROOT / "docs" / "benchmarks.md", ROOT / "benchmarks" / "results", ROOT / "benchmarks"
HEAD = """\
# Speed

Every benchmark runs this library and the others on the same work in one run and prints the ratio. This page shows what
the recorded runs printed, with date, machine and versions. `docs/make_benchmarks.py` writes it from
`benchmarks/results`. To measure again:

    make bench                                              # all of them
    python benchmarks/record.py bench_temperature           # one of them
    python docs/make_benchmarks.py                          # then write this page

If the load is above the number of cores, other programs were running: the times are too long, and the ratios are less
certain.
"""


def purpose(name: str) -> str:
    """The first paragraph of a benchmark's docstring."""
    text = ast.get_docstring(ast.parse((BENCHMARKS / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def recorded(name: str, run: dict[str, Any]) -> str:
    """One section: what was measured, on what, and what it printed."""
    machine, versions = run["machine"], run["versions"]
    where = ", ".join(
        [machine["processor"], f"{machine['cores']} cores", *([machine["gpu"]] if "gpu" in machine else [])]
    )
    command = " ".join(["python", f"benchmarks/{run['benchmark']}.py", *run["arguments"]])
    rows = [
        ("command", f"`{command}`"),
        ("date", f"{run['date']}, {run['seconds']:.0f} s"),
        ("machine", f"{where}; load {run['load']:.1f}"),
        ("versions", ", ".join(f"{library} {version}" for library, version in versions.items())),
    ]
    if run["exit"]:
        rows.append(("exit code", f"{run['exit']}: it failed or missed its goal"))
    table = "\n".join(f"| {key} | {value} |" for key, value in rows)
    output = "\n".join(run["output"]).strip("\n")
    return f"## {name}\n\n{purpose(run['benchmark'])}\n\n| | |\n|---|---|\n{table}\n\n```text\n{output}\n```\n"


def linear(name: str, run: dict[str, Any]) -> str:
    """The file of `bench_linear_avuc.py`, which has numbers instead of lines."""
    names = list(run["gpu"][0]["seconds"])
    heads = [" × ".join(f"{size:,}" for size in shape["shape"]) for shape in run["gpu"]]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for one in names:
        cells = []
        for shape in run["gpu"]:
            memory = f", {shape['bytes'][one] / 2**20:,.1f} MiB" if one in shape["bytes"] else ""
            cells.append(f"{1e3 * shape['seconds'][one]:.1f} ms{memory}" if one in shape["seconds"] else "")
        lines.append(f"| {one} | {' | '.join(cells)} |")
    for step in names:
        cells = [f"{1e3 * shape['idle'][step]:.1f} ms" if step in shape["idle"] else "" for shape in run["gpu"]]
        lines.append(f"| {step}, from idle | {' | '.join(cells)} |")
    libraries = ("torch", "liger-kernel", "cut-cross-entropy")
    versions = ", ".join(f"{library} {run[library]}" for library in libraries if library in run)
    date = run.get("date", "not recorded")
    about = f"| | |\n|---|---|\n| date | {date} |\n| machine | {run['gpu_device']} |\n| versions | {versions} |\n"
    link = "[`linear_avuc` in detail](reference/linear-losses.md)"
    text = f"Time, and memory in addition to inputs and gradients, for tokens × words × width ({link}). "
    text += "Steps are started one after another, as in training; from idle, a step begins with an idle GPU."
    return f"## {name}\n\n{purpose('bench_linear_avuc')}\n\n{about}\n{text}\n\n" + "\n".join(lines) + "\n"


def page() -> str:
    parts = [HEAD]
    for path in sorted(RESULTS.glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        if "benchmark" in run:
            parts.append(recorded(path.stem.removeprefix("bench_"), run))
        elif "gpu_device" in run and "gpu" in run:
            parts.append(linear(path.stem, run))
    known = {path.stem.replace("-", "_").removeprefix("bench_") for path in RESULTS.glob("*.json")}
    names = sorted(path.stem for path in BENCHMARKS.glob("bench_*.py") if path.stem.removeprefix("bench_") not in known)
    if names:
        listed = ", ".join(f"`{name}`" for name in names)
        parts.append(f"## Not recorded yet\n\nThese benchmarks have no recorded run: {listed}.\n")
    return "\n".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    write_text(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
