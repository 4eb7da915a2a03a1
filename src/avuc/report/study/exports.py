"""Write every figure as SVG and PNG, and every table as CSV, LaTeX and Markdown."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from avuc.core.atomic import atomic_path, write_text
from avuc.core.errors import InputError
from avuc.core.progress import track
from avuc.core.text import mark
from avuc.report.study.figures import all_figures, saved
from avuc.report.study.result_arrays import Results
from avuc.report.study.tables import all_tables

LONGEST = 160  # bytes of a file name; most file systems allow 255


def write_tables(results: Results, folder: str | Path) -> list[Path]:
    """Write folder/NAME.csv, .tex and .md of every table; return the paths."""
    out = _folder(folder)
    written = []
    for table in all_tables(results):
        for ending, text in ((".csv", table.csv()), (".tex", table.latex()), (".md", table.markdown())):
            written.append(out / (table.name + ending))
            write_text(written[-1], text)
    return written


def write_figures(results: Results, folder: str | Path, *, progress: bool = True) -> list[Path]:
    """Write folder/NAME.svg and .png of every figure; return the paths."""
    out = _folder(folder)
    written = []
    figures = list(all_figures(results))
    files = file_names([name for name, _, _ in figures])
    for name, size, paint in track(figures, "drawing") if progress else figures:
        for kind, content in saved(name, size, paint).items():
            written.append(out / f"{files[name]}.{kind}")
            with atomic_path(written[-1]) as path:
                path.write_bytes(content)
    return written


def file_names(names: Sequence[str]) -> dict[str, str]:
    """Return a safe file name for each figure. All names differ, even on file systems that ignore case.

    >>> file_names(["box-ece", "entropy-a:b", "entropy-A b"])
    {'box-ece': 'box-ece', 'entropy-a:b': 'entropy-a-b-13e62b62', 'entropy-A b': 'entropy-A-b-0dc4a7f3'}
    """
    safe = {name: re.sub(r"[^\w.-]+", "-", name).strip("-.") or "figure" for name in names}
    counts = Counter(unicodedata.normalize("NFC", short).casefold() for short in safe.values())
    unique = {}
    for name, short in safe.items():
        if len(short.encode()) > LONGEST or counts[unicodedata.normalize("NFC", short).casefold()] > 1:
            short = f"{short[: LONGEST // 4]}-{mark(name)}"
        unique[name] = short
    return unique


def _folder(folder: str | Path) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be a folder ({error.strerror}); choose another --out") from error
    return path
