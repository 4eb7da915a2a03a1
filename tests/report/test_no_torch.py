"""`avuc report` of a finished study works without torch: in a process in which torch cannot be imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "reproduction" / "results" / "cifar10"
# an import of torch fails, also one that a `try` would hide: every attempt is recorded
RUN = """
import sys

attempts = []

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            attempts.append(name)
            raise ImportError(f"{name} is not available in this test")

sys.meta_path.insert(0, NoTorch())
from avuc.cli import main

code = main(sys.argv[1:])
assert not attempts, f"imports of {attempts}"
assert "torch" not in sys.modules
sys.exit(code)
"""


FEW_FIGURES = "import avuc.report.study.figures as figures\nfigures.BOXES = figures.BOXES[:1]\n"


def run_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN.replace("code =", f"{FEW_FIGURES}code ="), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )


def copied(name: str, folder: Path) -> Path:
    for file in ("study.sqlite", "recipe.toml"):
        folder.mkdir(exist_ok=True)
        shutil.copy(STUDIES / name / file, folder)
    return folder


def test_torch_cannot_be_imported_here() -> None:
    """The other tests mean something: a command that needs torch fails in this process."""
    done = run_without_torch("study", "demo", "--dry-run")
    assert done.returncode != 0
    assert "torch" in done.stderr


@pytest.mark.parametrize("exports", [False, True])
def test_report_of_a_study(tmp_path: Path, exports: bool) -> None:
    folder = copied("beta", tmp_path / "beta")
    done = run_without_torch("report", str(folder), *([] if exports else ["--no-exports"]))
    assert done.returncode == 0, done.stderr
    assert "it predicts best" in " ".join(done.stdout.split())
    assert (folder / "report.html").stat().st_size > 100_000
    assert (folder / "report" / "tables" / "ranking.csv").is_file() == exports
    assert bool(list(folder.glob("report/figures/*.svg"))) == exports


def test_comparison_of_two_studies(tmp_path: Path) -> None:
    folders = [str(copied(name, tmp_path / name)) for name in ("beta", "ablation")]
    page = tmp_path / "page.html"
    done = run_without_torch("report", "--compare", *folders, "--out", str(page), "--no-exports")
    assert done.returncode == 0, done.stderr
    assert page.stat().st_size > 100_000
