"""Labels of charts in a real browser: inside their chart, whole epochs, names of shifts that are not cut off."""

from __future__ import annotations

import pytest

from avuc.report.single.page import tables_page
from avuc.report.study.page import write_study_page
from avuc.report.study.results import read_results
from avuc.study.store.store import Store

from .conftest import Page

ANCHORS = """(() => {
  const peak = (at) => [[...Array(50).keys()].map((n) => (n === at ? 90 : 1))];
  const before = histogram;
  histogram = (_, m, cells) => peak(cells[0] === cellAt("clean", 0) ? 5 : 49);
  const svg = density(300, 0);
  histogram = before;
  const texts = [...svg.querySelectorAll("text")].filter((t) => ["clean", "other"].includes(t.textContent));
  return texts.map((t) => [t.textContent, t.closest("[text-anchor]").getAttribute("text-anchor")]);
})()"""
ROOM = """(() => {
  const name = "my_package.shifts:a_shift_of_mine_with_a_long_name";
  D.shift_names[name] = "a shift of mine with a long name";
  D.shifts = [name];
  const { svg } = map(340, "ece", 0, [0, 1]);
  document.body.append(svg);
  const left = svg.getBoundingClientRect().left;
  const label = [...svg.querySelectorAll("text")].find((t) => t.textContent.startsWith("a shift"));
  return [label.textContent, label.getBoundingClientRect().left >= left];
})()"""


def test_a_label_at_the_right_edge_is_left_of_its_peak(new_page, page_file):
    assert dict(new_page(page_file).js(ANCHORS)) == {"clean": "start", "other": "end"}


def test_epochs_are_whole_numbers(new_page, page_file):
    ticks = (
        "[...trainingChart(900).querySelectorAll('[aria-label=\"x-axis tick label\"] text')].map(t => t.textContent)"
    )
    labels = new_page(page_file).js(ticks)
    assert labels
    assert all("." not in label for label in labels), labels


def test_a_long_name_fits_beside_a_heatmap(new_page, page_file):
    text, inside = new_page(page_file).js(ROOM)
    assert text == "a shift of mine with a …"
    assert inside


@pytest.mark.parametrize("width", [400, 1100])
def test_a_long_class_name_leaves_the_figures_on_the_screen(browser, tmp_path, width):
    text = tables_page("t", "s", [], [], [("Coverage", ["class", "rows"], [("a" * 120, "500"), ("cat", "20")])])
    (tmp_path / "page.html").write_text(text)
    page = Page(browser, width)
    page.send("Page.navigate", url=(tmp_path / "page.html").as_uri())
    page.until("document.readyState === 'complete' && document.querySelector('td') !== null")
    assert page.js("document.querySelector('td').getBoundingClientRect().right") <= width
    page.close()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_line_and_box_has_the_colour_of_its_method(new_page, synthetic_study, tmp_path, count):
    """Of two methods both were black, on a dark page invisible."""
    synthetic_study(tmp_path, ("first", "second", "third")[:count])
    path = tmp_path / "page.html"
    store = Store(tmp_path, create=False)
    write_study_page(read_results(store), path)
    store.close()
    page = new_page(path)
    wanted = {f"var(--m{number})" for number in range(count)}
    for chart, attribute in (("accuracyConfidence", "stroke"), ("box-ece", "fill"), ("training", "stroke")):
        part = "[aria-label=bar] rect" if attribute == "fill" else "[aria-label=line] path"
        of_part = f"e.getAttribute('{attribute}') || e.closest('[{attribute}]').getAttribute('{attribute}')"
        found = page.js(f"[...document.querySelectorAll('[data-chart={chart}] {part}')].map(e => {of_part})")
        assert found, chart
        # the second method has no training of its own
        assert set(found) == wanted - ({"var(--m1)"} if chart == "training" else set()), chart
