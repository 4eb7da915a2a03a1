"""What a project needs besides its code agrees with the code: versions, oldest dependencies, hooks, workflow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import avuc

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "src/avuc/__init__.py"
    assert yaml.safe_load(text("CITATION.cff"))["version"] == avuc.__version__
    assert f"## [{avuc.__version__}]" in text("CHANGELOG.md")


def test_no_page_or_source_has_marks_of_a_conflict() -> None:
    """A page with both sides of a conflict is valid Markdown."""
    found = [
        path
        for part in ("docs", "src", "benchmarks")
        for kind in ("md", "py")
        for path in (ROOT / part).rglob(f"*.{kind}")
    ]
    assert len(found) > 100
    marked = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert not [str(path) for path in (*found, *ROOT.glob("*.md")) if marked.search(path.read_text(encoding="utf-8"))]


def test_the_oldest_constraints_are_the_lower_bounds() -> None:
    """A new lower bound without its line here would never be tested."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", text("constraints-oldest.txt"), re.MULTILINE))
    extras = PYPROJECT["project"]["optional-dependencies"]
    names = re.search(r"avuc\[(.*)\]", extras["oldest"][0])
    assert names is not None
    listed = [*PYPROJECT["project"]["dependencies"], *(one for key in names[1].split(",") for one in extras[key])]
    for requirement in listed:
        name, _, bound = requirement.partition(">=")
        pinned = [int(part) for part in pins[name].split(".")]
        wanted = [int(part) for part in bound.split(".")]
        assert pinned[: len(wanted)] == wanted, requirement
        assert not any(pinned[len(wanted) :]) or name in FIRST_WORKING, requirement


# first version at or above the bound that exists for Python 3.11
FIRST_WORKING: set[str] = set()


def test_the_workflow_calls_targets_that_exist() -> None:
    jobs = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]
    assert set(jobs) == {"lint", "test", "oldest", "wheel", "docs"}
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {target for command in commands for target in re.findall(r"^make (\S+)", command)}
    assert called == {"lint", "test", "test-oldest", "docs"}
    assert called <= set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))


def test_the_hooks_run_what_is_there() -> None:
    hooks = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff", "ruff-format", "mypy", "structure"}
    for hook in hooks:
        for word in hook["entry"].split():
            if word.startswith("tests/"):
                assert (ROOT / word).is_file(), word


def test_the_tour_names_files_that_are_there() -> None:
    tour = text("CONTRIBUTING.md").partition("## A tour of the packages")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+(?:/|\.py))`", tour)
    assert len(named) > 15
    for name in named:
        homes = [ROOT / "src" / "avuc" / name, ROOT / "src" / "avuc" / "study" / name]
        assert any(home.exists() for home in homes), name
