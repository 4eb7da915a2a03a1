"""docs/benchmarks.md shows the recorded runs; a run is recorded with date, machine and versions."""

from __future__ import annotations

import json
import os
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
