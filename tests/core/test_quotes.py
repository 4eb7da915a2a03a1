"""Quotes in text tables: files that csv writes are read as before, and stray quotes never join rows."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avuc.core.quotes import plain_rows, quotes_are_text, tables_rows

TEXTS = st.text(alphabet='ab"\n,\t 1', max_size=12)


def is_number(cell):
    return cell.replace(".", "", 1).isdigit()


def judged(text, delimiter=","):
    def lines():
        return io.StringIO(text, newline="")

    header = next(csv.reader(lines(), delimiter=delimiter))
    return quotes_are_text(lines, delimiter, len(header), tables_rows(delimiter, is_number))


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.sampled_from(",\t"), st.sampled_from([0, 1]))
def test_tables_of_a_csv_writer_are_quoted(texts, delimiter, quoting):
    """The score comes last, so that no piece of a text stands where all lines have a number."""
    out = io.StringIO(newline="")
    rows = [["text", "a", "b"], *([text.replace(delimiter, " "), "0.25", "0.75"] for text in texts)]
    csv.writer(out, delimiter=delimiter, quoting=quoting).writerows(rows)
    assert not judged(out.getvalue(), delimiter)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(alphabet='ab" ', min_size=1, max_size=8), min_size=1, max_size=6), st.sampled_from(",\t"))
def test_lines_without_quoting_stay_rows(texts, delimiter):
    text = "".join(delimiter.join(row) + "\n" for row in [["text", "p"], *([text, "0.5"] for text in texts)])
    if judged(text, delimiter):
        rows = [cells for _, cells in plain_rows(io.StringIO(text, newline=""), delimiter)]
    else:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    assert [row[1] for row in rows[1:]] == ["0.5"] * len(texts)


def test_lines_that_are_neither():
    with pytest.raises(ValueError, match="line 3: a double quote opens a cell that goes on to line 4, over whole rows"):
        judged('text,p\n"a, b",0.5\n"c,0.5\nd",0.5\n')
    with pytest.raises(ValueError, match="line 2: a double quote opens a cell that does not end as it should"):
        judged('text,p\n"a" b,0.5\n"c, d",0.5\n')
    with pytest.raises(ValueError, match=r"line 2: .* does not end as it should up to line 3"):
        judged('text\n"a\nb\n')


def test_texts_whose_lines_look_like_rows():
    """Where a csv writer has evidently set the quotes, a text such as "Rated,1 ⏎ fine,0" is one cell, as it was."""
    texts = ["Rated,1\nnever again", *[f"well, {word}" for word in "abcdefghij"]]
    for quoting, some in ((csv.QUOTE_MINIMAL, texts), (csv.QUOTE_ALL, texts[:1]), (csv.QUOTE_NONNUMERIC, texts[:3])):
        out = io.StringIO(newline="")
        csv.writer(out, quoting=quoting).writerows([["text", "label"], *([text, 0] for text in some)])
        assert not judged(out.getvalue())
    with pytest.raises(ValueError, match="over whole rows"):  # as often a stray quote as a quoted cell
        judged('text,p\n"a, b",1\n"c,1\nd",0\n')
    assert judged('text,p\n"c,1\nd",0\ne,1\n')
