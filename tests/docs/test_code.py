"""The Python on every page runs, and prints what the page says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if "gallery" not in path.parts  # run by docs/make_gallery.py
}
# an optional mark, the code, and what it prints, if that follows
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+) -->\n)?^```python\n(?P<code>.*?)^```$"
    r"(?:\n+(?:It prints:\n\n)?```text\n(?P<output>.*?)```)?",
    re.DOTALL | re.MULTILINE,
)
# pages that another file runs, with more to say about the result
ELSEWHERE = {
    "docs/guide/data.md": "tests/shifts/test_doctests.py",
    "docs/guide/plots.md": "tests/plot/test_plot.py",
    "docs/guide/shifts.md": "tests/shifts/test_doctests.py",
    "docs/guide/transformers.md": "tests/transformers/test_docs.py",
    "docs/index.md": "tests/docs/test_newcomer.py",
}
# every block that is not run here, by page: the marks must say the same. test_guide.py in
# tests/lightning, report, study and trackers run those that need no GPU and no data set
NOT_RUN = {
    "docs/guide/data.md": ["needs ImageNet and a GPU"],
    "docs/guide/lightning.md": ["examples/lightning_training.py is this program with data"],
    "docs/guide/shifts.md": ["needs the released files"],
    "docs/guide/study.md": ["needs your network and data"],
    "docs/guide/training.md": ["needs CIFAR-10 and a GPU"] * 2 + ["needs your network and data", "needs a GPU"],
    "docs/reference/report.md": ["needs a finished study"],
    "docs/reference/study-files.md": ["needs a finished study"],
}
LINKED = re.compile(r"\]\([\w./-]+\.(?:md|py)[)#]")
# a page for each task and idea: code near its top, what it prints, and where to go next
TASKS = "command calibration losses bayes prediction shifts study report deploy language-models segmentation"
IDEAS = "accuracy-versus-uncertainty ece posteriors shifts conformal"
RUN = [name for name, text in PAGES.items() if name not in ELSEWHERE and BLOCK.search(text)]


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def assert_prints(printed: str, promised: str) -> None:
    """Words are equal; numbers may differ in their last digits on another machine."""
    words = [re.sub(r"\d[\d,]*\.?\d*", "#", text).split() for text in (printed, promised)]
    assert words[0] == words[1], f"printed:\n{printed}\npromised:\n{promised}"
    assert numbers(printed) == pytest.approx(numbers(promised), abs=0.02, rel=0.05)


@pytest.mark.parametrize("name", RUN)
def test_code_of_a_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All blocks of a page in one namespace, in a folder with the predictions that docs/guide/metrics.md reads."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("logits.npy", rng.standard_normal((300, 4), dtype=np.float32))
    np.save("labels.npy", rng.integers(0, 4, 300))
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in BLOCK.finditer(PAGES[name]):
        if block["reason"] is None:
            capsys.readouterr()
            exec(compile(block["code"], name, "exec"), namespace)
            if block["output"] is not None:
                assert_prints(capsys.readouterr().out, block["output"])


def test_what_is_not_run_is_listed() -> None:
    marked = {
        name: [block["reason"] for block in BLOCK.finditer(text) if block["reason"]] for name, text in PAGES.items()
    }
    assert {name: reasons for name, reasons in marked.items() if reasons} == NOT_RUN
    assert sum(text.count("<!-- not run:") for text in PAGES.values()) == sum(
        len(reasons) for reasons in NOT_RUN.values()
    )


@pytest.mark.parametrize("page", ELSEWHERE)
def test_pages_that_run_elsewhere_do(page: str) -> None:
    assert Path(page).name in (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [f"docs/guide/{name}.md" for name in TASKS.split()] + [f"docs/concepts/{name}.md" for name in IDEAS.split()]
)
def test_a_page_begins_with_code_shows_its_output_and_ends_with_links(name: str) -> None:
    text = PAGES[name]
    start, end = text.partition("\n## ")[0], text.rpartition("\n## ")[2]
    if "concepts" in name:  # an idea may need a section before its code
        start = text
    assert re.search(r"^```python|^    \$? ?avuc ", start, re.MULTILINE)
    assert re.search(r"^```text|^>>> .*\n[^>\n]|^    \$ avuc ", text, re.MULTILINE)
    assert end.startswith("Next\n")
    assert len(LINKED.findall(end)) >= 2


def test_python_is_marked_as_python() -> None:
    """Indented code is for the shell, for formulas and for output: Python in it would never run."""
    pattern = re.compile(r"^    (?:from [\w.]+ import|import \w+$)", re.MULTILINE)
    found = {
        name: pattern.findall(re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
        for name, text in PAGES.items()
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_another_number_or_word_is_noticed() -> None:
    assert_prints("ECE 0.071, 1,000 rows", "ECE 0.07, 1,000 rows")
    with pytest.raises(AssertionError):
        assert_prints("ECE 0.11, 1,000 rows", "ECE 0.07, 1,000 rows")
    with pytest.raises(AssertionError, match="promised"):
        assert_prints("NLL 0.07, 1,000 rows", "ECE 0.07, 1,000 rows")
