"""Every page of the site in a real browser: in silence, without a network, on a phone; and no link is broken."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import make_api
import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "site"
# text below 14 px, except in pictures and marks
SMALLEST = """(() => {
  const small = [], walk = document.createTreeWalker(document.querySelector('article'), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
    if (!text || !node.offsetParent || node.closest('svg, sup, sub, .headerlink, .doc-labels')) continue;
    const size = parseFloat(getComputedStyle(node).fontSize);
    if (size < 14) small.push(`${size} px: ${text.slice(0, 40)}`);
  }
  return small.slice(0, 3);
})()"""
CONTEXT = "Runtime.executionContextCreated"
WIDE = """[...document.querySelectorAll('article *')].filter(e => {
  const box = e.getBoundingClientRect();
  if (box.right <= innerWidth + 1 || !box.width) return false;
  for (let up = e; up; up = up.parentElement) {
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)) return false;
  }
  return true;
}).slice(0, 3).map(e => e.outerHTML.slice(0, 120))"""


def newest(folder: Path, *patterns: str) -> float:
    """When the last of these files was written; what Python compiles while it runs is no source."""
    found = [path for pattern in patterns for path in folder.rglob(pattern) if "__pycache__" not in path.parts]
    return max((path.stat().st_mtime for path in found if path.is_file()), default=0.0)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """site/ as `make docs` has left it, or built anew if a source is newer."""
    sources = max(newest(ROOT / "docs", "*.*"), newest(ROOT / "src", "*.py"), (ROOT / "mkdocs.yml").stat().st_mtime)
    if (BUILT / "sitemap.xml").is_file() and (BUILT / "sitemap.xml").stat().st_mtime > sources:
        return BUILT
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs mkdocs and this environment has none (make setup installs it)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def pages(site: Path) -> list[Path]:
    return [
        path for path in sorted(site.rglob("*.html")) if path.name != "404.html" and "demo-report" not in path.parts
    ]


class Links(HTMLParser):
    """The addresses that a page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("href", "src") and value and tag != "link":
                self.addresses.append(value)
            if key in ("id", "name") and value:
                self.anchors.add(value)


def broken(site: Path) -> list[str]:
    """Every link that leads nowhere, of all pages."""
    known = {page.resolve(): Links(page.read_text(encoding="utf-8")) for page in pages(site)}
    wrong = []
    for page, links in known.items():
        for address in links.addresses:
            parts = urllib.parse.urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else page
            anchor = urllib.parse.unquote(parts.fragment)
            missing = target in known and anchor and anchor not in known[target].anchors and not anchor.startswith("__")
            if not target.is_file() or missing:
                wrong.append(f"{page.relative_to(site.resolve())}: {address}")
    return wrong


def test_no_broken_link(site: Path) -> None:
    assert len(pages(site)) > 60
    assert broken(site) == []


def test_no_page_shows_its_source(site: Path) -> None:
    """Neither a comment, such as the mark of a figure that a table has cut, nor the attributes of a removed link."""
    shown = re.compile(r"&lt;!-- (?:figure|end|generated)|\{ ?\.md-button")
    assert [page.name for page in pages(site) if shown.search(page.read_text(encoding="utf-8"))] == []


def test_a_study_stands_once_in_the_navigation(site: Path) -> None:
    text = (site / "benchmarks.html").read_text(encoding="utf-8")
    listed = re.findall(r'href="(studies/[\w-]+\.html)" class="md-nav__link', text)
    assert sorted(listed) == sorted(f"studies/{path.stem}.html" for path in (ROOT / "docs" / "studies").glob("*.md"))


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there">b</a><img src="none.png">', encoding="utf-8")
    (tmp_path / "b.html").write_text('<p id="other"><a href="a.html#here">a</a>', encoding="utf-8")
    assert broken(tmp_path) == ["a.html: b.html#there", "a.html: none.png"]


def test_compiled_python_does_not_make_the_site_old(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "make_api.pyc").write_text("")
    assert newest(tmp_path, "*.*") == 0.0
    (tmp_path / "index.md").write_text("")
    assert newest(tmp_path, "*.*") > 0.0


def test_every_public_name_has_its_place_in_the_reference(site: Path) -> None:
    """Names that are packages have a page of their own; the names of `avuc` are shown where their package is."""
    modules = {module.__name__: vars(module)["__all__"] for module in make_api.public_modules()}
    anchors = {name: Links((site / "api" / f"{name}.html").read_text(encoding="utf-8")).anchors for name in modules}
    everywhere = {anchor.rpartition(".")[2] for found in anchors.values() for anchor in found}
    missing = [
        f"{module}.{name}"
        for module, names in modules.items()
        for name in names
        if f"{module}.{name}" not in modules
        and not (
            {f"{module}.{name}", f"{module}.{name}.{name}"} & anchors[module]
            or (module == "avuc" and name in everywhere)
        )
    ]
    assert missing == []


@pytest.fixture(scope="module")
def tools() -> ModuleType:
    """The browser of the report's tests."""
    spec = importlib.util.spec_from_file_location("browser", ROOT / "tests" / "report" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser(tools: ModuleType) -> Iterator[Any]:
    if tools.CHROMIUM is None:
        pytest.skip("needs a Chromium binary and this machine has none (apt-get install -y chromium)")
    opened = tools.Browser(tools.CHROMIUM)
    yield opened
    opened.close()


def visit(tab: Any, path: Path) -> None:
    tab.browser.events.clear()
    tab.send("Page.navigate", url=path.resolve().as_uri())
    address = json.dumps(path.resolve().as_uri())
    tab.until(f"location.href.split('#')[0] === {address} && document.readyState === 'complete'")


def test_every_page_on_a_phone(site: Path, tools: ModuleType, browser: Any) -> None:
    """One tab of 390 px for all of them."""
    tab, wrong = tools.Page(browser, 390, 844), {}
    for path in pages(site):
        visit(tab, path)
        outside = [url for url in tab.requests() if not url.startswith(site.resolve().as_uri())]
        found = {
            "complaints": tab.complaints(),
            "requests": outside,
            "small text": tab.js(SMALLEST),
            "too wide": tab.js(WIDE) if tab.js("document.documentElement.scrollWidth") > 390 else [],
        }
        if any(found.values()):
            wrong[path.relative_to(site).as_posix()] = {key: value for key, value in found.items() if value}
    tab.close()
    assert wrong == {}


@pytest.mark.parametrize("dark", [False, True])
def test_desktop(site: Path, tools: ModuleType, browser: Any, dark: bool) -> None:
    tab = tools.Page(browser, 1280, 900, dark=dark)
    visit(tab, site / "index.html")
    assert tab.complaints() == []
    assert tab.js("document.documentElement.scrollWidth") <= 1280
    shade = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    tab.until(f"({shade} < 200) === {str(dark).lower()}")
    tab.js("document.querySelector('iframe.report').scrollIntoView()")
    assert in_the_report(tab, "document.documentElement.dataset.ready !== undefined && stale.size === 0")
    assert in_the_report(tab, "document.querySelectorAll('svg').length > 3 && innerHeight > 300")
    assert tab.complaints() == []
    tab.close()


def in_the_report(tab: Any, expression: str) -> bool:
    """Whether something becomes true inside of the frame of the live report."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        frames = tab.send("Page.getFrameTree")["frameTree"].get("childFrames", [])
        wanted = {one["frame"]["id"] for one in frames if one["frame"]["url"].endswith("demo-report/report.html")}
        made = [one["params"]["context"] for one in tab.browser.events if one.get("method") == CONTEXT]
        for number in [one["id"] for one in made if one["auxData"]["frameId"] in wanted][-1:]:
            found = tab.send("Runtime.evaluate", expression=expression, returnByValue=True, contextId=number)
            if found["result"].get("value") is True:
                return True
        time.sleep(0.1)
    return False


def test_the_search_works_from_a_folder(site: Path, tools: ModuleType, browser: Any) -> None:
    tab = tools.Page(browser, 1280, 900)
    visit(tab, site / "guide" / "calibration.html")
    tab.js("document.querySelector('.md-search__input').focus()")
    end = time.monotonic() + 30
    while not (found := tab.js("[...document.querySelectorAll('.md-search-result__link')].map(e => e.href)")):
        assert time.monotonic() < end, tab.complaints()
        tab.js(
            "{const box = document.querySelector('.md-search__input'); box.value = 'temperature scaling';"
            "for (const kind of ['keyup', 'input']) box.dispatchEvent(new Event(kind, {bubbles: true}))}"
        )
        time.sleep(0.2)
    assert any("calibration.html" in address for address in found)
    assert all(address.startswith("file:") for address in found)
    assert tab.complaints() == []
    tab.close()
