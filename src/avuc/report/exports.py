"""Beside the page: every figure as SVG and PNG, every table as CSV, LaTeX and Markdown."""

from __future__ import annotations

import re
from pathlib import Path

from avuc.atomic import atomic_path, write_text
from avuc.errors import InputError
from avuc.progress import track
from avuc.report.figures import all_figures, saved
from avuc.report.results import Results
from avuc.report.tables import all_tables

__all__ = ["write_figures", "write_tables"]


def write_tables(results: Results, folder: str | Path) -> list[Path]:
    """folder/NAME.csv, .tex and .md."""
    out = _folder(folder)
    written = []
    for table in all_tables(results):
        for ending, text in ((".csv", table.csv()), (".tex", table.latex()), (".md", table.markdown())):
            written.append(out / (_slug(table.name) + ending))
            write_text(written[-1], text)
    return written


def write_figures(results: Results, folder: str | Path, *, progress: bool = True) -> list[Path]:
    """folder/NAME.svg and .png."""
    out = _folder(folder)
    written = []
    figures = list(all_figures(results))
    for name, size, paint in track(figures, "drawing") if progress else figures:
        for kind, content in saved(name, size, paint).items():
            written.append(out / f"{_slug(name)}.{kind}")
            with atomic_path(written[-1]) as path:
                path.write_bytes(content)
    return written


def _slug(name: str) -> str:
    """A file's name, whatever a data set is called."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "figure"


def _folder(folder: str | Path) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be a folder ({error.strerror}); choose another --out") from error
    return path
