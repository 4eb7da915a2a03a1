"""A newcomer: the wheel in a fresh virtual environment, the code of docs/index.md, and its promised output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program with nothing of this environment but what it is told."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=settings, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.?\d*", text)]


@pytest.mark.parametrize("with_pip", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_story_of_the_start_page(tmp_path: Path, with_pip: bool) -> None:
    """The short form borrows the libraries of this environment; the long form installs everything from the index."""
    pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (promised,) = re.findall(r"It prints:\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    (extras,) = re.findall(r"pip install '\.\[(.*?)\]'", PAGE)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    home, python = tmp_path / "venv", tmp_path / "venv" / "bin" / "python"
    if with_pip:
        run(sys.executable, "-m", "venv", home, cwd=tmp_path)
        pins = ("-c", ROOT / "constraints.txt")
        run(python, "-m", "pip", "install", "--quiet", *pins, f"{wheel}[{extras}]", cwd=tmp_path)
    else:
        run(sys.executable, "-m", "venv", "--without-pip", home, cwd=tmp_path)
        (packages,) = home.glob("lib/python*/site-packages")
        offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *offline, wheel, cwd=tmp_path)
        # after the wheel: a path in a .pth file does not bring the .pth files in that folder, so not this checkout
        borrowed = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    desk = tmp_path / "desk"
    desk.mkdir()
    where = run(python, "-c", "import avuc; print(avuc.__file__)", cwd=desk).strip()
    assert Path(where).is_relative_to(home)
    (desk / "story.py").write_text(code, encoding="utf-8")
    printed = run(python, "story.py", cwd=desk)
    assert re.sub(r"\d", "", printed) == re.sub(r"\d", "", promised)
    # another processor sums in another order; 1,000 digits and 150 steps keep the difference small
    assert numbers(printed) == pytest.approx(numbers(promised), abs=0.02, rel=0.1)
    assert (desk / "reliability.png").stat().st_size > 5_000
