"""README's Python, every docstring example and every file in examples/ run; tests/docs runs the pages."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import avuc

ROOT = Path(__file__).parent.parent
README = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(avuc.__path__, "avuc.")
    if module.name not in ("avuc.__main__", "avuc.study.engines.ray")
)
# what the oldest versions (constraints-oldest.txt) lack: the module, its version, the reason
NEEDS = {
    "avuc.trackers.tensorboard": ("tensorboard", None, "its example needs tensorboard"),
    "mlflow_tracking.py": ("mlflow", None, "needs mlflow"),
    "onnx_serving.py": ("torch", "2.11", "the exporter of older versions refuses batches of any size for a last layer"),
}


def need(name: str) -> None:
    if name in NEEDS:
        module, version, reason = NEEDS[name]
        pytest.importorskip(module, version, reason=reason)


@pytest.mark.parametrize("block", README, ids=range(len(README)))
def test_readme(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {})


def test_readme_has_examples() -> None:
    assert len(README) >= 3


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    need(name)
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


# what `python FILE` does
SCRIPT = """
import os, runpy, sys
del sys.argv[0]
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example_file(path: Path, tmp_path: Path, fresh_python: Any) -> None:
    need(path.name)
    ran = fresh_python(SCRIPT, path, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_study_of_my_own_model(tmp_path: Path, fresh_python: Any) -> None:
    """The recipe of the folder, made shorter, and its Python file as it is."""
    folder = tmp_path / "study"
    shutil.copytree(
        ROOT / "examples" / "study_of_my_own_model", folder, ignore=shutil.ignore_patterns("__pycache__", "out")
    )
    short = ("study.seeds=[0]", "study.severities=[5]", "train.epochs=2", "train.milestones=[]", "train.factors=[]")
    changes = ["--only", "Plain", *(part for change in short for part in ("--set", change))]
    command = "import runpy, sys; sys.path.insert(0, ''); runpy.run_module('avuc', run_name='__main__')"
    study = fresh_python(command, "study", "recipe.toml", "--device", "cpu", "--out", "out", *changes, cwd=folder)
    assert study.returncode == 0, study.stderr
    assert "smudge:smudge" in (folder / "out" / "report.html").read_text(encoding="utf-8")
    ran = fresh_python(SCRIPT, "from_python.py", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("ECE") == 9


def test_readme_links_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def named_pages() -> list[tuple[str, str]]:
    """Pages of docs/ that programs and texts name outside of links, such as in messages and comments."""
    folders = [ROOT / name for name in ("src", "docs", "examples", "benchmarks", "reproduction")]
    files = [ROOT / "Makefile", *ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.py"))]
    found = [(path, re.findall(r"\bdocs/[\w/*-]+\.md\b", path.read_text(encoding="utf-8"))) for path in files]
    return [(path.name, name) for path, names in found for name in names if not name.startswith("docs/gallery")]


def test_named_pages_exist() -> None:
    found = named_pages()
    assert len(found) > 20
    assert [(file, name) for file, name in found if not any(ROOT.glob(name))] == []


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "reproduction").glob("*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^(```|    ).*", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages(page: Path) -> None:
    """Every link to a file exists, and every link to a heading has that heading."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), target
