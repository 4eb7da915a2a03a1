"""The gallery: the form of every example, and the program that runs them. The examples run in `make docs`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import make_gallery
import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(make_gallery.EXAMPLES.glob("*.py"))
SCRIPT = '''"""A title.

The lesson.

Topic: Measure
Picture: A line.
"""

import matplotlib.pyplot as plt

print("a number: 1")
plt.plot([0, 1])
plt.savefig("NAME.svg")
'''


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_form_of_an_example(path: Path) -> None:
    example = make_gallery.read_example(path)
    assert 20 <= len(path.read_text(encoding="utf-8").splitlines()) <= 60
    assert re.fullmatch(r"[A-Z].+\.", example.title), "the title is a sentence"
    assert 2 <= len(re.findall(r"[.!?)](?:\s|$)", example.lesson)) <= 6, "the lesson is 2 to 4 sentences"
    assert len(example.alt) >= 40, "the picture has a text for readers who cannot see it"
    assert example.code.count(f'savefig("{path.stem}.svg")') == 1, "one picture, named as the file"
    several = re.search(r"subplots\(\d|figure\(", example.code)
    assert not several or 'layout="constrained"' in example.code, "run alone, no title or axis is cut off"


def test_enough_examples_with_different_titles() -> None:
    examples = [make_gallery.read_example(path) for path in FILES]
    assert len({example.title for example in examples}) == len(examples) >= 25
    assert {example.topic for example in examples} == set(make_gallery.TOPICS)


def test_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One example works, two are skipped, four fail. Then only the first two are left, and the first is not run."""
    examples, pages = tmp_path / "examples", tmp_path / "pages"
    examples.mkdir()
    changes = {
        "one": ("A title", "A title"),
        "two": ("print", "import sys\nsys.exit('Skipped: no lamp.')\nprint"),
        "crash": ("print(", "print(1 / 0, "),
        "undrawn": ("undrawn.svg", "other.svg"),
        "ended": ("print(", "raise SystemExit('gave up')\nprint("),
        "killed": ('svg")\n', 'svg")\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n'),
        "late": ("print(", "import time\ntime.sleep(600)\nprint("),
    }
    for name, change in changes.items():
        (examples / f"{name}.py").write_text(SCRIPT.replace("NAME", name).replace(*change))
    folders = ["--examples", str(examples), "--pages", str(pages)]
    program = f"import make_gallery as g, sys\ng.MAY_BE_LATE = {{'late': 0}}\nsys.exit(g.main({folders!r}))"
    command = [sys.executable, "-c", f"import sys; sys.path.append({str(ROOT / 'docs')!r})\n{program}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    for message in ("ZeroDivisionError", "it saved no undrawn.svg", "gave up", "it ended with code -9"):
        assert message in ran.stderr
    assert re.search("^late .* s not run$", ran.stdout, re.MULTILINE)
    page, index = (pages / "one.md").read_text(), (pages / "index.md").read_text()
    assert page.startswith("# A title\n\nThe lesson.\n\n![A line.](one.svg#only-light)")
    assert "```text\na number: 1\n```" in page
    assert "This example was not run here: no lamp." in (pages / "two.md").read_text()
    assert "This example was not run here: it took longer than 0 s" in (pages / "late.md").read_text()
    assert "one.svg" in index
    assert "two.svg" not in index
    assert "crash" not in index
    drawn, night = (pages / "one.svg").read_text(), (pages / "one-dark.svg").read_text()
    assert "#ffffff" in drawn
    assert "#ffffff" not in night
    assert "#1c2026" in night

    for name in ("crash", "undrawn", "ended", "killed", "late"):
        (examples / f"{name}.py").unlink()
    (pages / "gone.md").write_text("a page of an example that is gone")
    assert make_gallery.main([*folders, "one"]) == 0
    assert capsys.readouterr().out == ""  # nothing was run again
    assert {path.name for path in pages.glob("*.*")} == {
        "index.md",
        "one-dark.svg",
        "one.md",
        "one.svg",
        "two.md",
        ".cache",
    }
    example = make_gallery.read_example(examples / "one.py")
    assert make_gallery.cached(example, pages)
    assert not make_gallery.cached(make_gallery.read_example(examples / "two.py"), pages)  # it is tried again
    example.path.write_text(SCRIPT.replace("NAME", "one").replace("number: 1", "number: 2"))
    assert not make_gallery.cached(example, pages)


def test_what_is_late(tmp_path: Path) -> None:
    one, ray = (make_gallery.read_example(make_gallery.EXAMPLES / f"{name}.py") for name in ("binary", "ray_engine"))
    assert make_gallery.problem(one, tmp_path, 180, None) == "it ran longer than 180 s"
    assert make_gallery.problem(ray, tmp_path, 120, None) == ""
    assert "longer than 120 s" in (tmp_path / "skipped").read_text()
    assert make_gallery.problem(one, tmp_path, None, 0) == ""
    assert set(make_gallery.MAY_BE_LATE) <= {path.stem for path in FILES}


def test_nothing_is_started_after_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_gallery, "TOTAL", -1)
    example = make_gallery.read_example(make_gallery.EXAMPLES / "binary.py")
    assert "was not started" in make_gallery.run_all([example], 2, tmp_path)["binary"]


def test_the_docstring_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text('"""Only a title."""\n')
    with pytest.raises(ValueError, match="title, lesson"):
        make_gallery.read_example(path)
    path.write_text(SCRIPT.replace("Measure", "Cooking"))
    with pytest.raises(ValueError, match="Cooking"):
        make_gallery.read_example(path)
