"""Names in the head of a table are as harmless as those in its rows, in every form."""

from __future__ import annotations

import csv
import io

import pytest

from avuc.report.table import Entry, Table


def table(name: str) -> Table:
    return Table("t", "A title", "A caption.", ["method", name], [["plain", Entry(0.5)], [name, Entry(0.4, best=True)]])


@pytest.mark.parametrize("name", ["=1+1", "+A1", "-2", "@SUM(A1)", " =1", "\t=1", "\r@x", "\x1b]0;owned\x07"])
def test_no_cell_of_a_csv_is_a_formula_or_a_terminal_escape(name):
    text = table(name).csv()
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            assert cell.lstrip()[:1] not in ("=", "+", "-", "@"), cell
            assert cell.isprintable(), cell


@pytest.mark.parametrize("name", ["**x** | y", "<b>x</b>", "[x](http://a)"])
def test_names_do_not_become_markdown(name):
    text = table(name).markdown()
    assert name not in text
    assert "\\" + name[0] in text


def test_latex_prints_the_signs_of_a_name():
    """In the usual encoding of LaTeX's fonts, < is printed as ¡, > as ¿ and | as a dash."""
    text = table("a<b|c>d & 5% _x_ #1 {y} ~\\").latex()
    wanted = r"a\textless{}b\textbar{}c\textgreater{}d \& 5\% \_x\_ \#1 \{y\} \textasciitilde{}\textbackslash{}"
    assert text.count(wanted) == 2
