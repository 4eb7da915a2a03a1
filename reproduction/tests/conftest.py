"""What the tests of the published study share: the paper's figures, and what a published file may hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avuc.report.study.paper_comparison import Published, read_published

PICTURES = (b"\x89PNG\r\n", b"iVBORw0KGgo", b"JFIF\0", b"/9j/4AAQ", b"WEBPVP8")


@pytest.fixture(scope="session")
def home() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def paper_file(home: Path) -> Path:
    return home / "reproduction" / "results" / "paper" / "tables.csv"


@pytest.fixture(scope="session")
def printed(paper_file: Path) -> list[Published]:
    return read_published(paper_file)


@pytest.fixture(scope="session")
def published_studies(home: Path) -> dict[str, Any]:
    """The committed studies of CIFAR-10 by name, read once: it takes seconds. Tests only read them."""
    from make_reproduction import read_studies

    return read_studies(home / "reproduction" / "results" / "cifar10")


@pytest.fixture(scope="session")
def has_pictures() -> Callable[[Path], bool]:
    """Whether a study's file, or what is still in its log, holds a picture."""

    def look(path: Path) -> bool:
        content = _everything(path)
        return any(sign in content for sign in PICTURES)

    return look


@pytest.fixture(scope="session")
def check_clean(has_pictures: Callable[[Path], bool]) -> Callable[[Path], None]:
    """Fails for a published folder with pictures, or with paths of the machine that it was made on."""

    def check(folder: Path) -> None:
        assert not has_pictures(folder / "study.sqlite"), folder
        content = _everything(folder / "study.sqlite")
        assert b"/somewhere/private" not in content
        assert not re.search(rb'(root|released|weights) = "[^"]+/', content)
        assert not list(folder.glob("study.sqlite-*"))
        recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
        assert not re.search(r'"(/|[A-Za-z]:\\|~)', recipe)

    return check


def _everything(path: Path) -> bytes:
    log = path.with_name(path.name + "-wal")
    return path.read_bytes() + (log.read_bytes() if log.exists() else b"")
