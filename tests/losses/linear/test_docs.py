"""The figures of docs/reference/linear-losses.md are those of the benchmark's run."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_figures_of_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "linear-losses.md").read_text(encoding="utf-8")
    run = json.loads((ROOT / "benchmarks" / "results" / "linear-avuc.json").read_text(encoding="utf-8"))
    rows = [line for line in page.splitlines() if line.count(" ms |") == 2]
    large, small = run["gpu"]
    assert len(rows) == len(large["seconds"]) == 7
    for row, name in zip(rows, large["seconds"], strict=True):
        cells = [f"{1e3 * large['seconds'][name]:.0f} ms", f"{1e3 * small['seconds'][name]:.1f} ms"]
        cells += [f"{shape['bytes'][name] / 2**20:,.1f} MiB" for shape in (large, small) if name in shape["bytes"]]
        for cell in cells:
            assert f"| {cell} |" in row, (name, cell)
    starts = [line.rsplit(" | ", 2)[0] for line in page.splitlines()]
    for name, label in (
        ("avuc", "`linear_avuc`"), ("cross-entropy only", '`linear_avuc(kind="plain")`'),
        ("liger", "liger-kernel, cross-entropy alone"), ("cce", "cut-cross-entropy, cross-entropy alone"),
        ("four products", "four matrix products"),
    ):  # fmt: skip
        row = page.splitlines()[starts.index(f"| {label}")]
        assert row.endswith(f"| {1e3 * small['seconds'][name]:.2f} | {1e3 * small['idle'][name]:.2f} |"), name
    words = " ".join(page.split())
    for ratio, text in (
        (
            large["ratios"]["time / best peer (cross-entropy alone)"],
            "AvUC takes {} times as long as the faster library",
        ),
        (large["ratios"]["time / four products"], "{} times as long as four products, and"),
        (large["ratios"]["memory / best peer"], "{} times the memory"),
        (small["ratios"]["time / four products"], "On the small shape it takes {} times"),
        (small["ratios"]["time / best peer (cross-entropy alone)"], "products, {} times as long as the faster library"),
        (small["ratios"]["memory / best peer"], "the faster library and {} times the memory"),
        (small["ratios"]["time from idle / four products"], "From idle it takes {} times as long as four products"),
        (small["ratios"]["time from idle / best peer"], "four products and {} times as long as the faster library."),
        (run["cpu"]["ratio"], "in float32 takes {} times"),
    ):
        assert text.format(f"{ratio:.2f}") in words
    assert f"In your own CUDA graph a step takes {1e3 * small['graphs']['avuc']:.1f} ms" in words
    assert f"| – | {small['breakdown']['busy_ms']:.2f} ms |" in page
    for name, memory in (
        ("last tile of 512 words", "but the last 512 words of its own"),
        ("memory of its own", "of its own"),
    ):
        found = small["variants"][name]
        assert f"{memory} | {found['bytes'] / 2**20:.1f} MiB | {1e3 * found['seconds']:.1f} ms |" in page
    guide = " ".join((ROOT / "docs" / "guide" / "losses.md").read_text(encoding="utf-8").split())
    ours, whole = (name for name in large["seconds"] if name == "avuc" or name.startswith("materialised"))
    assert f"take {1e3 * large['seconds'][ours]:.0f} ms and {large['bytes'][ours] / 2**20:.1f} MiB in addition" in guide
    assert f"takes {1e3 * large['seconds'][whole]:.0f} ms and {large['bytes'][whole] / 2**30:.0f} GiB." in guide
    for values in run["errors"].values():
        assert f"{100 * values[1]:.2f} % and {100 * values[2]:.2f} %" in words
