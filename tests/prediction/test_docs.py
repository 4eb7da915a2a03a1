"""The code in docs/prediction.md runs without warnings."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "prediction.md"


def test_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    scope: dict[str, object] = {}
    for block in blocks:  # later blocks use names of the first
        exec(compile(block, PAGE.name, "exec"), scope)
    assert scope["predictions"].probs.shape == (100, 10)  # type: ignore[attr-defined]
    assert scope["logits"].shape == (16, 100, 10)  # type: ignore[attr-defined]
