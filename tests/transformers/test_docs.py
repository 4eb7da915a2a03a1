"""The code in docs/guide/transformers.md runs without warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "transformers.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    scope: dict[str, object] = {}
    for block in blocks:  # later blocks use names of the first
        exec(compile(block, PAGE.name, "exec"), scope)
    assert "eval_avu_auc" in scope["figures"]  # type: ignore[operator]
    assert "eval_token_ece" in scope["token_figures"]  # type: ignore[operator]
