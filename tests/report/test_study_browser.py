"""The report in a real browser: nothing complains, nothing is asked of the network, everything does what it says."""

from __future__ import annotations

import base64
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from avuc.cli import main
from avuc.report.study.page import write_study_page
from avuc.report.study.pooled import by_confidence, by_entropy, diagram
from avuc.report.study.results import CLEAN


@pytest.fixture
def page(new_page, page_file):
    return new_page(page_file)


def numbers(page):
    keys = ("n-ac", "n-au", "n-ic", "n-iu")
    return {key: int(page.js(f"byId('{key}').firstChild.textContent")) for key in keys}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_opens_in_silence(new_page, page_file, width, dark):
    page = new_page(page_file, width=width, dark=dark)
    assert page.complaints() == []
    assert page.requests() == [page_file.resolve().as_uri()]
    assert page.js("document.documentElement.scrollWidth") == width
    # no chart is empty, none sticks out of its card
    assert (
        page.js(
            "[...document.querySelectorAll('[data-plot]')]"
            ".filter(p => !p.closest('[hidden]') && !p.querySelector('svg')).length"
        )
        == 0
    )
    assert (
        page.js(
            "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().right > "
            "s.closest('figure').getBoundingClientRect().right + 1).length"
        )
        == 0
    )


def test_dark_and_light_differ(new_page, page_file):
    colours = [
        new_page(page_file, dark=dark).js("getComputedStyle(document.body).backgroundColor") for dark in (False, True)
    ]
    assert colours == ["rgb(251, 251, 250)", "rgb(20, 23, 27)"]
    mark = "[...document.querySelectorAll('[data-chart=reliability] [stroke]')].find(e => e.getAttribute('stroke') === "
    stroke = f"getComputedStyle({mark}'var(--m0)')).stroke"
    lines = [new_page(page_file, dark=dark).js(stroke) for dark in (False, True)]
    assert lines == ["rgb(0, 114, 178)", "rgb(90, 180, 234)"]


def test_hostile_names_are_text(page, results):
    assert page.js("document.title") == "<i>study</i> – avuc"
    shown = page.js("[...document.querySelectorAll('#methods label')].map(l => l.textContent)")
    assert shown == results.names
    assert page.js("document.querySelectorAll('main i, main b > script, [onerror]').length") == 0
    scripts = page.js("document.querySelectorAll('script:not([type])').length")
    assert scripts == 6  # the page's own
    assert page.js("[...document.querySelectorAll('img')].every(i => i.src.startsWith('data:image/png;base64,'))")
    page.choose("avu-threshold", 400)
    told = page.js("byId('mistakes').textContent")
    assert "<b>dog</b>" in told
    assert "</script><script>alert(3)</script>" in told
    assert page.complaints() == []


def test_methods_filter_every_chart(page):
    maps = "document.querySelectorAll('[data-chart=maps] figure').length"
    lines = "document.querySelectorAll('[data-chart=accuracyConfidence] g[aria-label=line]').length"
    assert (page.js(maps), page.js(lines)) == (3, 3)
    page.js("document.querySelectorAll('#methods input')[1].click()")
    page.settled()
    assert (page.js(maps), page.js(lines)) == (2, 2)
    page.js("byId('none').click()")
    page.settled()
    assert page.js(maps) == 0
    page.js("byId('all').click()")
    page.settled()
    assert (page.js(maps), page.js(lines)) == (3, 3)
    assert page.complaints() == []


def test_metric_shift_and_intensity_change_what_they_should(page, results):
    def cell_text():
        return page.js("document.querySelector('[data-chart=maps] svg g[aria-label=text] text').textContent")

    shift, level = results.shifts[0], results.severities[0]
    for metric in ("ece", "nll"):
        page.choose("metric", metric)
        assert float(cell_text()) == pytest.approx(results.mean(metric, (shift, level))[0], abs=6e-4)
    assert "NLL" in page.js("document.querySelector('[data-chart=main] h3').textContent")
    before = page.js("document.querySelector('[data-chart=reliability] svg').outerHTML")
    boxes = page.js("document.querySelector('[data-chart=box-ece] svg').outerHTML")
    page.choose("severity", 1)
    assert page.js("document.querySelector('[data-set]').textContent") == "all shifts at intensity 1"
    assert page.js("document.querySelector('[data-chart=reliability] svg').outerHTML") != before
    assert page.js("document.querySelector('[data-chart=box-ece] svg').outerHTML") == boxes
    page.choose("shift", "contrast")
    assert page.js("document.querySelector('[data-set]').textContent") == "contrast at intensity 1"
    assert page.js("document.querySelector('[data-chart=box-ece] svg').outerHTML") != boxes
    page.choose("shift", "ood:photographs")
    assert page.js("byId('severity').disabled") is True
    assert page.js("document.querySelector('[data-other]').textContent") == "photographs"
    assert page.complaints() == []


def test_curves_are_those_of_python(page, results):
    """Two ways to the same numbers: NumPy for the exported figures, JavaScript for the page."""
    cells = [(shift, 5) for shift in results.shifts]
    top = math.log(4)
    for method in range(3):
        found = page.js(f"byConfidence({method}, chosenCells())")
        _, accuracy, share = by_confidence(results, method, cells)
        assert [row["count"] for row in found] == pytest.approx(share)
        assert [row["accuracy"] for row in found if row["accuracy"] is not None] == pytest.approx(
            accuracy[np.isfinite(accuracy)]
        )
        found = page.js(f"byEntropy({method}, chosenCells())")
        thresholds, certain, flagged = by_entropy(results, method, cells, top)
        assert [row["at"] for row in found] == pytest.approx(thresholds)
        assert [row["pui"] for row in found] == pytest.approx(flagged)
        assert [row["pac"] for row in found if row["pac"] is not None] == pytest.approx(certain[np.isfinite(certain)])
        found = page.js(f"diagram('r', {method}, [cellAt('clean', 0)])")
        bins = diagram(results, "reliability", method, [CLEAN])
        assert [row["n"] for row in found] == bins.rows.tolist()
        assert [row["stated"] for row in found] == pytest.approx(bins.stated, rel=1e-3)
        assert [row["observed"] for row in found] == pytest.approx(bins.observed, rel=1e-3)


def test_boxes_are_those_of_numpy(page, results):
    found = {(box["m"], box["level"]): box for box in page.js("boxSummary(boxRows('nll'))")}
    for method in range(3):
        values = results.shifted("nll", 5)[method].ravel()
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
        box, reach = found[method, 5], 1.5 * (high - low)
        assert (box["low"], box["median"], box["high"]) == pytest.approx((low, median, high), rel=1e-3)
        inside = values[(values >= low - reach) & (values <= high + reach)]
        assert (box["from"], box["to"]) == pytest.approx((inside.min(), inside.max()), rel=1e-3)
        assert len(box["outliers"]) == len(values) - len(inside)
        assert box["count"] == len(values)


def test_avu_explorer(page, results):
    """Each position of the slider: the four cells, counted again from what the study kept."""
    kept = results.examples[0, results.set_index[CLEAN]]
    words = np.frombuffer(base64.b64decode(kept["samples"]), "<u2")
    share, right = (words >> 1) / 32767, (words & 1).astype(bool)
    seen = set()
    for position in (0, 40, 200, 400):
        page.choose("avu-threshold", position)
        certain = share <= position / 400
        expected = [right & certain, right & ~certain, ~right & certain, ~right & ~certain]
        ac, au, ic, iu = (int(cell.sum()) for cell in expected)
        assert numbers(page) == {"n-ac": ac, "n-au": au, "n-ic": ic, "n-iu": iu}
        assert float(page.js("byId('v-avu').textContent")) == pytest.approx((ac + iu) / len(share), abs=6e-4)
        told = page.js("byId('v-pui').textContent")
        assert told == f"{iu / (ic + iu):.1%}"
        pictures = sum(one["entropy"] <= position / 400 * math.log(4) for one in kept["mistakes"])
        assert page.js("document.querySelectorAll('#mistakes img').length") == pictures
        seen.add(page.js("document.querySelector('[data-chart=avu] g[aria-label=rule] line').getAttribute('x1')"))
    assert len(seen) == 4
    before = numbers(page)
    page.choose("avu-method", 2)
    assert numbers(page) != before
    page.choose("avu-set", page.js("byId('avu-set').options[1].value"))
    assert "intensity 5" in page.js("byId('avu-set').selectedOptions[0].textContent")
    assert page.complaints() == []


def test_temperature_moves_the_diagram(page, results):
    ones = page.js("byId('t-value').textContent")
    assert ones == "= 1.00"
    ece = float(page.js("byId('v-ece').textContent"))
    # at T = 1 the diagram is the stored one; 160 rows of the first seed
    assert ece == pytest.approx(results.at("ece", CLEAN)[0, 0], abs=1e-3)
    assert float(page.js("byId('v-nll').textContent")) == pytest.approx(results.at("nll", CLEAN)[0, 0], abs=1e-3)
    diagrams = []
    for position in (0, 12, 20, 30):
        page.choose("t-slider", position)
        diagrams.append(page.js("document.querySelector('[data-chart=tempered] svg').outerHTML"))
    assert len(set(diagrams)) == 4
    assert page.js("byId('t-slider').getAttribute('aria-valuetext')") == "temperature 8.00"
    page.choose("t-set", "strongest shifts")
    assert page.complaints() == []


def test_cell_opens_its_details_by_press_and_by_keyboard(page, results):
    page.js("document.querySelector('[data-chart=maps] rect[tabindex]').dispatchEvent(new MouseEvent('click'))")
    assert page.js("byId('details').open") is True
    assert page.js("byId('details-title').textContent") == "Vanilla: gaussian noise, intensity 1"
    rows = page.js("[...document.querySelectorAll('#details-body tr')].map(r => r.cells[0].textContent)")
    assert len(rows) == len(results.metrics)
    page.key("Escape")
    page.until("byId('details').open === false")
    page.js("document.querySelectorAll('[data-chart=maps] figure')[1].querySelector('rect[tabindex=\"0\"]').focus()")
    page.key("ArrowRight")
    page.key("ArrowDown")
    page.key("Enter")
    page.until("byId('details').open")
    assert page.js("byId('details-title').textContent") == f"{results.names[1]}: contrast, intensity 5"
    # one stop for Tab in each map
    assert page.js("document.querySelectorAll('[data-chart=maps] rect[tabindex=\"0\"]').length") == 3
    assert page.complaints() == []


def test_reachable_and_named(page):
    """Every control has a name, every chart a label, every picture a text; headings do not skip a level."""
    tree = page.send("Accessibility.getFullAXTree")["nodes"]
    for node in tree:
        role = node.get("role", {}).get("value")
        if role in ("combobox", "slider", "checkbox", "button", "image", "img") and not node.get("ignored"):
            assert node.get("name", {}).get("value"), node
    levels = page.js("[...document.querySelectorAll('main h1, main h2, main h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    # but for the colour keys of Plot's own legends
    charts = "[...document.querySelectorAll('[data-plot] svg')].filter(s => s.clientWidth > 100)"
    assert page.js(f"{charts}.every(s => s.hasAttribute('aria-label'))")


def test_tab_reaches_the_controls(page):
    found = []
    for _ in range(14):
        page.key("Tab")
        found.append(page.js("document.activeElement.id || document.activeElement.tagName"))
    assert found[0] == "A"  # skips to the charts
    assert {"all", "none", "metric", "shift", "severity"} <= set(found)


def test_print(page):
    """Everything is drawn, tables are open, controls are gone; a page has no more than it can hold."""
    page.send("Emulation.setEmulatedMedia", media="print")
    page.js("window.dispatchEvent(new Event('beforeprint'))")
    assert page.js("stale.size") == 0
    assert page.js("[...document.querySelectorAll('details.table')].every(d => d.open)")
    assert page.js("getComputedStyle(byId('controls')).display") == "none"
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
    data = base64.b64decode(page.send("Page.printToPDF", printBackground=False, preferCSSPageSize=True)["data"])
    assert data.startswith(b"%PDF")
    assert 4 <= data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") <= 40
    assert page.complaints() == []


def test_resizing_draws_again(page):
    page.send("Emulation.setDeviceMetricsOverride", width=500, height=800, deviceScaleFactor=1, mobile=False)
    page.until("document.querySelector('[data-chart=main] svg').clientWidth < 500 && stale.size === 0")
    assert page.js("document.documentElement.scrollWidth") == 500


def test_nothing_but_the_pages_own_scripts_may_run(page):
    """Even a script that got into the page would not run."""
    page.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.broken = 1'}))")
    page.js("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = 2\">')")
    assert page.js("window.broken") is None
    assert any("Content Security Policy" in text for text in page.complaints())
    # the browser refused to ask for the picture
    assert [url for url in page.requests() if not url.endswith(("report.html", "/x"))] == []


def test_all_shifts_are_those_that_all_methods_have(tmp_path, new_page, results):
    """The last method has no results for contrast: curves of all shifts leave it out for every method."""
    some = {name: values.copy() for name, values in results.values.items()}
    for values in some.values():
        values[2, :, [results.set_index["contrast", level] for level in (1, 5)]] = np.nan
    write_study_page(replace(results, values=some), tmp_path / "page.html")
    page = new_page(tmp_path / "page.html")
    told = "2 of 3 shifts, those that all methods have, at intensity 5"
    assert page.js("document.querySelector('[data-set]').textContent") == told
    sets = [("gaussian_noise", 5), ("fog", 5)]
    assert page.js("chosenCells()") == [results.set_index[key] for key in sets]
    found = page.js("byConfidence(0, chosenCells())")
    assert [row["count"] for row in found] == pytest.approx(by_confidence(results, 0, sets)[2])
    page.choose("shift", "contrast")
    assert page.js("chosenCells()") == [results.set_index["contrast", 5]]
    assert page.complaints() == []


def test_beta_ablation_and_training(tmp_path, new_page, synthetic_study):
    """Three weights of AvUC: a line for each intensity, with a point for each weight."""
    synthetic_study(tmp_path / "study", ("Vanilla", "TS", "AvUC 2", "AvUC 3", "AvUC 4"), seeds=(0,))
    assert main(["report", str(tmp_path / "study"), "--out", str(tmp_path / "page.html"), "--no-exports"]) == 0
    page = new_page(tmp_path / "page.html")
    assert page.js("byId('ablation').hidden") is False
    assert page.js("document.querySelectorAll('[data-chart=ablation] g[aria-label=dot] circle').length") == 3 * 3
    assert page.js("document.querySelectorAll('[data-chart=ablation] g[aria-label=line] path').length") == 3
    page.choose("metric", "nll")
    assert page.js("document.querySelector('[data-chart=ablation] h3').textContent") == "NLL by β"
    before = page.js("document.querySelector('[data-chart=training] svg').outerHTML")
    page.choose("quantity", "accuracy")
    assert page.js("document.querySelector('[data-chart=training] svg').outerHTML") != before
    # four methods are trained; the fifth has the first one's model
    assert page.js("document.querySelectorAll('[data-chart=training] g[aria-label=line]').length") == 4
    assert page.complaints() == []
