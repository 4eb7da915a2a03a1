"""docs/benchmarks.md shows the recorded runs; a run is recorded with date, machine and versions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import make_benchmarks
import pytest

RECORD = make_benchmarks.BENCHMARKS / "record.py"


def test_the_page_is_up_to_date() -> None:
    assert make_benchmarks.PAGE.read_text(encoding="utf-8") == make_benchmarks.page(), (
        "run: python docs/make_benchmarks.py"
    )


@pytest.mark.parametrize("path", sorted(make_benchmarks.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_file_is_on_the_page(path: Path) -> None:
    name = path.stem.removeprefix("bench_")
    assert f"## {name}\n" in make_benchmarks.PAGE.read_text(encoding="utf-8")


def test_the_speed_table_of_the_readme_is_that_of_the_recorded_runs() -> None:
    runs = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(make_benchmarks.RESULTS.glob("*.json"))
    }
    texts = {name: "\n".join(run.get("output", [])) for name, run in runs.items()}

    def found(name: str, *patterns: str) -> list[float]:
        return [float(one) for pattern in patterns for one in re.findall(pattern, texts[name])]

    bayes = found("bench_bayes_gpu", r"avuc +([\d.]+)\n", r"Predictor +([\d.]+)\n", r"step, peer / avuc.* ([\d.]+)")
    bayes += found("bench_bayes_gpu", r"peer / Predictor +([\d.]+)")
    nets = re.findall(r"^\w+ +[\d.]+ +[\d.]+ +[\d.]+ +([\d.]+) +([\d.]+) +step", texts["any-net"], re.MULTILINE)
    over = [f"{min(values):.1f}–{max(values):.1f}×" for values in zip(*(map(float, row) for row in nets), strict=True)]
    peers = found("any-net", r", draw ([\d.]+)")
    shape = runs["linear-avuc"]["gpu"][0]
    seconds, sizes = shape["seconds"], shape["bytes"]
    own, everything, liger = (seconds[name] for name in ("avuc", "materialised", "liger"))
    fast = found("bench_metrics", r"\(all 21 metrics\) ([\d.]+) s", r"s: ([\d.]+)x")
    fit = found("bench_temperature", r"avuc +([\d.]+)", r"scikit-learn .* ([\d.]+)×", r"netcal 1.4 .* ([\d.]+)×")
    table = (
        (make_benchmarks.ROOT / "README.md").read_text(encoding="utf-8").partition("## Speed")[2].partition("## ")[0]
    )
    for words in (
        f"{bayes[0]:.1f} ms; {bayes[1] + 1e-9:.1f} ms | bayesian-torch {bayes[2]:.0f}× longer; {bayes[3]:.0f}×",
        f"{over[0]} one compiled pass without a posterior, {over[1]} one in a CUDA graph",
        f"bayesian-torch {min(peers):.1f}–{max(peers):.1f}× longer",
        f"{1e3 * own:.0f} ms, {sizes['avuc'] / 2**20:.1f} MiB in addition",
        f"AvUC on all logits {everything / own:.1f}× longer, {sizes['materialised'] / 2**30:.0f} GiB",
        f"cross-entropy alone, {liger / own:.1f}×, {sizes['liger'] / 2**20:.0f} MiB",
        f"{fast[0]:.2f} s | the fastest",
        f"{fast[2]:.0f}× longer (50,000 × 1,000: {fast[3]:.0f}×)",
        f"{fit[0]:.2f} s | scikit-learn {fit[1]:.0f}×, netcal {fit[2]:.0f}× longer",
    ):
        assert words in table, words


def test_a_run_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "record.py").write_text(RECORD.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "bench_x.py").write_text(
        '"""Adding against\nmultiplying.\n\nMore."""\nimport sys\nprint("ratio 2.0×", *sys.argv[1:])\nsys.exit(1)\n',
        encoding="utf-8",
    )
    command = [sys.executable, str(folder / "record.py"), "--as", "small", "bench_x", "--rows", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (1, "ratio 2.0× --rows 5\n")
    run = json.loads((folder / "results" / "small.json").read_text(encoding="utf-8"))
    assert run["output"] == ["ratio 2.0× --rows 5"]
    assert {"processor", "cores"} <= set(run["machine"])
    assert {"python", "torch"} <= set(run["versions"])
    monkeypatch.setattr(make_benchmarks, "BENCHMARKS", folder)
    text = make_benchmarks.recorded("small", run)
    assert "Adding against multiplying." in text
    assert "`python benchmarks/bench_x.py --rows 5`" in text
    assert run["date"] in text
    assert "exit code | 1" in text


def test_what_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run without a GPU of what needs one, and none that ended before its first figure; the page names both."""
    (tmp_path / "record.py").write_text(RECORD.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "bench_none.py").write_text("import sys\nsys.exit('needs another library')\n", encoding="utf-8")
    (tmp_path / "bench_any_gpu.py").write_text("print(1)\n", encoding="utf-8")
    ended = [
        subprocess.run(
            [sys.executable, str(tmp_path / "record.py"), name],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        for name in ("bench_none", "bench_any_gpu")
    ]
    assert [one.returncode for one in ended] == [1, 0]
    assert "ended with code 1 and without a figure" in ended[0].stderr
    assert "no GPU" in ended[1].stdout
    assert not (tmp_path / "results").exists()
    monkeypatch.setattr(make_benchmarks, "BENCHMARKS", tmp_path)
    monkeypatch.setattr(make_benchmarks, "RESULTS", tmp_path / "results")
    assert "no recorded run: `bench_any_gpu`, `bench_none`." in make_benchmarks.page()


def test_an_unknown_benchmark_is_named() -> None:
    ended = subprocess.run([sys.executable, str(RECORD), "bench_none"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "there is no benchmarks/bench_none.py" in ended.stderr
